"""`callboard up` from the outside, with its real processes."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import urllib.error

import psutil
import psycopg
import pytest

from service.cli.up.ports import listen_on, port_of
from service.queues import QUEUES
from tests.up.eventually import eventually
from tests.up.home import Home, command

JOB = {
    "type": "email.send",
    "payload": {"to": "ada@example.com", "subject": "Hello", "template_id": "welcome", "context": {"name": "Ada"}},
}
#: Starting takes seconds on two processors that do something else as well.
pytestmark = pytest.mark.timeout(180)


def send_and_follow(home: Home) -> None:
    url = home.post("/jobs", JOB)["poll_url"]
    eventually(lambda: home.get(url)["status"] == "succeeded", 20)


def test_a_first_job_goes_out_and_what_dies_is_replaced(home):
    with listen_on(None) as api, listen_on(None) as mail:
        taken = {"CALLBOARD_API_PORT": str(port_of(api)), "CALLBOARD_SMTP_PORT": str(port_of(mail))}
        printed = home.up(**taken)
    chosen = home.sourced()
    assert int(chosen["CALLBOARD_API_PORT"]) > int(taken["CALLBOARD_API_PORT"])
    assert int(chosen["CALLBOARD_SMTP_PORT"]) > int(taken["CALLBOARD_SMTP_PORT"])
    assert f"curl -s {chosen['CALLBOARD_URL']}/jobs" in printed
    assert stat.S_IMODE(home.state.env.stat().st_mode) == 0o600

    send_and_follow(home)
    (mail_file,) = home.state.mail.iterdir()
    assert b"X-Envelope-To: ada@example.com\r\n" in mail_file.read_bytes()

    second = home.run("up")
    assert second.returncode == 1
    supervisor = home.pid_of("supervisor")
    assert f"pid {supervisor}, API at {chosen['CALLBOARD_URL']}" in second.stderr

    killed = home.parts()
    assert {"api", "projector", "scheduler", "mail", "redis", "postgres", *QUEUES} == killed.keys()
    orphans = psutil.Process(killed["email"]).children()
    assert orphans
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: (now := home.parts()).keys() == killed.keys() and not now.items() & killed.items(), 30)
    assert not any(is_alive(orphan) for orphan in orphans)
    eventually(lambda: all_workers_are_ready_again(home), 40)
    send_and_follow(home)

    # Nothing has to be recorded for all of it to be stopped.
    shutil.rmtree(home.state.run)
    down = home.run("down", timeout_seconds=30)
    assert down.returncode == 0
    assert f"Stopping (pid {supervisor})" in down.stdout
    assert "Stopped." in down.stdout
    assert home.processes() == []
    assert "Nothing runs" in home.run("down").stdout


def is_alive(process: psutil.Process) -> bool:
    """A zombie is not: it waits for the first process of the machine, which takes its time."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.is_running()
    except psutil.NoSuchProcess:
        return False


def all_workers_are_ready_again(home: Home) -> bool:
    logs = [home.state.log_of(name).read_text() for name in QUEUES]
    return all(log.count("Worker process is ready for action") >= 2 for log in logs)


def test_what_lost_its_supervisor_its_records_or_its_folder_does_not_run_beside_a_new_start(home):
    home.up()
    sourced, first = home.sourced(), pids(home)
    for record in home.state.run.iterdir():
        record.unlink()
    home.kill_supervisor()

    # The shell of a user who has sourced the file of the run before.
    home.up(**sourced)
    second = pids(home)
    assert not first & second
    assert "Ended what an earlier run had left" in home.state.log_of("up").read_text()
    assert home.sourced() == sourced
    send_and_follow(home)

    with home.state.log_of("up").open() as log:
        shutil.rmtree(home.state.root)
        # Without a pause, so that it has not noticed yet.
        home.up()
        said = log.read()
        assert f"{home.state.lock} was deleted or moved while Callboard ran there" in said
        assert "Traceback" not in said
    assert not second & pids(home)
    send_and_follow(home)

    shutil.rmtree(home.state.root)
    eventually(lambda: not home.processes(), 60)
    assert "Nothing runs" in home.run("down").stdout
    assert not home.state.root.exists()


def pids(home: Home) -> set[str]:
    return {line.split()[0] for line in home.processes()}


SLOW_ACTOR = """
import pathlib, time
from service.job import job

@job(name="tests.slow", queue="default")
def slow(*, folder: str) -> None:
    pathlib.Path(folder, "job-started").touch()
    time.sleep(1.5)
    pathlib.Path(folder, "job-finished").touch()
"""


