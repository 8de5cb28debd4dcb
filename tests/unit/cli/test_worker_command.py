import os
import subprocess
import sys

import pytest

from service.cli.worker import programs
from service.errors import DeclarationError
from service.queues import QUEUES


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_one_queue_runs_as_the_table_says():
    (program,) = programs(["email"])
    assert option(program.argv, "--threads") == str(QUEUES["email"].concurrency)
    assert option(program.argv, "--processes") == "1"
    assert program.argv[-2:] == ("--queues", "email")


def test_several_queues_share_threads_for_all_of_them():
    (program,) = programs(["email", "default", "email"])
    assert option(program.argv, "--threads") == "60"
    assert program.argv[-3:] == ("--queues", "email", "default")


def test_no_queue_means_all():
    (program,) = programs([])
    assert program.argv[program.argv.index("--queues") + 1 :] == tuple(QUEUES)


def test_options_override_the_table():
    both = programs(["email"], processes=2, threads=3)
    assert [program.name for program in both] == ["email-1", "email-2"]
    assert option(both[0].argv, "--threads") == "3"


def test_an_unknown_queue_is_told_with_the_known_ones():
    with pytest.raises(DeclarationError, match=r"Unknown queue 'mails'; known queues: email, default"):
        programs(["mails"])
    # In a process of its own, for a command sets up the logs of its process.
    argv = [sys.executable, "-m", "service.cli", "worker", "mails"]
    env = os.environ | {"REDIS_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stderr.startswith("Unknown queue 'mails'; known queues: email")
