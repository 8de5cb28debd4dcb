import os
import socket
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from service.cli.failure import CommandFailed
from service.cli.supervise.supervisor import Supervisor
from service.cli.up import owner, programs
from service.cli.up.environment import Addresses, base_environment, child_environment, write_env_file
from service.cli.up.lock import UpLock
from service.cli.up.mail_catcher import keep
from service.cli.up.owner import Owner
from service.cli.up.ports import listen_near, listen_on, make_way, port_of
from service.cli.up.postgres import Postgres
from service.cli.up.postgres import url as postgres_url
from service.cli.up.private_file import password_in
from service.cli.up.readiness import announced_port
from service.cli.up.records import Record, Records
from service.cli.up.state_dir import StateDir
from service.observe.probe import Answers, Probe
from tests.servers import free_port
from tests.up.eventually import eventually

ADDRESSES = Addresses("redis://:p@127.0.0.1:1/0", "postgresql://c:p@127.0.0.1:2/callboard", 8001, 1026, Path("/x/m y"))


def test_a_password_is_made_once_and_is_private(tmp_path):
    path = tmp_path / "password"
    assert password_in(path) == password_in(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_emptied_password_is_made_anew_and_told_before_it_is_kept(tmp_path):
    path = tmp_path / "password"
    path.write_text("\n")
    told = []

    def refuse(_password):
        raise OSError

    with pytest.raises(OSError):
        password_in(path, refuse)
    assert path.read_text() == "\n"
    password = password_in(path, told.append)
    assert told == [password]
    assert len(password) == 32
    assert password_in(path, told.append) == password
    assert told == [password]


def test_postgres_takes_another_password_for_the_data_that_it_has(tmp_path):
    state = StateDir(tmp_path)
    state.make()
    server = Postgres.find(state, dict(os.environ))
    server.prepare("first")
    server.set_password("second")
    port = free_port()
    supervisor = Supervisor()
    child = supervisor.start(server.program(port))
    try:
        eventually(lambda: server.answers(child.pid), 20)
        with psycopg.connect(postgres_url(port, "second")) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(postgres_url(port, "first"))
    finally:
        supervisor.stop(supervisor.names(), 10)


def test_a_shell_reads_the_env_file_back_whatever_the_values(tmp_path):
    path = tmp_path / "env"
    write_env_file(path, ADDRESSES, {"CALLBOARD_NAMESPACE": "it's $HOME", "CALLBOARD_LOG_LEVEL": "DEBUG"})
    shell = ["sh", "-c", '. "$0"; env', str(path)]
    lines = subprocess.run(shell, env={}, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "CALLBOARD_NAMESPACE=it's $HOME" in lines
    assert "CALLBOARD_MAIL_DIR=/x/m y" in lines
    assert "CALLBOARD_URL=http://127.0.0.1:8001" in lines
    assert "CALLBOARD_LOG_LEVEL=DEBUG" not in lines
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_shells_find_the_modules_that_up_was_started_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "env"
    shell = ["sh", "-c", '. "$0"; echo "$PYTHONPATH $CALLBOARD_ACTORS"', str(path)]
    write_env_file(path, ADDRESSES, {"PYTHONPATH": "/x:shop", "CALLBOARD_ACTORS": "shopjobs"})
    # The shell may be in another folder.
    assert subprocess.check_output(shell, env={}, cwd="/", text=True) == f"/x:{tmp_path}/shop shopjobs\n"
    write_env_file(path, ADDRESSES, {"CALLBOARD_SCHEDULES": "shop.plans:SCHEDULES"})
    shell[2] = '. "$0"; echo "$CALLBOARD_SCHEDULES"'
    assert subprocess.check_output(shell, env={}, text=True) == "shop.plans:SCHEDULES\n"
    write_env_file(path, ADDRESSES, {"PYTHONPATH": ""})
    assert "PYTHONPATH" not in path.read_text()


def test_children_send_to_the_catcher_whatever_the_user_has_set_for_a_real_server(tmp_path):
    base = base_environment(
        {"CALLBOARD_SMTP_SECURITY": "tls", "CALLBOARD_SMTP_HOST": "smtp.example.com"}, StateDir(tmp_path)
    )
    env = child_environment(base, ADDRESSES, worker_port=5)
    assert "CALLBOARD_SMTP_SECURITY" not in env
    assert (env["CALLBOARD_SMTP_HOST"], env["CALLBOARD_SMTP_PORT"]) == ("127.0.0.1", "1026")
    assert env["CALLBOARD_WORKER_PORT"] == "5"


def test_a_taken_port_gives_the_next_free_one():
    with listen_on(None) as taken, listen_near("127.0.0.1", port_of(taken)) as other:
        assert port_of(taken) < port_of(other) < port_of(taken) + 100


def test_a_host_that_is_none_is_told():
    with pytest.raises(CommandFailed, match=r"CALLBOARD_API_HOST='no\.such\.host\.invalid'"):
        listen_near("no.such.host.invalid", 8000)


def test_a_port_is_taken_again_right_after_it_was_used():
    with listen_on(None) as first:
        port = port_of(first)
        with socket.create_connection(("127.0.0.1", port)), first.accept()[0]:
            pass
    with listen_on(port) as again:
        assert port_of(again) == port


def test_a_port_stays_ours_while_a_server_comes_and_goes():
    listener = listen_on(None)
    port = port_of(listener)
    keeper = make_way(listener)
    if keeper is None:
        pytest.skip("this system lets no two sockets have one port")
    with keeper:
        for _ in range(2):
            with socket.socket() as other, pytest.raises(OSError):
                other.bind(("127.0.0.1", port))
            with listen_on(port) as server:
                assert port_of(server) == port
                with socket.create_connection(("127.0.0.1", port)):
                    pass


def test_a_process_that_moved_to_another_port_is_asked_there(tmp_path, monkeypatch):
    monkeypatch.setenv("CALLBOARD_RUN_DIR", str(tmp_path))
    with listen_on(None) as taken:
        probe = Probe("127.0.0.1", port_of(taken), Answers(lambda: True))
        probe.start()
        assert announced_port(tmp_path, os.getpgid(0)) == probe.port != port_of(taken)
        assert announced_port(tmp_path, 1) is None
        probe.stop()
    assert announced_port(tmp_path, os.getpgid(0)) is None


def test_the_lock_says_who_holds_it(tmp_path):
    lock, other = UpLock(tmp_path / "lock"), UpLock(tmp_path / "lock")
    assert lock.acquire()
    assert other.holder() is None
    me = Record.of("supervisor", os.getpid(), "http://127.0.0.1:8000")
    lock.sign(me)
    lock.sign(me)
    assert other.holder() == me
    lock.sign(replace(me, create_time=1.0))
    assert other.holder() is None


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.rename(path.with_name("x"))])
def test_a_lock_is_lost_with_its_file(tmp_path, lose):
    lock = UpLock(tmp_path / "lock")
    assert lock.acquire()
    assert lock.is_held()
    lose(tmp_path / "lock")
    assert not lock.is_held()
    assert UpLock(tmp_path / "lock").acquire()
    assert not lock.is_held()


