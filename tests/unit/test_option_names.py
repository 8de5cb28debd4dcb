"""An option that `@job` does not have is named, with the one that is meant."""

from typing import Any

import pytest

from service.broker import RedisBroker
from service.errors import DeclarationError, PayloadError
from service.job import job

declare: Any = job


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retries": 3}, "t.a: @job has no option 'retries': use max_attempts, which counts runs in all"),
        ({"time_limit": 3}, "t.a: @job has no option 'time_limit': use timeout"),
        ({"idempotency_kye": "x"}, "t.a: @job has no option 'idempotency_kye': use idempotency_key"),
        ({"colour": "red"}, "t.a: @job has no option 'colour': it has name, queue, aliases"),
    ],
    ids=["other name", "of Dramatiq", "near miss", "nothing like it"],
)
def test_an_unknown_option_is_named_with_the_right_one(options: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError) as error:
        declare(name="t.a", queue="default", **options)
    assert str(error.value).startswith(text)


def test_an_option_that_is_missing_is_named() -> None:
    with pytest.raises(DeclarationError, match=r"^@job needs name=\.\.\. and queue=\.\.\.$"):
        declare()
    with pytest.raises(DeclarationError, match=r"^t\.a: @job needs queue=\.\.\.$"):
        declare(name="t.a")


def test_a_send_with_positional_arguments_says_how_to_name_them(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.job.broker", broker)

    @job(name="t.named", queue="default")
    def act(*, to: str, subject: str) -> None: ...

    send: Any = act.send
    with pytest.raises(PayloadError, match=r"name each argument, as in send\(to=\.\.\., subject=\.\.\.\)"):
        send("ada@example.org", "Hello")
