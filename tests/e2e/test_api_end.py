"""How the API ends: at once, though requests wait and streams are open."""

import signal
import threading
import time

import httpx2

from tests.e2e.conftest import Service
from tests.servers import eventually


def test_the_server_ends_without_waiting_for_streams_and_waits(whole_service: Service) -> None:
    job_id = whole_service.send("sample.note", word="nobody runs it")
    url = f"http://127.0.0.1:{whole_service.api_port}"
    threads: list[threading.Thread] = []
    answers: list[int] = []

    def ask(path: str) -> None:
        with httpx2.Client(timeout=60) as client, client.stream("GET", f"{url}{path}") as answer:
            answers.append(answer.status_code)
            answer.read()

    for path in [f"/jobs/{job_id}/events"] * 25 + [f"/jobs/{job_id}?wait=60"] * 5:
        threads.append(threading.Thread(target=ask, args=(path,)))
        threads[-1].start()
    eventually(lambda: len(answers) >= 25)  # those that wait are answered at the end
    time.sleep(0.5)
    api = whole_service.processes["api"]
    started = time.monotonic()
    api.send_signal(signal.SIGTERM)
    assert api.wait(20) == 0
    assert time.monotonic() - started < 8, "it has ten seconds for what is under way"
    for thread in threads:
        thread.join(10)
    assert answers == [200] * 30
