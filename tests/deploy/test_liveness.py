"""Liveness fails where a restart helps, and only there."""

import os
import signal
import time
import urllib.error
import urllib.request

from service.broker import RedisBroker
from tests.deploy.kubelet import Kubelet, Pod
from tests.jobs import send
from tests.servers import RedisServer, eventually

#: With them a consumer is stuck after 4.5 s.
SHORT = {"CALLBOARD_STUCK_SECONDS": "1", "CALLBOARD_REDIS_TIMEOUT_SECONDS": "1.5"}
ONE_THREAD = ("callboard", "worker", "default", "--threads", "1")


def status(pod: Pod, path: str) -> int:
    """What the kubelet's probe gets, 0 for nothing in a second."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{pod.service.ports[pod.name]}{path}", timeout=1) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def test_a_stuck_consumer_fails_liveness(kubelet: Kubelet, broker: RedisBroker) -> None:
    pod = kubelet.start("pod", **SHORT)
    assert status(pod, "/livez") == 200
    send(broker, "fault.end_consumers")
    eventually(lambda: status(pod, "/livez") == 503, 10)


def test_long_jobs_and_an_outage_of_redis_do_not(kubelet: Kubelet, broker: RedisBroker, own_redis: RedisServer) -> None:
    busy = kubelet.start("busy", *ONE_THREAD, **SHORT)
    alone = kubelet.start("alone", REDIS_URL=own_redis.url, CALLBOARD_LEASE_SECONDS="3", **SHORT)
    send(broker, "fault.spin", 7.0)
    eventually(lambda: kubelet.service.notes())
    own_redis.freeze()
    began = time.monotonic()
    seen: set[tuple[int, int]] = set()
    while time.monotonic() < began + 6.5:
        seen.add((status(busy, "/livez"), status(alone, "/livez")))
        time.sleep(0.3)
    assert seen == {(200, 200)}
    assert status(alone, "/readyz") == 503
    own_redis.thaw()
    eventually(lambda: status(alone, "/readyz") == 200)
    eventually(lambda: kubelet.service.notes()[-1].startswith("end-spin"))


def test_a_stopped_process_answers_nothing(kubelet: Kubelet) -> None:
    pod = kubelet.start("pod", "dramatiq", "service.actors", "--processes", "1", "--threads", "2")
    (worker,) = [int(path.stem) for path in (pod.service.folder / pod.name / "run").glob("*.worker")]

    os.kill(worker, signal.SIGSTOP)
    assert status(pod, "/livez") == 0
    os.kill(worker, signal.SIGCONT)
    eventually(lambda: status(pod, "/livez") == 200)


def test_a_start_without_redis_is_alive_and_not_ready(kubelet: Kubelet, own_redis: RedisServer) -> None:
    own_redis.kill()
    pod = kubelet.start("pod", ready=False, REDIS_URL=own_redis.url)
    eventually(lambda: status(pod, "/livez") == 200)
    assert status(pod, "/readyz") == 503
    own_redis.start()
    eventually(lambda: status(pod, "/readyz") == 200)
