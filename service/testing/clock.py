"""The time of a test: it stands still until the test moves it."""


class Clock:
    """Moves delays and the waits before retries, and nothing else: not `time.time()`, not a time limit."""

    def __init__(self) -> None:
        self.now_ms = 0

    @property
    def seconds(self) -> float:
        """What has passed since the test began."""
        return self.now_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass: what comes due by then is run by the next `drain`. Raises ValueError for less than nothing."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: time does not go back")
        self.now_ms += round(seconds * 1000)
