"""What a foreign producer may write: a bad message is a dead letter with reason and bytes, and harms nothing else."""

import json
import signal
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from service.broker import RedisBroker
from service.broker.dead_letter import split_header
from service.broker.keys import Keys
from service.broker.wire import Row
from service.errors import PayloadError
from service.queues import QUEUES
from tests.e2e.conftest import Service
from tests.faults.test_crashes import counts
from tests.jobs import send, state_of
from tests.servers import eventually

ACTORS = {"CALLBOARD_ACTORS": "badmsg_jobs", "CALLBOARD_LEASE_SECONDS": "2"}
QUEUE = "default"
Bytes = Callable[[str], bytes]


def fields(entry: str) -> dict[str, Any]:
    return {
        "queue_name": QUEUE,
        "actor_name": "badmsg.good",
        "args": ["x"],
        "kwargs": {},
        "options": {},
        "message_id": entry,
        "message_timestamp": 1700000000000,
    }


def raw(data: bytes) -> Bytes:
    return lambda entry: data


def changed(**changes: Any) -> Bytes:
    return lambda entry: json.dumps({**fields(entry), **changes}).encode()


def without(name: str) -> Bytes:
    return lambda entry: json.dumps({key: value for key, value in fields(entry).items() if key != name}).encode()


def options(**given: Any) -> Bytes:
    return changed(options=given)


def spliced(old: bytes, new: bytes) -> Bytes:
    """What no encoder writes, in the bytes of a good message."""
    return lambda entry: json.dumps(fields(entry)).encode().replace(old, new)


def target(**changes: Any) -> Bytes:
    return options(pipe_target={**fields(str(uuid.uuid4())), **changes})


