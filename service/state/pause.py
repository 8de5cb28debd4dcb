"""A server that has just let somebody wait for nothing is left alone for a second: others hear so at once."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from time import monotonic

from service.errors import CallboardError

PAUSE_SECONDS = 1.0
#: A failure that took less costs nobody anything, so nobody is kept from trying.
SLOW_SECONDS = 0.5
#: One call after a pause shows whether the server answers again; the next is let through when that one is not back.
TRIAL_SECONDS = 10.0


class Pause:
    """Calls of one server. Thread-safe. `refuse` makes the error for those that are not let through."""

    def __init__(self, refuse: Callable[[str], CallboardError]) -> None:
        self._refuse = refuse
        self._failure: str | None = None
        self._next_try = 0.0
        self._lock = Lock()

    @contextmanager
    def around(self) -> Generator[None]:
        """Make one call. Raises what it raises, or at once what `refuse` makes of the last failure."""
        self._enter()
        started = monotonic()
        failure: str | None = None
        try:
            yield
        except CallboardError as error:
            # A refusal, however long it took, is the answer of a server that works.
            failure = str(error) if error.status == 503 and monotonic() - started > SLOW_SECONDS else None
            raise
        finally:
            with self._lock:
                self._failure = failure
                self._next_try = monotonic() + PAUSE_SECONDS

    def _enter(self) -> None:
        with self._lock:
            if self._failure is None:
                return
            if monotonic() < self._next_try:
                raise self._refuse(self._failure)
            self._next_try = monotonic() + TRIAL_SECONDS
