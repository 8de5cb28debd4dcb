"""The number of a send: by it Redis tells a client's repetition of one send from a further send of the same message."""

from itertools import count
from threading import local
from uuid import uuid4


class Producer(local):
    """One for each thread, whose sends follow one another: so the newest number is all that Redis has to remember."""

    def __init__(self) -> None:
        self._name = uuid4().hex
        self._numbers = count(1)

    def next_send(self) -> tuple[str, int]:
        """Return the producer's name and the number of its next send."""
        return self._name, next(self._numbers)

    def next_pipelined_send(self) -> tuple[str, int]:
        """Return the same for one of several sends that are under way together: two that follow have other names."""
        number = next(self._numbers)
        return f"{self._name}-{number % 2}", number
