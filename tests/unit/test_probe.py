import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from service.errors import SettingsError
from service.observe.probe import Answers, Probe, check_host
from tests.servers import free_port


@pytest.fixture
def serve() -> Iterator:
    probes = []

    def start(is_ready=lambda: True, port=0, host="127.0.0.1"):
        probe = Probe(host, port or free_port(), Answers(is_ready))
        probe.start()
        probes.append(probe)
        return probe

    yield start
    for probe in probes:
        probe.stop()


def get(probe, path):
    try:
        with urlopen(f"http://127.0.0.1:{probe.port}{path}", timeout=5) as reply:
            return reply.status, json.load(reply)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_process_is_alive_also_while_it_is_not_ready(serve):
    ready = [False]
    probe = serve(lambda: ready[0])
    assert get(probe, "/livez") == (200, {"status": "alive"})
    assert get(probe, "/readyz") == (503, {"status": "not ready"})
    ready[0] = True
    assert get(probe, "/readyz") == (200, {"status": "ready"})
    assert get(probe, "/livez") == (200, {"status": "alive"})


@pytest.mark.parametrize("path", ["/", "/metrics.txt", "/livez/", "/readyz/../livez"])
def test_any_other_path_is_not_found(serve, path):
    assert get(serve(), path) == (404, {"status": "unknown path"})


def test_metrics_are_served_where_there_are_any():
    probe = Probe("127.0.0.1", free_port(), Answers(lambda: True, metrics=lambda: b"jobs_total 1.0\n"))
    probe.start()
    try:
        with urlopen(f"http://127.0.0.1:{probe.port}/metrics", timeout=5) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert reply.read() == b"jobs_total 1.0\n"
    finally:
        probe.stop()
    probe = Probe("127.0.0.1", free_port(), Answers(lambda: True))
    probe.start()
    try:
        assert get(probe, "/metrics") == (404, {"status": "unknown path"})
    finally:
        probe.stop()


def test_a_silent_client_does_not_hold_up_the_others(serve):
    probe = serve()
    with socket.create_connection(("127.0.0.1", probe.port)):
        assert get(probe, "/livez")[0] == 200


def test_a_connection_serves_several_questions_at_once(serve):
    probe = serve()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(get(probe, "/livez")[0])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 20


def test_a_taken_port_moves_on_and_says_so(serve, caplog):
    caplog.set_level(logging.WARNING)
    first = serve()
    second = serve(port=first.port)
    assert first.port < second.port < first.port + 100
    assert f"Port {first.port} is taken: the probes of this process answer on {second.port}" in caplog.text
    assert get(first, "/livez")[0] == get(second, "/livez")[0] == 200


def test_the_last_port_is_tried_too(caplog):
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", 65535))
        except OSError:
            pytest.skip("port 65535 is taken on this machine")
    caplog.set_level(logging.WARNING)
    probe = Probe("127.0.0.1", 65535, Answers(lambda: True))
    probe.start()
    probe.stop()
    assert (probe.port, caplog.text) == (65535, "")


def test_a_wrong_host_is_told_at_once():
    with pytest.raises(SettingsError, match=r"CALLBOARD_WORKER_HOST='[^']+' is wrong: "):
        Probe("192.0.2.1", 9191, Answers(lambda: True))  # an address of documentation: no machine has it


def test_no_dns_is_asked_for_the_own_name(serve, monkeypatch):
    def no_dns(*_):
        pytest.fail("this can take many seconds where no DNS answers")

    monkeypatch.setattr(socket, "getfqdn", no_dns)
    monkeypatch.setattr(socket, "gethostbyaddr", no_dns)
    assert get(serve(), "/livez")[0] == 200


def test_what_is_not_http_is_answered_or_closed(serve):
    probe = serve()
    connection = http.client.HTTPConnection("127.0.0.1", probe.port, timeout=5)
    connection.request("DELETE", "/livez")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_stopped_probe_frees_its_port():
    probe = Probe("127.0.0.1", free_port(), Answers(lambda: True))
    probe.start()
    probe.stop()
    again = Probe("127.0.0.1", probe.port, Answers(lambda: True))
    again.start()
    again.stop()
    assert again.port == probe.port


@pytest.mark.parametrize("host", ["no such host", "x" * 300, "::zz"])
def test_a_host_that_can_not_be_resolved_is_told_with_its_variable(host):
    with pytest.raises(SettingsError, match=r"^CALLBOARD_WORKER_HOST=.* is wrong: .*; for example: "):
        check_host(host)
    check_host("127.0.0.1")
    check_host("localhost")
