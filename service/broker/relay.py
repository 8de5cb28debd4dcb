"""Takes messages from the outgoing lists to the queues that they are for: a step that no script can take at once, since
two queues may be on two servers. A message is stored there first, and removed here after: a relay that dies in between
is repeated by another, and its message, known by a nonce, is stored once.
"""

import logging
from collections.abc import Callable

import redis

from service.broker.background import Background
from service.broker.outgoing import FollowUp

RETRY_SECONDS = 0.5
AT_ONCE = 100
#: One relay at a time works on a queue: several would store the same messages, each in vain but one. For so long it has
#: the queue for AT_ONCE of them; where it dies, another goes on then.
TURN_SECONDS = 2.0
#: How often another one looks whether the turn is over.
LOOK_SECONDS = 0.02
#: For so long a repetition is known.
ONCE_WITHIN_SECONDS = 24 * 3600

logger = logging.getLogger(__name__)


class Relay(Background):
    """Works through the queues that it is called for. When closed, what is left is another worker's."""

    thread_name = "relay"

    def __init__(
        self,
        look: Callable[[str, int], list[bytes]],
        store: Callable[[str, FollowUp], None],
        remove: Callable[[str, bytes], None],
        take_turn: Callable[[str, float], bool],
        end_turn: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._take_turn = take_turn
        self._end_turn = end_turn
        self._look = look
        self._store = store
        self._remove = remove
        self._called: set[str] = set()

    def call(self, queue: str) -> None:
        """Say that the outgoing list of a queue has something."""
        with self._condition:
            self._called.add(queue)
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._called or self._closing)
                if not self._called:
                    return
                queue = self._called.pop()
            try:
                self._relay_all(queue)
            except redis.RedisError as error:
                logger.warning("What jobs sent can't be relayed now, and is kept: %s", error, extra={"queue": queue})
                self._again(queue, RETRY_SECONDS)
            except Exception:
                logger.exception("What jobs sent can't be relayed, and is kept", extra={"queue": queue})
                self._again(queue, RETRY_SECONDS)

    def _relay_all(self, queue: str) -> None:
        while self._look(queue, 1):
            if not self._take_turn(queue, TURN_SECONDS):
                self._again(queue, LOOK_SECONDS)
                return
            try:
                is_more = self._relay(queue)
            finally:
                self._end_turn(queue)
            if not is_more:
                return

    def _again(self, queue: str, after_seconds: float) -> None:
        with self._condition:
            self._called.add(queue)
            # Where this process ends, another's relay finds what is left.
            self._condition.wait_for(lambda: self._closing, after_seconds)
            if self._closing:
                self._called.clear()

    def _relay(self, queue: str) -> bool:
        """Relay some, and return whether there may be more."""
        elements = self._look(queue, AT_ONCE)
        for element in elements:
            try:
                nonce, follow_up = FollowUp.unpack(element)
            except ValueError:
                logger.exception("In the outgoing list stands what Callboard did not write: %.200r", element)
                self._remove(queue, element)
                continue
            self._store(nonce, follow_up)
            self._remove(queue, element)
        return len(elements) == AT_ONCE
