import pytest

from service.cli import main


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["replay", "x", "--payload", "junk"], "argument --payload: is no JSON: Expecting value"),
        (["replay", "x", "--payload", "null"], "argument --payload: must be a JSON object"),
        (["list", "--since", "yesterday"], "argument --since: must be ISO 8601, such as 2026-12-01T08:00:00Z"),
        (["delete", "--all"], "there is no bulk delete: `callboard dead-letters list` names the jobs"),
    ],
)
def test_a_wrong_command_line_is_told_with_what_to_do(capsys, line, told):
    with pytest.raises(SystemExit) as ended:
        main(["dead-letters", *line])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("act", "where"), [("replay", "kept with the job, and logged"), ("delete", "logged")])
def test_the_help_says_where_the_reason_goes(capsys, act, where):
    with pytest.raises(SystemExit):
        main(["dead-letters", act, "--help"])
    assert f"--why TEXT {where}" in " ".join(capsys.readouterr().out.split())
