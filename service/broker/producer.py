"""The number of a send: by it Redis tells a client's repetition of one send from a further send of the same message."""

import os
from itertools import count
from threading import local
from uuid import uuid4


class Producer(local):
    """One for each thread, whose sends follow one another: so the newest number is all that Redis has to remember."""

    def __init__(self) -> None:
        self._pid = 0
        self._renew()

    def next_send(self) -> tuple[str, int]:
        """Return the producer's name and the number of its next send."""
        self._renew_after_fork()
        return self._name, next(self._numbers)

    def next_pipelined_send(self) -> tuple[str, int]:
        """Return the same for one of several sends that are under way together: two that follow have other names."""
        self._renew_after_fork()
        number = next(self._numbers)
        return f"{self._name}-{number % 2}", number

    def _renew_after_fork(self) -> None:
        if self._pid != os.getpid():  # a child after a fork is another producer
            self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._name = uuid4().hex
        self._numbers = count(1)