#: The name of each with its bytes and with words of the reason.
UNREADABLE: dict[str, tuple[Bytes, str]] = {
    "empty": (raw(b""), "can't be decoded"),
    "one NUL": (raw(b"\0"), "can't be decoded"),
    "not JSON": (raw(b"{not json"), "can't be decoded"),
    "a pickle": (raw(b"\x80\x05N."), "can't be decoded"),
    "broken UTF-8": (spliced(b'"x"', b'"\xff\xfe"'), "can't be decoded"),
    "half of it": (lambda entry: json.dumps(fields(entry)).encode()[:60], "can't be decoded"),
    "two of it": (lambda entry: json.dumps(fields(entry)).encode() * 2, "can't be decoded"),
    "nested deeper than any stack": (spliced(b'"x"', b"[" * 100_000 + b"]" * 100_000), "can't be decoded"),
    "never closed": (raw(b"[" * 100_000), "can't be decoded"),
    "a number of 5,000 digits": (spliced(b'"x"', b"9" * 5000), "can't be decoded"),
    "a list": (raw(b"[1, 2]"), "must be an object, not list"),
    "a number": (raw(b"7"), "must be an object, not int"),
    "null": (raw(b"null"), "must be an object"),
    "a text": (raw(b'"x"'), "must be an object, not str"),
    "no keys": (raw(b"{}"), "queue_name must be text, and is missing"),
    **{f"without {name}": (without(name), f"{name} must be ") for name in fields("")},
    **{f"{name} null": (changed(**{name: None}), f"{name} must be ") for name in fields("")},
    **{f"{name} true": (changed(**{name: True}), f"{name} must be ") for name in fields("")},
    "args a text": (changed(args="x"), "args must be a list, not str"),
    "args an object": (changed(args={"x": 1}), "args must be a list, not dict"),
    "kwargs a list": (changed(kwargs=["x"]), "kwargs must be an object, not list"),
    "options a list": (changed(options=[["max_age", 1]]), "options must be an object, not list"),
    "message_id a number": (changed(message_id=7), "message_id must be text"),
    "message_id of another": (changed(message_id=str(uuid.uuid4())), "was stored as"),
    "message_timestamp a text": (changed(message_timestamp="now"), "message_timestamp must be a number"),
    "another queue": (changed(queue_name="email"), "queue_name is 'email'"),
    "no queue of ours": (changed(queue_name="nowhere"), "queue_name is 'nowhere'"),
    "a delay queue of Dramatiq": (changed(queue_name="default.DQ"), "queue_name is 'default.DQ'"),
    "an actor with a line break": (changed(actor_name="a\nb"), "actor_name must be printable"),
    "an actor with NUL": (changed(actor_name="a\0b"), "actor_name must be printable"),
    "half of a surrogate pair as actor": (changed(actor_name="\ud800"), "actor_name must be printable"),
    "a field too many": (changed(reply_to="x"), "reply_to"),
    **{
        f"option {name} {value!r}": (options(**{name: value}), f"options.{name} must be a number")
        for name in ("max_age", "time_limit", "max_retries", "min_backoff", "max_backoff", "retries", "unknown_for_ms")
        for value in ("5", -1, True, [1], {"ms": 1}, float("nan"), 10**400)
    },
    **{
        f"option {name} {value!r}": (options(**{name: value}), f"options.{name} must be a number")
        for name in ("priority", "delay")
        for value in ("5", False, [1], {"ms": 1}, float("nan"), float("-inf"), 10**400)
    },
    **{
        f"option {name} {value!r}": (options(**{name: value}), f"options.{name} must be the name")
        for name in ("on_success", "on_failure")
        for value in (7, True, ["badmsg.good"], {"actor_name": "badmsg.good"})
    },
    **{
        f"option throws {value!r}": (options(throws=value), "options.throws holds")
        for value in ("ValueError", ["ValueError"], 7, {})
    },
    **{
        f"option format {value!r}": (options(format=value), "options.format must be")
        for value in ("2", 0, -1, 1.5, True, [2], {})
    },
    "pipe_target a text": (options(pipe_target="badmsg.good"), "options.pipe_target must be a message"),
    "pipe_target a list": (options(pipe_target=[fields("")]), "options.pipe_target must be a message"),
    "pipe_target of nothing": (options(pipe_target={}), "options.pipe_target.queue_name must be text"),
    "pipe_target with args null": (target(args=None), "options.pipe_target.args must be a list"),
    "pipe_target to nowhere": (target(queue_name="nowhere"), "options.pipe_target.queue_name is no known queue"),
    "pipe_target that is no UUID": (target(message_id="7"), "options.pipe_target.message_id must be a UUID"),
    "pipe_target with a wrong delay": (target(options={"delay": "1"}), "options.pipe_target.options.delay must be"),
    "pipe_target with a field too many": (target(reply_to="x"), "reply_to"),
}

#: Wrong, and known to be so by the actor only.
MISFITS: dict[str, tuple[Bytes, str]] = {
    "an argument too few": (changed(actor_name="badmsg.strict", args=[]), "missing 1 required positional argument"),
    "an argument too many": (changed(actor_name="badmsg.strict", args=[1, 2]), "takes 1 positional argument"),
    "an unknown argument": (changed(actor_name="badmsg.strict", kwargs={"m": 1}), "unexpected keyword argument 'm'"),
    "an argument twice": (changed(actor_name="badmsg.strict", kwargs={"n": 1}), "multiple values for argument 'n'"),
    "an argument too few, async": (changed(actor_name="badmsg.async", args=[]), "missing 1 required"),
    "a payload of another type": (changed(actor_name="badmsg.job", args=[], kwargs={"n": "many"}), "valid integer"),
    "a payload with nothing": (changed(actor_name="badmsg.job", args=[]), "n: Field required"),
    "a payload by position": (changed(actor_name="badmsg.job", args=[1, 2]), "too many positional arguments"),
}

