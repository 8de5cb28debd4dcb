"""The process of single jobs: runs one after another, each alone. See isolated_process.py."""

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
from typing import Any, NamedTuple, cast

from dramatiq.errors import ActorNotFound
from dramatiq.middleware import AsyncIO

from service.broker import broker
from service.broker.message_checks import payload_version_of, scheduled_by
from service.broker.messages import decode_message
from service.middleware.answers import pack_error, pack_result
from service.middleware.context import JobContext, set_current_job
from service.middleware.isolated_limits import MemoryLimit, SoftLimit
from service.middleware.isolated_process import GO, LENGTH_BYTES, READY, UP, Request
from service.observe.logs import configure_logs
from service.settings import get_settings

IDLE_SECONDS = 10.0
WATCH_SECONDS = 0.1
#: For what the job has said last.
NOTES_SECONDS = 2.0
ENTRY = "service.actors"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main() -> None:
    """Run jobs until none comes for a while. Standard input and output are not theirs: they write to standard error."""
    requests = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    _leave_signals_to_the_worker()
    limits = _Limits(SoftLimit(), MemoryLimit())
    threading.Thread(target=_watch, args=(os.getppid(), limits.soft), name="watchdog", daemon=True).start()
    configure_logs(get_settings())
    for middleware in broker.middleware:
        if isinstance(middleware, AsyncIO):
            cast("Any", middleware).before_worker_boot(broker, None)  # the event loop of `async def` actors
    answers.write(UP)
    while request := _next(requests):
        job = _prepared(request, limits)
        answers.write(READY)
        assert _read(requests, len(GO)) == GO
        answer = job()
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "big"))
        answers.write(answer)
        if limits.memory.is_spent:
            break
    os._exit(0)


class _Limits(NamedTuple):
    soft: SoftLimit
    memory: MemoryLimit


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


def _watch(worker: int, soft_limit: SoftLimit) -> None:
    # Whose worker is dead runs elsewhere in a moment: two at a time would be one too many.
    while os.getppid() == worker:
        time.sleep(WATCH_SECONDS)
        soft_limit.look()
    os.killpg(0, signal.SIGKILL)  # itself, and what its job has started


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


def _prepared(data: bytes, limits: _Limits) -> Callable[[], bytes]:
    """Do what comes before the job, and return the job: it returns its packed outcome, and never raises."""
    request: Request = pickle.loads(data)  # noqa: S301 - the worker wrote it
    options: dict[str, Any] = {}
    try:
        sys.path[:] = request.path
        message = decode_message(request.message)
        actor = _actor(message.actor_name, request.module)
        options = actor.options
    except BaseException as error:  # noqa: BLE001 - an actor's module may do anything
        failed = error
        return lambda: pack_error(failed, options)

    def run() -> bytes:
        context = JobContext(
            message.message_id,
            actor.actor_name,
            message.queue_name,
            request.lease.attempt,
            broker,
            request.lease,
            request.inherited,
        )
        context.payload_version = payload_version_of(message.options)
        context.scheduled_by = scheduled_by(message.options)
        set_current_job(context)
        try:
            with limits.soft.within(request.soft_limit_seconds), limits.memory.within(request.memory_limit_mb):
                result = actor(*message.args, **message.kwargs)
            return pack_result(result, context.follow_ups.close())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker is to treat it
            return pack_error(error, options)
        finally:
            set_current_job(None)
            broker.notes.close(NOTES_SECONDS)

    return run


def _actor(name: str, module: str) -> Any:
    try:
        importlib.import_module(module)
        return broker.get_actor(name)
    except (ImportError, ActorNotFound):
        # A function of a library, made an actor elsewhere: what the worker has imported has it.
        importlib.import_module(ENTRY)
        return broker.get_actor(name)


if __name__ == "__main__":
    main()
