"""The process of suspects: runs one after another, each alone. See quarantine_process.py."""

import importlib
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

from dramatiq.errors import ActorNotFound
from dramatiq.middleware import AsyncIO

from service.broker import broker
from service.broker.messages import decode_message
from service.broker.outcome import Failure, readable
from service.middleware.context import JobContext, set_current_job
from service.middleware.error_kinds import is_final
from service.middleware.quarantine_process import GO, LENGTH_BYTES, READY, UP
from service.observe.logs import configure_logs
from service.settings import get_settings

IDLE_SECONDS = 10.0
ENTRY = "service.actors"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main() -> None:
    """Run jobs until none comes for a while. Standard input and output are not theirs: they write to standard error."""
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    _leave_signals_to_the_worker()
    threading.Thread(target=_end_with, args=(os.getppid(),), name="watchdog", daemon=True).start()
    configure_logs(get_settings())
    for middleware in broker.middleware:
        if isinstance(middleware, AsyncIO):
            cast("Any", middleware).before_worker_boot(broker, None)  # the event loop of `async def` actors
    answers.write(UP)
    while request := _next(requests):
        job = _prepared(request)
        answers.write(READY)
        assert _read(requests, len(GO)) == GO
        answer = job()
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "big"))
        answers.write(answer)
    os._exit(0)


def _leave_signals_to_the_worker() -> None:
    # A service manager sends its signals to every process of the unit; the worker drains, and ends this one in time.
    # Not ignored, and not passed on to a fork: the programs and processes of a job are to be stopped by a signal.
    for number in SIGNALS:
        signal.signal(number, _nothing)
    os.register_at_fork(after_in_child=_as_usual)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def _as_usual() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _end_with(worker: int) -> None:
    # Whose worker is dead runs elsewhere in a moment: two at a time would be one too many.
    while os.getppid() == worker:
        time.sleep(0.2)
    os._exit(1)


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


def _prepared(request: bytes) -> Callable[[], bytes]:
    """Do what comes before the job, and return the job: it returns its packed outcome, and never raises."""
    module, path, data, attempt = pickle.loads(request)  # noqa: S301 - the worker wrote it
    options: dict[str, Any] = {}
    try:
        sys.path[:] = path
        message = decode_message(data)
        actor = _actor(message.actor_name, module)
        options = actor.options
    except BaseException as error:  # noqa: BLE001 - an actor's module may do anything
        failed = error
        return lambda: _packed_error(failed, options)

    def run() -> bytes:
        set_current_job(JobContext(message.message_id, actor.actor_name, message.queue_name, attempt))
        try:
            return _packed_result(actor(*message.args, **message.kwargs))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker is to treat it
            return _packed_error(error, options)
        finally:
            set_current_job(None)

    return run


def _actor(name: str, module: str) -> Any:
    try:
        importlib.import_module(module)
        return broker.get_actor(name)
    except (ImportError, ActorNotFound):
        # A function of a library, made an actor elsewhere: what the worker has imported has it.
        importlib.import_module(ENTRY)
        return broker.get_actor(name)


def _packed_result(result: object) -> bytes:
    return _packed((True, result, None)) or pickle.dumps((True, readable(result), None))


def _packed_error(error: BaseException, options: dict[str, Any]) -> bytes:
    failure = Failure.of(error)
    # In place of an error that can't be packed: whether it is final.
    if packed := _packed((False, error, failure)):
        return packed
    throws: Any = options.get("throws") or ()
    final = isinstance(error, throws) or is_final(error, options.get("retry_for", ()), options.get("permanent_for", ()))
    return pickle.dumps((False, final, failure))


def _packed(answer: tuple[bool, Any, Any]) -> bytes | None:
    """Pack an answer, or return None: what can be packed may still not be unpacked."""
    try:
        encoded = pickle.dumps(answer)
        pickle.loads(encoded)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - foreign objects may do anything
        return None
    return encoded


if __name__ == "__main__":
    main()
