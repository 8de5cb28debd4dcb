"""Jobs through every process: API, Redis, worker, projector, PostgreSQL, API."""

import subprocess
import sys
from datetime import datetime, timedelta

from tests.e2e.conftest import Service
from tests.servers import eventually


def test_a_job_is_sent_run_and_shown(whole_service: Service) -> None:
    whole_service.start_worker()
    job_id = whole_service.send("sample.note", word="hello")
    job = whole_service.end_of(job_id)
    assert (job["status"], job["result"], job["attempt"]) == ("succeeded", {"noted": "hello"}, 1)
    assert "error" not in job
    times = [datetime.fromisoformat(job[name]) for name in ("created_at", "started_at", "completed_at")]
    assert times == sorted(times)
    assert all(time.utcoffset() == timedelta(0) for time in times)
    assert whole_service.notes() == ["hello"]
    eventually(lambda: whole_service.log("projector").count("Job status updated") == 3)
    for status in ("pending", "running", "succeeded"):
        assert f"Job status updated job_id={job_id} status={status}" in whole_service.log("projector")


def test_a_job_is_failed_only_when_no_attempt_is_left(whole_service: Service) -> None:
    whole_service.start_worker()
    job_id = whole_service.send("sample.flaky", succeeds_at=99)
    seen: list[str] = []

    def ended() -> bool:
        job = whole_service.job(job_id)
        seen.append(job["status"])
        assert ("error" in job) == (job["status"] == "failed")
        return job["is_terminal"]

    eventually(ended, 30)
    job = whole_service.job(job_id)
    assert (job["status"], job["state"], job["attempt"]) == ("failed", "dead", 3)
    assert job["error"] == {"type": "ConnectionError", "message": "not yet"}
    assert whole_service.notes() == ["attempt 1", "attempt 2", "attempt 3"]
    assert seen.count("failed") == 1


def test_a_job_that_succeeds_in_the_end_was_never_failed(whole_service: Service) -> None:
    whole_service.start_worker()
    job = whole_service.end_of(whole_service.send("sample.flaky", succeeds_at=2))
    assert (job["status"], job["result"], job["attempt"]) == ("succeeded", 2, 2)
    assert "status=failed" not in whole_service.log("projector")


def test_a_running_job_is_shown_as_running(whole_service: Service) -> None:
    whole_service.start_worker()
    job_id = whole_service.send("sample.slow", word="a", seconds=1.5)
    eventually(lambda: whole_service.job(job_id)["status"] == "running")
    job = whole_service.job(job_id)
    assert job["started_at"] is not None
    assert (job["completed_at"], job["is_terminal"]) == (None, False)
    assert whole_service.end_of(job_id)["status"] == "succeeded"


PRODUCER = """
from sample_jobs import note, plain
print(note.send(word="from a producer").message_id)
print(plain.send("from a plain actor").message_id)
"""


def test_a_job_sent_from_python_is_shown_like_any_other(whole_service: Service) -> None:
    whole_service.start_worker()
    environment = {name: value for name, value in whole_service.environment.items() if name != "DATABASE_URL"}
    output = subprocess.run(
        [sys.executable, "-c", PRODUCER], env=environment, capture_output=True, text=True, check=True
    ).stdout
    typed, plain = output.split()
    assert whole_service.end_of(typed)["result"] == {"noted": "from a producer"}
    assert whole_service.end_of(plain)["result"] == "from a plain actor"


def test_jobs_are_shown_while_the_projector_is_down_and_stored_when_it_is_back(whole_service: Service) -> None:
    whole_service.start_worker()
    whole_service.processes["projector"].kill()
    job_ids = [whole_service.send("sample.note", word=str(number)) for number in range(20)]
    assert {whole_service.end_of(job_id)["status"] for job_id in job_ids} == {"succeeded"}
    whole_service.start("projector", "callboard", "projector")
    eventually(lambda: whole_service.log("projector").count("status=succeeded") == 20)
    assert {whole_service.job(job_id)["status"] for job_id in job_ids} == {"succeeded"}
