"""What a replay changes in a message, and what it notes of that."""

import inspect
import json
from contextlib import suppress
from time import time
from typing import Any, NamedTuple, cast

from dramatiq.actor import Actor
from dramatiq.message import Message

from service.broker.dead_letter import DeadLetter
from service.broker.message_checks import FORMAT, format_of, payload_version_of
from service.broker.messages import decode_fields, encode_fields, encode_message
from service.broker.tenant_keys import scoped_key
from service.errors import PayloadError, UnreadableMessage
from service.payload import PayloadVersions
from service.payload.contract import PayloadContract, check_json

#: What belongs to the life that has ended.
OF_ONE_LIFE = ("retries", "traceback", "unknown_for_ms", "eta")
TEXT_CHARACTERS = 500
VALUE_CHARACTERS = 200
FIELDS_LISTED = 20


class Edited(NamedTuple):
    """An operator's payload as its actor takes it, and the options that follow from it; None for none of a name."""

    kwargs: dict[str, Any]
    options: dict[str, Any]


def message_of_next_life(letter: DeadLetter, edited: Edited | None) -> bytes:
    """Return the message of a replay, with another payload where one is given. What can't be read stays as it is.

    Its time is new: an age limit counts from the replay on.
    """
    own_options = edited.options if edited else {}
    now_ms = int(time() * 1000)
    try:
        fields = decode_fields(letter.message)
        is_ours = format_of(fields) <= FORMAT and isinstance(fields.get("options"), dict)
    except UnreadableMessage:
        fields, is_ours = {}, False
    if edited and not is_ours:
        made: Message[Any] = Message(
            queue_name=letter.original_queue,
            actor_name=letter.function,
            args=(),
            kwargs=edited.kwargs,
            options=_given(edited.options),
            message_id=letter.job_id,
            message_timestamp=now_ms,
        )
        return encode_message(made)
    if not is_ours:
        return letter.message
    options = {name: value for name, value in fields["options"].items() if name not in OF_ONE_LIFE}
    options = _given({**options, **own_options, "replayed_ms": now_ms})
    arguments: dict[str, Any] = {"args": [], "kwargs": edited.kwargs} if edited else {}
    return encode_fields({**fields, **arguments, "options": options, "message_timestamp": now_ms})


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def edit(letter: DeadLetter, actor: Actor[..., Any], payload: object) -> Edited:
    """Return an operator's payload as it is sent. Raises PayloadError, which names the field."""
    kwargs = _checked(actor, payload)
    versions: PayloadVersions | None = actor.options.get("payload_versions")
    options: dict[str, Any] = {"payload_version": versions.current if versions else None}
    keys_for: Any = getattr(actor, "keys_for", None)
    if keys_for:
        tenant = _tenant_of(letter)
        for name, key in keys_for(kwargs).items():
            if not _is_named_for_the_send(name, letter, actor, versions):
                options[name] = _own(key, tenant)
    return Edited(kwargs, options)


def key_in_place(edited: Edited | None) -> str | None:
    """Return the key that takes the place of the job's own, empty for none; or None where it keeps its own."""
    if edited is None or "idempotency_key" not in edited.options:
        return None
    return edited.options["idempotency_key"] or ""


def unique_key_of(data: bytes) -> str:
    """Return the unique key of an encoded message, empty for none."""
    if b"unique_key" not in data:
        return ""
    with suppress(UnreadableMessage):
        given = decode_fields(data).get("options")
        options = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        key = options.get("unique_key")
        return scoped_key(key, options.get("tenant")) if isinstance(key, str) and key else ""
    return ""


def _is_named_for_the_send(option: str, letter: DeadLetter, actor: Any, versions: PayloadVersions | None) -> bool:
    """Whether a key of the job is none that its actor has made of its payload: then it stays as it is."""
    try:
        fields = decode_fields(letter.message)
        payload = actor.contract.document_of(tuple(fields["args"]), fields["kwargs"])
        if versions:
            payload = versions.upgrade(payload, payload_version_of(fields["options"]))
        made, given = actor.keys_for(payload)[option], fields["options"].get(option)
        # The release before kept a tenant's keys as they were made, of jobs that no request had sent.
        return given not in (made, _own(made, fields["options"].get("tenant")))
    except Exception:  # noqa: BLE001 - what is being mended may have any shape
        return False


def _own(key: str | None, tenant: object) -> str | None:
    return None if key is None else scoped_key(key, tenant)


def _tenant_of(letter: DeadLetter) -> object:
    try:
        return decode_fields(letter.message)["options"].get("tenant")
    except Exception:  # noqa: BLE001 - what is being mended may have any shape
        return None


def _checked(actor: Actor[..., Any], payload: object) -> dict[str, Any]:
    contract = getattr(actor, "contract", None)
    if isinstance(contract, PayloadContract):
        return contract.parse(payload)
    if not isinstance(payload, dict):
        raise PayloadError(actor.actor_name, [("", "must be a JSON object")])
    check_json(payload, actor.actor_name)  # pyright: ignore[reportUnknownArgumentType]
    try:
        inspect.signature(actor.fn).bind(**cast("dict[str, Any]", payload))
    except TypeError as error:
        raise PayloadError(actor.actor_name, [("", str(error))]) from None
    except ValueError:
        pass  # a function of C that shows no signature
    return cast("dict[str, Any]", payload)


def note(letter: DeadLetter, by: str, why: str, kwargs: dict[str, Any] | None) -> str:
    """Return the line about a replay for the job's log, as JSON: who, why, and what of the payload is different."""
    line: dict[str, Any] = {"by": by[:TEXT_CHARACTERS], "why": why[:TEXT_CHARACTERS]}
    if kwargs is not None:
        line["changes"] = _difference((letter.payload or {}).get("kwargs"), kwargs)
    return json.dumps(line)


def _difference(before: object, after: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the fields that differ, each `from` and `to` as the beginning of its JSON; no value for no field."""
    old = cast("dict[str, Any]", before) if isinstance(before, dict) else {}
    names = sorted(name for name in {*old, *after} if (name in old) != (name in after) or old[name] != after[name])
    return {
        name[:VALUE_CHARACTERS]: {
            word: json.dumps(side[name])[:VALUE_CHARACTERS]
            for word, side in (("from", old), ("to", after))
            if name in side
        }
        for name in names[:FIELDS_LISTED]
    }
