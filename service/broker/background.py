"""A part of a process that works from a thread of its own until it is closed."""

from abc import ABC, abstractmethod
from threading import Condition, Thread


class Background(ABC):
    """`_run` waits on `_condition` for work, and returns when it finds `_closing` set and nothing left to do."""

    #: What the thread is called.
    thread_name: str

    def __init__(self) -> None:
        self._condition = Condition()
        self._closing = False
        self._thread: Thread | None = None

    def start(self) -> None:
        """Work until closed."""
        self._closing = False
        self._thread = Thread(target=self._run, name=self.thread_name, daemon=True)
        self._thread.start()

    def close(self, timeout_seconds: float) -> bool:
        """Do what there is, as long as that takes no longer than this. Returns whether it has ended in time."""
        with self._condition:
            thread = self._thread
            self._closing = True
            self._condition.notify()
        if thread is None:
            return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    @abstractmethod
    def _run(self) -> None: ...
