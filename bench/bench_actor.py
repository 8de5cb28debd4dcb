"""An actor with a small payload."""

from service.job import job


@job(name="bench.plain", queue="default")
def plain(*, key: str, number: int) -> None: ...
