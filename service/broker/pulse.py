"""Whether the consumers of this process still come round: what the liveness probe asks."""

import time


class Pulse:
    """When each consumer was last seen. One that waits for Redis, or for a thread, comes round all the same."""

    def __init__(self) -> None:
        self._beats: dict[str, float] = {}

    def beat(self, queue: str) -> None:
        """A consumer has come round."""
        self._beats[queue] = time.monotonic()

    def silent(self, seconds: float) -> list[str]:
        """Return the queues whose consumers have not come round for so long."""
        since = time.monotonic() - seconds
        return sorted(queue for queue, at in list(self._beats.items()) if at < since)
