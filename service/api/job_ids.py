"""Job ids in paths: one job has one address."""

from uuid import UUID

from fastapi import HTTPException

from service.errors import shorten


def job_id_of(written: str) -> UUID:
    """Read the id in a path. What is none is not found, as an id of no job."""
    try:
        # UUID() takes braces, urn:uuid: and more.
        if str(job_id := UUID(written)) == written.lower():
            return job_id
    except ValueError:
        pass
    raise HTTPException(404, f"Job {shorten(written)} not found")
