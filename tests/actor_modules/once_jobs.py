"""Actors with an idempotency key: they note what they know of it, and their effect."""

import time

from fault_jobs import note

from service.job import current_job, job


@job(name="once.effect", queue="default", idempotency_key="once:{ref}", idempotency_ttl="1h")
def effect(*, ref: str, seconds: float = 1.0) -> str:
    context = current_job()
    note(f"start-{ref}")
    note(f"knows-{context.idempotency_key}-{context.fencing_token}")
    time.sleep(seconds)
    note(f"effect-{ref}")
    return context.job_id


@job(name="once.here", queue="default", idempotency_key="wide:{ref}", idempotency_scope="global")
def here(*, ref: str) -> str:
    return effect.fn(ref=ref)


@job(name="once.there", queue="email", idempotency_key="wide:{ref}", idempotency_scope="global")
def there(*, ref: str) -> str:
    return effect.fn(ref=ref)