#: Unusual, and no reason to refuse them.
ODD: dict[str, Bytes] = {
    "all options null": options(
        **dict.fromkeys(("max_age", "time_limit", "max_retries", "priority", "throws", "on_success", "format"))
    ),
    "a due time that is a text": options(eta="tomorrow"),
    "a due time that is an object": options(eta={"in": "a day"}),
    "options that nothing here reads": options(group_completion_uuid=7, traceback=[1], broadcast={}),
    "no time limit": spliced(b'"options": {}', b'"options": {"time_limit": Infinity}'),
    "NUL in an argument": changed(args=["a\0b"]),
    "half of a surrogate pair": changed(args=["\ud800"]),
    "a number of 400 digits": changed(kwargs={"n": 10**400}),
    "nested 150 deep": spliced(b'"kwargs": {}', b'"kwargs": {"n": ' + b"[" * 150 + b"]" * 150 + b"}"),
    "nested 400 deep": spliced(b'"kwargs": {}', b'"kwargs": {"n": ' + b"[" * 400 + b"]" * 400 + b"}"),
    "spread over lines": lambda entry: json.dumps(fields(entry), indent=2).encode(),
    "its own format said": options(format=1),
}


def a_row(data: bytes, entry: str, actor: str = "badmsg.good") -> Row:
    return Row(entry=entry, actor=actor, priority=5, delay_ms=None, attempt=1, max_deliveries=3, data=data)


def enqueue(broker: RedisBroker, *rows: Row) -> None:
    assert broker.wire.enqueue(QUEUE, rows, (uuid.uuid4().hex, 1))


def bytes_kept(broker: RedisBroker, entry: str | bytes) -> bytes | None:
    kept = broker.client.hget(Keys(broker.namespace, QUEUE).dead_messages, entry)
    return kept and split_header(kept)[1]


def end_of(broker: RedisBroker, entry: str) -> tuple[str, str, str, str]:
    """State, attempt, and type and message of the error."""
    record = broker.find_record(entry)
    assert record is not None
    error = json.loads(record.get("error", "{}"))
    return record["state"], record["attempt"], error.get("type", ""), error.get("message", "")


def pids(service: Service) -> set[str]:
    return {line.split()[-2] for line in service.notes()}


@pytest.mark.parametrize(("table", "kind"), [(UNREADABLE, "unreadable"), (MISFITS, "")], ids=["unreadable", "misfits"])
def test_each_bad_message_is_a_dead_letter_with_its_reason_and_bytes_and_its_neighbours_finish(
    service: Service, broker: RedisBroker, table: dict[str, tuple[Bytes, str]], kind: str
) -> None:
    sent: dict[str, tuple[str, bytes]] = {}
    rows: list[Row] = []
    for name, (build, _) in table.items():
        entry, beside = str(uuid.uuid4()), str(uuid.uuid4())
        sent[name] = (entry, build(entry))
        rows += [a_row(sent[name][1], entry), a_row(changed(args=[name])(beside), beside)]
    enqueue(broker, *rows)
    service.start_worker("worker", **ACTORS)
    eventually(lambda: broker.wire.backlog(QUEUE) == 0, 60)

    for name, (_, reason) in table.items():
        entry, data = sent[name]
        state, attempt, type_, message = end_of(broker, entry)
        assert (name, state, attempt) == (name, "dead", "1"), "no repetition can mend it"
        assert reason in message, name
        assert type_ == kind or not kind, name
        assert bytes_kept(broker, entry) == data, name
    assert len(service.notes()) == len(table), "each neighbour has run once, and no bad message"
    assert len(pids(service)) == 1, "in the one process"
    assert service.is_ready("worker")


def test_what_is_only_unusual_runs(service: Service, broker: RedisBroker) -> None:
    entries = {name: str(uuid.uuid4()) for name in ODD}
    enqueue(broker, *[a_row(build(entries[name]), entries[name]) for name, build in ODD.items()])
    service.start_worker("worker", **ACTORS)
    eventually(lambda: broker.wire.backlog(QUEUE) == 0, 60)
    assert {name: end_of(broker, entry)[0] for name, entry in entries.items()} == dict.fromkeys(ODD, "succeeded")


