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
    ) -> None:
        super().__init__()
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
                while self._relay(queue):
                    pass
            except redis.RedisError as error:
                logger.warning("What jobs sent can't be relayed now, and is kept: %s", error, extra={"queue": queue})
                self._again(queue)
            except Exception:
                logger.exception("What jobs sent can't be relayed, and is kept", extra={"queue": queue})
                self._again(queue)

    def _again(self, queue: str) -> None:
        with self._condition:
            self._called.add(queue)
            # Where this process ends, another's relay finds what is left.
            self._condition.wait_for(lambda: self._closing, RETRY_SECONDS)
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
