"""What `@job` takes for idempotency keys, and where a key is refused."""

from typing import Any

import dramatiq
import pytest

from service.broker import RedisBroker
from service.errors import DeclarationError, PayloadError
from service.job import job

KEY = "mail:{to}:{ref_id}"


def declare(**options: Any) -> Any:
    @job(name="mail.send", queue="email", **options)
    def send(*, to: str, ref_id: str | None = None) -> None: ...

    return send


def test_a_key_goes_with_its_message(broker: RedisBroker) -> None:
    message = declare(idempotency_key=KEY).message(to="ada", ref_id="7")
    assert message.options["idempotency_key"] == "mail:ada:7"
    assert broker.row(message, None).packed().partition(b"\n")[0].endswith(b" mail.send\tmail:ada:7")


def test_a_job_without_a_key_carries_none(broker: RedisBroker) -> None:
    for message in (declare(idempotency_key=KEY).message(to="ada"), dramatiq.Message("email", "plain", (), {}, {})):
        assert broker.row(message, None).key == ""
        assert b"\t" not in broker.row(message, None).packed().partition(b"\n")[0]


def test_a_function_may_make_the_key(broker: RedisBroker) -> None:
    send = declare(idempotency_key=lambda payload: payload["ref_id"])
    assert send.message(to="ada", ref_id="7").options["idempotency_key"] == "7"
    assert send.message_from_json({"to": "ada", "ref_id": "8"}).options["idempotency_key"] == "8"
    assert broker.row(send.message(to="ada"), None).key == ""


def test_one_send_may_have_a_key_of_its_own_or_none(broker: RedisBroker) -> None:
    send = declare(idempotency_key=KEY)
    for key in ("other", None):
        message = send.message_with_options(kwargs={"to": "ada", "ref_id": "7"}, idempotency_key=key)
        assert broker.row(message, None).key == (key or "")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "must be printable text, and not empty"),
        ("a\tb", "must be printable text"),
        ("a\nb", "must be printable text"),
        ("k" * 513, "has 513 characters, and the limit is 512"),
        (7, "must be text or None, not int"),
    ],
)
def test_what_can_not_be_a_key_is_refused_where_the_message_is_made(
    broker: RedisBroker, key: Any, problem: str
) -> None:
    with pytest.raises(PayloadError, match=r"Invalid payload for mail\.send: idempotency_key: ") as error:
        declare(idempotency_key=lambda payload: key).message(to="ada")
    assert problem in str(error.value)
    with pytest.raises(PayloadError, match="idempotency_key"):
        broker.row(dramatiq.Message("email", "plain", (), {}, {"idempotency_key": key}), None)


def test_a_function_that_fails_is_named(broker: RedisBroker) -> None:
    with pytest.raises(PayloadError, match="idempotency_key: its function has failed: KeyError: 'who'"):
        declare(idempotency_key=lambda payload: payload["who"]).message(to="ada")


@pytest.mark.parametrize(
    ("given", "seconds"), [("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), (0.5, 0.5), (3600, 3600)]
)
def test_a_time_is_text_or_seconds(broker: RedisBroker, given: Any, seconds: float) -> None:
    assert declare(idempotency_key=KEY, idempotency_ttl=given).options["idempotency_ttl"] == seconds


@pytest.mark.parametrize(
    "options",
    [
        {"idempotency_ttl": "24h"},
        {"duplicate_result": None},
        {"remember_failure": True},
        {"idempotency_key": 7},
        {"idempotency_key": "mail:{whom}"},
        *(
            {"idempotency_key": KEY, "idempotency_ttl": given}
            for given in ("24", "h", "1w", "-1h", 0, -1, "400d", True)
        ),
        {"idempotency_key": KEY, "idempotency_ttl": float("nan")},
        {"idempotency_key": KEY, "duplicate_result": object()},
        {"idempotency_key": KEY, "duplicate_result": float("inf")},
        {"idempotency_key": KEY, "remember_failure": "yes"},
    ],
    ids=lambda options: "+".join(options),
)
def test_options_that_can_not_work_are_refused_and_leave_nothing_behind(
    broker: RedisBroker, options: dict[str, Any]
) -> None:
    with pytest.raises(DeclarationError, match=r"^mail\.send: "):
        declare(**options)
    assert broker.known_types == []


def test_a_plain_actor_names_its_key_for_each_send(broker: RedisBroker) -> None:
    with pytest.raises(DeclarationError, match="plain: idempotency_key is for @job"):
        dramatiq.actor(lambda: None, actor_name="plain", broker=broker, idempotency_key=KEY)
    plain: Any = dramatiq.actor(lambda: None, actor_name="plain", broker=broker, idempotency_ttl="1h")
    assert broker.row(plain.message_with_options(idempotency_key="k"), None).key == "k"