def test_a_type_error_of_the_actor_s_own_is_tried_again(service: Service, broker: RedisBroker) -> None:
    message = send(broker, "badmsg.broken", 1)
    service.start_worker("worker", **ACTORS)
    eventually(lambda: state_of(broker, message) == "dead")
    assert end_of(broker, message.message_id) == ("dead", "3", "TypeError", "unsupported operand")


def test_a_message_beyond_the_limit_is_a_dead_letter_and_one_below_it_runs(
    service: Service, broker: RedisBroker
) -> None:
    service.start_worker("worker", **ACTORS)
    huge, large, small = (str(uuid.uuid4()) for _ in range(3))
    data = changed(kwargs={"n": "x" * 10_000_000})(huge)
    enqueue(
        broker,
        a_row(data, huge),
        a_row(changed(kwargs={"n": "x" * 8_000_000})(large), large),
        a_row(changed()(small), small),
    )
    eventually(lambda: broker.wire.backlog(QUEUE) == 0, 60)
    state, _, type_, message = end_of(broker, huge)
    assert (state, type_) == ("dead", "too-large")
    assert "CALLBOARD_MAX_MESSAGE_BYTES" in message
    assert bytes_kept(broker, huge) == data
    assert [end_of(broker, entry)[0] for entry in (large, small)] == ["succeeded"] * 2
    assert len(pids(service)) == 1
    with pytest.raises(PayloadError, match=r"10000\d\d\d bytes; the limit is 8388608"):
        send(broker, "badmsg.good", "x", n="x" * 10_000_000)
    assert broker.wire.backlog(QUEUE) == 0


def test_what_a_newer_release_knows_waits_for_it_and_is_a_dead_letter_after_its_time(
    service: Service, broker: RedisBroker
) -> None:
    seconds = {"CALLBOARD_UNKNOWN_ACTOR_SECONDS": "6"}
    old = service.start_worker("old", **ACTORS, **seconds)
    newer, odd_newer, unknown, untimely = (str(uuid.uuid4()) for _ in range(4))
    written = {
        newer: options(format=2)(newer),
        # What a later format may change is not for this release to judge.
        odd_newer: changed(args=None, lane="fast", options={"format": 7, "max_age": "1 h", "unknown_for_ms": "x"})(
            odd_newer
        ),
        unknown: changed(actor_name="gone")(unknown),
        untimely: changed(actor_name="sample.note", args=[], kwargs={"word": "w"})(untimely),
    }
    enqueue(broker, *[a_row(data, entry) for entry, data in written.items()])
    eventually(lambda: all(end_of(broker, entry)[0] == "scheduled" for entry in written))
    old.send_signal(signal.SIGTERM)
    assert old.wait(20) == 0
    service.start_worker("new", **{**ACTORS, "CALLBOARD_ACTORS": "badmsg_jobs,sample_jobs"}, **seconds)
    eventually(lambda: broker.wire.backlog(QUEUE) == 0, 30)
    assert end_of(broker, untimely)[:2] == ("succeeded", "1")
    for entry, type_, reason in (
        (newer, "newer-format", "has the format 2, and this release reads up to 1"),
        (odd_newer, "newer-format", "has the format 7"),
        (unknown, "dramatiq.errors.ActorNotFound", "gone"),
    ):
        state, attempt, found, message = end_of(broker, entry)
        assert (state, attempt, found) == ("dead", "1", type_)
        assert reason in message
        kept = json.loads(bytes_kept(broker, entry) or b"")
        kept["options"].pop("unknown_for_ms", None)
        expected = json.loads(written[entry])
        expected["options"].pop("unknown_for_ms", None)
        assert kept == expected, "as it was sent, without the note of its wait"


