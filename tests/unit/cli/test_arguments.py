"""Arguments that no command can do anything with are refused before it does."""

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
