"""The main job: 200 e-mails posted to the running service arrive once each."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes, policy
from pathlib import Path

import pytest

from tests.servers import eventually
from tests.up.home import Home

MAILS = 200


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.clean()


@pytest.mark.timeout(240)
def test_two_hundred_posted_mails_arrive_once_each(home: Home) -> None:
    home.up()

    def post(number: int) -> str:
        payload = {
            "to": f"reader-{number}@example.org",
            "subject": f"Issue {number}",
            "template_id": "welcome",
            "context": {"name": f"Reader {number}"},
        }
        answer = home.post("/jobs", {"type": "email.send", "payload": payload})
        assert answer["status"] == "pending"
        assert home.get(answer["poll_url"])["job_id"] == answer["job_id"], "known from the first moment on"
        return answer["job_id"]

    with ThreadPoolExecutor(8) as pool:
        job_ids = list(pool.map(post, range(MAILS)))
    eventually(lambda: all(home.get(f"/jobs/{job_id}")["is_terminal"] for job_id in job_ids), 60)

    jobs = [home.get(f"/jobs/{job_id}") for job_id in job_ids]
    assert Counter(job["status"] for job in jobs) == {"succeeded": MAILS}
    for number, job in enumerate(jobs):
        assert job["result"] == {"status": "sent", "to": f"reader-{number}@example.org"}

    mails = [message_from_bytes(file.read_bytes(), policy=policy.default) for file in home.state.mail.iterdir()]
    assert Counter(mail["To"] for mail in mails) == {f"reader-{number}@example.org": 1 for number in range(MAILS)}
    assert {mail["Message-ID"].split("@")[0].lstrip("<") for mail in mails} == set(job_ids)
    for mail in mails:
        number = mail["To"].removeprefix("reader-").partition("@")[0]
        body = mail.get_body(("plain",))
        assert body is not None
        assert f"Reader {number}" in body.get_content()
        assert mail["Subject"] == f"Issue {number}"

    logged = home.state.log_of("projector").read_text()
    assert logged.count("Job status updated") == 3 * MAILS


@pytest.mark.timeout(240)
def test_of_twenty_posts_with_one_reference_one_mail_is_sent(home: Home) -> None:
    home.up()
    payload = {"to": "ada@example.org", "subject": "Order 7", "template_id": "welcome", "context": {"name": "Ada"}}

    def post(_: int) -> str:
        return home.post("/jobs", {"type": "send-email", "payload": payload, "ref_id": "order-7"})["job_id"]

    with ThreadPoolExecutor(8) as pool:
        job_ids = list(pool.map(post, range(20)))
    eventually(lambda: all(home.get(f"/jobs/{job_id}")["is_terminal"] for job_id in job_ids), 60)
    jobs = [home.get(f"/jobs/{job_id}") for job_id in job_ids]
    assert Counter(job["status"] for job in jobs) == {"succeeded": 20}
    assert sorted(job["result"]["status"] for job in jobs) == ["already_sent"] * 19 + ["sent"]
    assert [job.get("skipped") for job in jobs].count(True) == 19
    assert len(list(home.state.mail.iterdir())) == 1
