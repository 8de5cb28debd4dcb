"""What the process of a single job tells its worker of the end: the result or the error, wherever both can be rebuilt.

Objects of the actor's making may fail to be packed, to be unpacked, or to be unpacked in the worker, which has not
imported all that the process has: none of that may be taken for the job's end, or reach the worker's own thread.
"""

import pickle
from typing import Any

from service.broker.outcome import Failure, readable
from service.errors import without_middle
from service.middleware.error_kinds import is_final

#: What a larger error carries is nothing that a retry policy reads; its text is kept anyway.
MOST_ERROR_BYTES = 1024 * 1024
#: Of the text in place of a result that can't be packed.
MOST_TEXT_CHARACTERS = 64 * 1024
#: Of a result as it is packed. Far more than is kept of one, and than the next step of a pipeline may be sent.
MOST_RESULT_BYTES = 8 * 1024 * 1024


def pack_result(result: object, follow_ups: Any) -> bytes:
    """Pack a result and what goes out with it. Never raises: what can't be rebuilt is sent as text.

    A result beyond the limit is not sent at all: the worker would have to hold it, whose memory is not the job's.
    """
    try:
        encoded = pickle.dumps(result)
    except BaseException:  # noqa: BLE001 - foreign objects may do anything
        encoded = b""
    if len(encoded) > MOST_RESULT_BYTES:
        packed = None
        instead = (
            f"(a result of {len(encoded)} bytes is not kept: a process of its own hands over up to "
            f"{MOST_RESULT_BYTES}; store it, and return where it is)"
        )
    else:
        packed = _rebuilt(result, encoded)
        instead = None if packed else without_middle(readable(result), MOST_TEXT_CHARACTERS)
    return pickle.dumps((True, packed, instead, follow_ups))


def pack_error(error: BaseException, options: dict[str, Any]) -> bytes:
    """Pack an error, what is kept of it, and whether its actor's options make it final. Never raises."""
    throws: Any = options.get("throws") or ()
    final = isinstance(error, throws) or is_final(error, options.get("retry_for", ()), options.get("permanent_for", ()))
    packed = _packed(error)
    if packed and len(packed) > MOST_ERROR_BYTES:
        packed = None
    return pickle.dumps((False, packed, final, Failure.of(error)))


def unpack(answer: bytes) -> tuple[bool, Any, Any]:
    """Return (True, result, follow-ups), or (False, error, its Failure).

    In place of an error that can't be rebuilt here: whether it is final.
    """
    succeeded, packed, instead, more = pickle.loads(answer)  # noqa: S301 - our own child's
    try:
        value = pickle.loads(packed) if packed else instead  # noqa: S301
    except Exception:  # noqa: BLE001 - foreign objects may do anything
        value = "(a result that its worker can't read)" if succeeded else instead
    return succeeded, value, more


def _packed(value: object) -> bytes | None:
    try:
        encoded = pickle.dumps(value)
    except BaseException:  # noqa: BLE001
        return None
    return _rebuilt(value, encoded)


def _rebuilt(value: object, encoded: bytes) -> bytes | None:
    """Return what was packed if it can be unpacked as what it was."""
    try:
        rebuilt = pickle.loads(encoded)  # noqa: S301 - our own
    except BaseException:  # noqa: BLE001
        return None
    return encoded if type(rebuilt) is type(value) else None