def test_ctrl_c_in_the_foreground_lets_running_jobs_finish(home):
    (home.path / "slow_actors.py").write_text(SLOW_ACTOR)
    env = home.environment({"CALLBOARD_ACTORS": "slow_actors"})
    out = home.path / "out"
    with (
        out.open("wb") as file,
        subprocess.Popen(command("up"), cwd=home.path, env=env, stdout=file, stderr=file) as up,
    ):
        eventually(lambda: "\nStop:" in out.read_text(), 60)
        assert "email.send" not in out.read_text()
        assert "Send a job of your own: http://127.0.0.1:" in out.read_text()
        home.post("/jobs", {"type": "tests.slow", "payload": {"folder": str(home.path)}})
        eventually((home.path / "job-started").exists, 20)
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
    assert (home.path / "job-finished").exists()
    text = out.read_text()
    assert re.search(r"^default +\| .*Worker process is ready", text, re.MULTILINE)
    assert re.search(r"^api +\| .*Application shutdown complete", text, re.MULTILINE)
    # The projector outlives the workers, so that it stores how the last jobs have ended.
    assert re.search(r"^projector +\| .*Job status updated .*status=succeeded", text, re.MULTILINE)
    assert "Killing" not in text
    assert home.processes() == []


def test_where_keys_are_asked_for_the_first_job_has_one(home):
    printed = home.up(CALLBOARD_API_ACCESS="keys")
    commands = printed.partition("Send a first job:\n")[2].partition("Stop:")[0]
    shell = {"cwd": home.path, "env": home.environment({}), "capture_output": True, "text": True, "check": False}
    sent = subprocess.run(["sh", "-ec", commands], **shell)
    assert json.loads(sent.stdout)["status"] == "pending", sent.stderr
    with pytest.raises(urllib.error.HTTPError, match="401"):
        home.post("/jobs", JOB)


def test_named_servers_are_used_and_left_alone(home, own_redis, database_url):
    printed = home.up(REDIS_URL=own_redis.url, DATABASE_URL=database_url, CALLBOARD_SMTP_HOST="smtp.example.com")
    assert "No mail goes to CALLBOARD_SMTP_HOST=smtp.example.com" in printed
    sourced = home.sourced()
    assert (sourced["REDIS_URL"], sourced["DATABASE_URL"]) == (own_redis.url, database_url)
    assert not {"redis", "postgres"} & {path.stem for path in home.state.run.glob("*.json")}
    send_and_follow(home)
    home.kill_supervisor()
    down = home.run("down")
    assert down.returncode == 0
    assert re.search(r"Ended what an earlier run had left: .*api, .*email", down.stdout)
    assert home.processes() == []
    with own_redis.client() as client, psycopg.connect(database_url) as connection:
        assert client.ping()
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("how", ["up", "up --detach"])
def test_a_wrong_setting_stops_the_start_at_once(home, how):
    done = home.run(*how.split(), CALLBOARD_LEASE_SECONDS="soon", REDIS_URL="http://user:secret@example.com")
    assert done.returncode == 78
    assert "CALLBOARD_LEASE_SECONDS='soon' is wrong" in done.stderr
    assert "for example: CALLBOARD_LEASE_SECONDS=30" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not home.state.root.exists()


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("REDIS_URL", "redis://:secret@127.0.0.1:{port}/0"),
        ("DATABASE_URL", "postgresql://me:secret@127.0.0.1:{port}/x"),
    ],
)
def test_a_named_server_that_is_down_is_told_by_host_and_port(home, variable, url):
    with listen_on(None) as listener:
        port = port_of(listener)
    done = home.run("up", "--detach", **{variable: url.format(port=port)})
    assert done.returncode == 1
    assert f"127.0.0.1:{port} can't be used" in done.stderr
    assert variable in done.stderr
    assert "secret" not in done.stderr
    assert home.processes() == []


def test_a_part_that_cannot_start_ends_the_start_with_its_last_lines(home):
    done = home.run("up", "--detach", CALLBOARD_ACTORS="no_such_module")
    assert done.returncode == 1
    assert "The last lines of" in done.stderr
    assert "there is no module 'no_such_module'" in done.stderr
    assert home.processes() == []


def test_a_worker_command_ends_where_a_setting_is_wrong(home):
    done = home.run("worker", "email", REDIS_URL="redis://127.0.0.1:1/0", CALLBOARD_ACTORS="no_such_module")
    assert done.returncode == 78
    assert "there is no module 'no_such_module'" in done.stderr
    assert "set PYTHONPATH to the folder that it is in" in done.stderr
    assert "starting it again" not in done.stderr
    assert "set right what the lines above name" in done.stderr
    assert home.run("worker", "email").returncode == 78


def test_a_worker_command_replaces_what_died_and_stops_on_sigterm(home, own_redis):
    env = home.environment({"REDIS_URL": own_redis.url})
    argv = command("worker", "email", "--processes", "2", "--threads", "1")
    with (home.path / "out").open("w+") as out:
        supervisor = subprocess.Popen(argv, cwd=home.path, env=env, stdout=out, stderr=out)
        masters = eventually(lambda: len(found := psutil.Process(supervisor.pid).children()) == 2 and found, 20)
        eventually(lambda: (home.path / "out").read_text().count("ready for action") == 2, 30)
        masters[0].kill()
        eventually(lambda: (home.path / "out").read_text().count("ready for action") == 3, 30)
        supervisor.send_signal(signal.SIGTERM)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
    assert "was killed by SIGKILL; starting it again" in (home.path / "out").read_text()
