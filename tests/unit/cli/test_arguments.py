"""Arguments that no command can do anything with are refused before it does."""

import os
import signal
import subprocess
import sys

import pytest

from service.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jobs", "cancel", "\udcff"], "is not in the encoding of this shell"),
        (["queues", "pause", "email", "--why", "\udcff"], "is not in the encoding of this shell"),
        (["keys", "create", "a", "--scope", "read", "--expires", "9999999d"], "--expires: must be 36500 days at most"),
        (["keys", "rotate", "a", "--grace", "9999999d"], "--grace: must be 36500 days at most"),
        (["keys", "create", "a", "--scope", "read", "--rate", "1e-300"], "--rate: must be 0.001 to 1000000"),
        (["keys", "create", "a", "--scope", "read", "--rate", "nan"], "--rate: must be 0.001 to 1000000"),
    ],
)
def test_what_is_no_value_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("number", ["1", "1000"], ids=["buffered", "longer than the buffer"])
def test_a_reader_that_has_gone_ends_a_command_without_a_traceback(number: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "service.cli", "schedules", "preview", "* * * * *", "--next", number]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
