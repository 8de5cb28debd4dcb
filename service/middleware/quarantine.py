"""Runs a suspect in a process of its own: a job that may be what killed a worker can then kill nothing but itself.

Whatever ran in a process that died is a suspect. Alone, the culprit is proved, and the bystanders finish and are
cleared.
The hooks of the chain run in the worker as always; only the actor's function runs in the child.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from dramatiq.actor import Actor
from dramatiq.broker import Broker
from dramatiq.middleware import Middleware

from service.broker.redis_broker import DEFAULT_MAX_DELIVERIES
from service.middleware.context import JobContext, current_job_or_none
from service.middleware.defaults import WrongOptions

INTERRUPTIBLE_SECONDS = 0.2
CHILD = "service.middleware.quarantine_child"


class ProcessDied(Exception):
    """The process of its own in which the job ran has died."""


class RemoteError(Exception):
    """Stands for an error of the child that can't be sent as it is. The message begins with its type."""


class Quarantine(Middleware):
    """Wraps every actor's function when it is declared."""

    @property
    def actor_options(self) -> set[str]:
        return {"max_deliveries"}

    def before_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        most = actor.options.setdefault("max_deliveries", DEFAULT_MAX_DELIVERIES)
        if not isinstance(most, int) or most < 1:
            raise WrongOptions(f"{actor.actor_name}: max_deliveries={most!r} must be a whole number, 1 or more")
        actor.fn = _alone_where_suspect(actor, actor.fn)


def _alone_where_suspect(actor: Actor[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        context = current_job_or_none()
        if context is None or context.suspect is None or context.actor != actor.actor_name:
            return function(*args, **kwargs)
        return _run_alone(function, context)

    return run


def _run_alone(function: Callable[..., Any], context: JobContext) -> Any:
    request = pickle.dumps((function.__module__, context.suspect, context.attempt))
    context.suspect = None
    command = [sys.executable, "-m", CHILD]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - our own
    try:
        answer = _wait_for(child, request)
    finally:
        # A time limit, a lost lease or a shutdown interrupts the wait: the job ends with it.
        if child.poll() is None:
            child.kill()
            child.wait()
    if not answer:
        raise ProcessDied(f"The process of the job ended with {_how(child.returncode)}")
    succeeded, value = pickle.loads(answer)  # noqa: S301 - our own child wrote it
    if succeeded:
        return value
    raise value


def _wait_for(child: "subprocess.Popen[bytes]", request: bytes) -> bytes:
    to_send: bytes | None = request
    while True:
        try:
            return child.communicate(to_send, timeout=INTERRUPTIBLE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            # Back in Python, where what a time limit raises in this thread can arrive. The rest of the request is kept.
            to_send = None


def _how(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
