"""The process of suspects: runs one after another, each alone. See quarantine_process.py."""

import importlib
import os
import pickle
import select
from typing import Any, cast

from dramatiq.middleware import AsyncIO

from service.broker import broker
from service.broker.messages import decode_message
from service.middleware.context import JobContext, set_current_job
from service.middleware.quarantine import RemoteError
from service.middleware.quarantine_process import BEGUN, LENGTH_BYTES
from service.observe.logs import configure_logs
from service.settings import get_settings

IDLE_SECONDS = 10.0


def main() -> None:
    """Run jobs until none comes for a while. Standard input and output are not theirs: they write to standard error."""
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    configure_logs(get_settings())
    for middleware in broker.middleware:
        if isinstance(middleware, AsyncIO):
            cast("Any", middleware).before_worker_boot(broker, None)  # the event loop of `async def` actors
    while request := _next(requests):
        answers.write(BEGUN)
        answer = _encode(_run(*pickle.loads(request)))  # noqa: S301 - the worker wrote it
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "big"))
        answers.write(answer)
    os._exit(0)


def _next(requests: int) -> bytes:
    """Return the next request, or nothing where the worker is gone or has had none for a while."""
    if not select.select([requests], [], [], IDLE_SECONDS)[0]:
        return b""
    return _read(requests, int.from_bytes(_read(requests, LENGTH_BYTES), "big"))


def _read(requests: int, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = os.read(requests, count - len(received))
        if not part:
            os._exit(0)
        received += part
    return bytes(received)


def _run(module: str, data: bytes, attempt: int) -> tuple[bool, Any]:
    importlib.import_module(module)
    message = decode_message(data)
    actor = broker.get_actor(message.actor_name)
    set_current_job(JobContext(message.message_id, actor.actor_name, message.queue_name, attempt))
    try:
        return True, actor(*message.args, **message.kwargs)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the worker is to treat it
        return False, error
    finally:
        set_current_job(None)


def _encode(answer: tuple[bool, Any]) -> bytes:
    try:
        encoded = pickle.dumps(answer)
        pickle.loads(encoded)  # noqa: S301 - what can be packed may still not be unpacked
    except Exception:  # noqa: BLE001 - foreign objects may do anything
        succeeded, value = answer
        text = f"{type(value).__name__}: {value}"[:10_000]
        return pickle.dumps((succeeded, text if succeeded else RemoteError(text)))
    return encoded


if __name__ == "__main__":
    main()
