"""`/actors`: the types of jobs that this release knows, what each is called with, and what holds for it."""

from typing import Any, cast

from dramatiq.actor import Actor
from dramatiq.errors import ActorNotFound
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel

from service.broker import RedisBroker
from service.broker.actor_names import OWN_ACTORS
from service.broker.once import Scope
from service.broker.rows import DEFAULT_MAX_DELIVERIES
from service.errors import shorten
from service.job import Job

router = APIRouter(tags=["actors"])


class ActorPolicy(BaseModel):
    """What holds for an actor's jobs, its queue's defaults included. Times are in seconds."""

    priority: int
    max_attempts: int
    backoff_seconds: float
    backoff_cap_seconds: float
    backoff_factor: float
    timeout_seconds: float | None = None
    soft_timeout_seconds: float | None = None
    expires_seconds: float | None = None
    max_deliveries: int
    isolation: str
    memory_limit_mb: int | None = None
    idempotency_ttl_seconds: float | None = None
    idempotency_scope: Scope | None = None
    is_keyed: bool
    is_unique: bool


class ActorView(BaseModel):
    """A type of job. `payload` is a JSON Schema, and null for a plain Dramatiq actor, which takes what it is given."""

    name: str
    aliases: list[str]
    queue: str
    description: str
    payload: dict[str, Any] | None
    payload_version: int
    policy: ActorPolicy


class ActorList(BaseModel):
    """All actors, by name."""

    actors: list[ActorView]


@router.get("/actors")
async def list_actors(request: Request) -> ActorList:
    """List the types of jobs."""
    broker: RedisBroker = request.app.state.broker
    actors = cast("dict[str, Actor[..., Any]]", broker.actors)
    return ActorList(actors=[_view(broker, actors[name]) for name in sorted(actors) if not name.startswith(OWN_ACTORS)])


@router.get("/actors/{name}")
async def get_actor(request: Request, name: str) -> ActorView:
    """Show one type of job, by its name or an alias."""
    broker: RedisBroker = request.app.state.broker
    try:
        return _view(broker, broker.get_actor(name))
    except ActorNotFound:
        raise HTTPException(404, f"Actor {shorten(name)} not found") from None


def _view(broker: RedisBroker, actor: Actor[..., Any]) -> ActorView:
    options = actor.options
    typed = actor if isinstance(actor, Job) else None
    return ActorView(
        name=actor.actor_name,
        aliases=sorted(alias for alias, name in broker.aliases.items() if name == actor.actor_name),
        queue=actor.queue_name,
        description=(actor.fn.__doc__ or "").strip().partition("\n")[0],
        payload=typed.contract.json_schema() if typed else None,
        payload_version=typed.versions.current if typed and typed.versions else 1,
        policy=ActorPolicy(
            priority=actor.priority,
            max_attempts=options["max_retries"] + 1,
            backoff_seconds=options["min_backoff"] / 1000,
            backoff_cap_seconds=options["max_backoff"] / 1000,
            backoff_factor=options["backoff_factor"],
            timeout_seconds=_seconds(options.get("time_limit")),
            soft_timeout_seconds=_seconds(options.get("soft_time_limit")),
            expires_seconds=_seconds(options.get("expires_ms")),
            max_deliveries=options.get("max_deliveries", DEFAULT_MAX_DELIVERIES),
            isolation=options.get("isolation", "thread"),
            memory_limit_mb=options.get("memory_limit_mb"),
            idempotency_ttl_seconds=options.get("idempotency_ttl"),
            idempotency_scope=options.get("idempotency_scope"),
            is_keyed=bool(typed and typed.key_of),
            is_unique=bool(typed and typed.unique_of),
        ),
    )


def _seconds(milliseconds: float | None) -> float | None:
    # Dramatiq takes an endless time limit, which JSON does not have.
    return None if milliseconds is None or milliseconds == float("inf") else milliseconds / 1000