def test_the_lock_has_one_holder_and_is_not_inherited(tmp_path):
    lock = UpLock(tmp_path / "lock")
    assert lock.acquire()
    assert not UpLock(tmp_path / "lock").acquire()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        lock.release()
        assert UpLock(tmp_path / "lock").acquire()
        child.kill()


def test_a_record_knows_its_process_from_another_with_the_same_id(tmp_path):
    records = Records(tmp_path / "run")
    # Its folder may have been deleted.
    records.write("me", os.getpid())
    (record,) = records.all()
    assert record.runs()
    tmp_path /= "run"
    (tmp_path / "old.json").write_text(f'{{"name": "old", "pid": {os.getpid()}, "create_time": 5.0, "url": ""}}')
    (tmp_path / "foreign.json").write_text('{"port": 9191}')
    assert [(record.name, record.runs()) for record in records.all()] == [("me", True), ("old", False)]


def test_mails_are_whole_files_sorted_by_time_with_their_envelope(tmp_path):
    paths = [
        keep(tmp_path, "a@example.com", ["b@example.com", "ü@example.com\r\nX: y"], b"Subject: 1\r\n\r\nHi")
        for _ in "123"
    ]
    assert sorted(tmp_path.iterdir()) == paths
    assert paths[0].read_bytes().decode() == (
        "X-Envelope-From: a@example.com\r\nX-Envelope-To: b@example.com, ü@example.com X: y\r\nSubject: 1\r\n\r\nHi"
    )


def test_postgres_gets_through_closed_folders_by_a_capability_not_by_another_mode():
    command = Owner((65534, 65534), through_setpriv=True).command(["/x/postgres", "-D", "/y"])
    assert command[0] == "setpriv"
    assert command[-4:] == ("--", "/x/postgres", "-D", "/y")
    assert Owner().command(["/x/postgres"]) == ("/x/postgres",)


def test_without_setpriv_the_closed_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir(mode=0o700)
    monkeypatch.setattr(owner.os, "geteuid", lambda: 0)
    monkeypatch.setattr(owner.shutil, "which", lambda _name: None)
    with pytest.raises(CommandFailed, match=r"closed\. Install setpriv"):
        owner.owner_for(tmp_path / "closed" / "postgres", Path("/usr/bin"))


def test_data_of_another_postgres_version_is_told(tmp_path):
    state = StateDir(tmp_path)
    state.postgres.mkdir()
    (state.postgres / "PG_VERSION").write_text("9\n")
    with pytest.raises(CommandFailed, match=r"made by PostgreSQL 9, and this is \d+"):
        Postgres(state, programs.postgres_binaries(), Owner(), {}).prepare("password")


def test_missing_servers_are_told_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_in_package", lambda *_: None)
    monkeypatch.setattr(programs, "_newest_in", lambda _folder: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandFailed, match="apt install redis-server"):
        programs.redis_server()
    with pytest.raises(CommandFailed, match="apt install postgresql"):
        programs.postgres_binaries()


def test_servers_on_path_do_where_there_is_no_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_in_package", lambda *_: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("redis-server", "postgres", "initdb"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    assert programs.redis_server() == tmp_path / "redis-server"
    assert programs.postgres_binaries() == tmp_path