def test_a_message_without_our_header_is_a_dead_letter_wherever_it_waits(service: Service, broker: RedisBroker) -> None:
    """Anybody can write to the server: no script fails for it, and what stands beside it goes on."""
    keys = Keys(broker.namespace, QUEUE)
    garbage = [b"", b"\0", b"\xff\xfe\n{}", b"{}", b"1 2 3\n{}", b"1 x 1 3 badmsg.good\n{}", b"1 2 3 4 a\0b\n{}"]
    garbage += [b"9" * 400 + b" 1 1 3 badmsg.good\n{}", b"1 " + b"9" * 20 + b" 1 3 badmsg.good\n{}"]
    ready = {str(uuid.uuid4()): data for data in garbage}
    delayed = {str(uuid.uuid4()): data for data in garbage}
    lapsed = {str(uuid.uuid4()): data for data in garbage}
    named = {"\u00e4\u00f6".encode(): b"x", b"\xff": b"x", b"with space": b"x"}
    goods = [str(uuid.uuid4()) for _ in range(20)]
    enqueue(broker, *[a_row(changed()(entry), entry) for entry in goods[:10]])
    for entry, data in {**ready, **delayed, **lapsed, **named}.items():
        broker.client.hset(keys.messages, entry, data)
    broker.client.zadd(keys.ready, dict.fromkeys((*ready, *named), 5 * 2**49))
    broker.client.zadd(keys.delayed, dict.fromkeys(delayed, 1))
    broker.client.zadd(keys.deadlines, dict.fromkeys(lapsed, 1))
    broker.client.hset(keys.leases, mapping=dict.fromkeys(lapsed, "1 1 somebody"))
    enqueue(broker, *[a_row(changed()(entry), entry) for entry in goods[10:]])

    for entry in ready:
        broker.find_record(entry)  # that nobody can tell what it is must be no error
    service.start_worker("worker", **ACTORS)
    eventually(lambda: broker.wire.backlog(QUEUE) == 0, 30)
    assert [end_of(broker, entry)[0] for entry in goods] == ["succeeded"] * 20
    assert counts(service) == {"good-x": 20}
    for entry, data in {**ready, **delayed, **lapsed}.items():
        assert end_of(broker, entry)[::2] == ("dead", "unreadable")
        assert bytes_kept(broker, entry) == data
    assert all(bytes_kept(broker, entry) == data for entry, data in named.items())
    assert "can't be reached" not in service.log("worker"), "no script has failed"


def test_a_message_that_somebody_spoils_while_it_runs_holds_up_no_settlement(
    service: Service, broker: RedisBroker
) -> None:
    keys = Keys(broker.namespace, QUEUE)
    service.start_worker("worker", **ACTORS)
    spoilt, deleted = (send(broker, "badmsg.slow_failure") for _ in range(2))
    eventually(lambda: counts(service)["failing"] == 2)
    broker.client.hset(keys.messages, spoilt.message_id, b"garbage")
    broker.client.hdel(keys.messages, deleted.message_id)
    beside = send(broker, "badmsg.good", "beside")
    eventually(lambda: state_of(broker, beside) == "succeeded")
    eventually(lambda: bytes_kept(broker, spoilt.message_id) == b"garbage")
    eventually(lambda: not broker.client.exists(keys.ready, keys.leases, keys.deadlines, keys.messages))
    assert counts(service)["failing"] == 2
    assert "can't be settled" not in service.log("worker")


def test_every_queue_bears_a_bad_message(service: Service, broker: RedisBroker) -> None:
    served = [policy.name for policy in QUEUES.values() if not policy.needs_database]
    entries = {queue: str(uuid.uuid4()) for queue in served}
    for queue, entry in entries.items():
        broker.wire.enqueue(queue, [a_row(b"\xff", entry)], (uuid.uuid4().hex, 1))
    service.start_worker("worker", **ACTORS)
    eventually(lambda: all(state == "dead" for state, *_ in (end_of(broker, entry) for entry in entries.values())))
