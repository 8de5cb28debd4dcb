"""The event loop of `async def` actors: one for a worker process, and no job can end it for the others."""

import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from queue import Empty
from typing import Any, TypeVar, cast

from dramatiq.actor import Actor
from dramatiq.asyncio import EventLoopThread, async_to_sync, get_event_loop_thread, set_event_loop_thread
from dramatiq.broker import Broker
from dramatiq.middleware import AsyncIO, SkipMessage

from service.broker import RedisBroker
from service.broker.delivery import Delivery
from service.middleware.async_runs import AsyncRun, contained

R = TypeVar("R")
LOOK_SECONDS = 0.1
#: What the call of an actor returns whose job has left the thread.
LEFT = object()

logger = logging.getLogger(__name__)


class EventLoop(AsyncIO):
    """Dramatiq's AsyncIO, with a loop that outlives SystemExit and KeyboardInterrupt in a coroutine.

    A job that may leave its thread passes through the worker's threads twice: to begin, and to end.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The names of the actors whose jobs may leave their threads.
        self._leaving: set[str] = set()

    def after_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        # Whoever has wrapped the function, or calls it in a way of his own, expects it to return when the job is over.
        is_plain = type(actor) is Actor or "leaves_thread" in vars(type(actor))
        if is_plain and getattr(actor.fn, "leaves_thread", None) is actor.fn:
            self._leaving.add(actor.actor_name)

    def before_worker_boot(self, broker: Broker, worker: Any) -> None:
        thread = _Thread(self.logger)
        thread.start(timeout=5.0)
        set_event_loop_thread(thread)

    def after_worker_thread_boot(self, broker: Broker, thread: Any) -> None:
        assert isinstance(broker, RedisBroker)
        thread.process_message = partial(self._process, broker, thread, thread.process_message)

    def before_worker_thread_shutdown(self, broker: Broker, thread: Any) -> None:
        # What has left its threads is to end in one of them.
        assert isinstance(broker, RedisBroker)
        while any(delivery.left for holdings in list(broker.holdings.values()) for delivery in holdings.running()):
            try:
                item = thread.work_queue.get(timeout=LOOK_SECONDS)
            except Empty:
                continue
            if item.message.left:
                thread.process_message(item.message)
            else:
                broker.release([item.message])
                thread.work_queue.task_done()

    def _process(self, broker: RedisBroker, thread: Any, in_thread: Callable[[Any], None], delivery: Delivery) -> None:
        if delivery.hooks and isinstance(delivery.left, AsyncRun):
            run = delivery.left
            delivery.hooks.run(_end, broker, thread, delivery, run.result, run.error)
        elif (
            self._leaving
            and broker.aliases.get(delivery.actor_name, delivery.actor_name) in self._leaving
            and not delivery.lease.is_suspect
        ):
            delivery.hooks = copy_context()
            run = delivery.hooks.run(_begin, broker, thread, delivery)
            if run:
                run.half_over()
        else:
            in_thread(delivery)


class _Thread(EventLoopThread):
    # A worker that ends in another way than by stopping must not wait for this thread.
    daemon = True

    def run_coroutine(self, coro: Awaitable[R]) -> R:
        return cast("Any", super()).run_coroutine(contained(coro))


async def _nothing() -> None: ...


_MADE_SYNC = async_to_sync(_nothing).__code__  # pyright: ignore[reportFunctionMemberAccess]


def coroutine_function_of(function: Any) -> Callable[..., Any] | None:
    """Return what Dramatiq has wrapped so that a thread waits for it, or None for any other function."""
    return function.__wrapped__ if getattr(function, "__code__", None) is _MADE_SYNC else None


def begin_run(broker: RedisBroker, delivery: Delivery, function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Begin a coroutine function that needs no thread any more. Returns False where the thread must wait for it."""
    thread, work_queue = get_event_loop_thread(), broker.life.work_queue
    if thread is None or work_queue is None:
        return False
    coroutine = function(*args, **kwargs)  # first: arguments that do not fit must not take a slot
    if not broker.leave_thread(delivery):
        coroutine.close()
        return False

    def on_end(delivery: Delivery) -> None:
        broker.slots.come_back(delivery.lease.queue)
        work_queue.put_again(delivery)

    AsyncRun(thread.loop, delivery, on_end).begin(coroutine)
    return True


def _begin(broker: RedisBroker, thread: Any, delivery: Delivery) -> AsyncRun | None:
    """Return the run that has left this thread, or None where the job has ended in it."""
    result, error = None, None
    try:
        broker.emit_before("process_message", delivery)
        if not delivery.failed:
            result = broker.get_actor(delivery.actor_name)(*delivery.args, **delivery.kwargs)
            if result is LEFT:
                return cast("AsyncRun", delivery.left)
    except BaseException as raised:  # noqa: BLE001 - as Dramatiq's own: whatever it is, the chain is to treat it
        error = raised
    _end(broker, thread, delivery, result, error)
    return None


def _end(broker: RedisBroker, thread: Any, delivery: Delivery, result: Any, error: BaseException | None) -> None:
    """What Dramatiq does after an actor's function."""
    stuff_exception = cast("Any", delivery).stuff_exception
    try:
        if error is None:
            broker.emit_after("process_message", delivery, result=result)
        elif isinstance(error, SkipMessage):
            if delivery.failed:
                stuff_exception(error)
            broker.emit_after("skip_message", delivery)
        else:
            stuff_exception(error)
            broker.emit_after("process_message", delivery, exception=error)
    finally:
        thread.consumers[delivery.queue_name].post_process_message(delivery)
        thread.work_queue.task_done()
        delivery.left = None
        cast("Any", delivery).clear_exception()
