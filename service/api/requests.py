"""What `POST /jobs` takes: the shape of the request, and the message that it asks for."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, cast

from dramatiq.errors import ActorNotFound
from dramatiq.message import Message
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from service.access.scopes import Caller
from service.api.group_sends import Send
from service.api.tenants import for_tenant, tenant_of
from service.broker import RedisBroker
from service.errors import InvalidRequest, PayloadError, UnknownJobType
from service.job import Job
from service.payload import check_json

MOST_DELAY_SECONDS = 366 * 24 * 3600


class JobRequest(BaseModel):
    """A job to be sent."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "type": "email.send",
                    "payload": {
                        "to": "ada@example.org",
                        "subject": "Welcome",
                        "template_id": "welcome",
                        "context": {"name": "Ada"},
                    },
                }
            ]
        },
    )

    type: Annotated[str, Field(description="The actor's name, or an alias of it.")]
    payload: Annotated[dict[str, Any], Field(description="What the actor is called with.")] = {}
    ref_id: Annotated[
        str | None, Field(description="Short for the payload's own `ref_id`, for actors whose payload has one.")
    ] = None
    priority: Annotated[
        int | None,
        Field(ge=0, le=9, description="0 (first) to 9 (last) within its queue, in place of the actor's own."),
    ] = None
    delay_seconds: Annotated[
        float | None, Field(ge=0, le=MOST_DELAY_SECONDS, description="How long to wait before it may start.")
    ] = None
    run_at: Annotated[
        AwareDatetime | None, Field(description="When it may start, with a time zone. What is past is at once.")
    ] = None

    tenant: Annotated[
        str | None, Field(description="For whom the job works. A key of a tenant sends for its own, and leaves it out.")
    ] = None

    @model_validator(mode="after")
    def _one_time(self) -> "JobRequest":
        if self.delay_seconds is not None and self.run_at is not None:
            raise ValueError("give delay_seconds or run_at, not both")
        if self.run_at is not None and self.run_at > datetime.now(UTC) + timedelta(seconds=MOST_DELAY_SECONDS):
            raise ValueError(f"run_at is more than {MOST_DELAY_SECONDS // 86400} days away")
        return self

    def delay_ms(self) -> int | None:
        """How long its job waits from now, or None where it may start at once."""
        if self.run_at is not None:
            seconds = max((self.run_at - datetime.now(UTC)).total_seconds(), 0.0)
        elif self.delay_seconds is not None:
            seconds = self.delay_seconds
        else:
            return None
        return round(seconds * 1000) or None

    def options(self) -> dict[str, Any]:
        """The options of its message."""
        return {} if self.priority is None else {"priority": self.priority}


def read_send(broker: RedisBroker, content_type: str, body: bytes, caller: Caller) -> Send:
    """Return what a request asks to send. Raises InvalidRequest, UnknownJobType or PayloadError."""
    return send_for(broker, job_of(read_object(content_type, body)), caller)


def send_for(broker: RedisBroker, request: JobRequest, caller: Caller) -> Send:
    """Return what a job's request asks to send, for the caller's tenant. Raises UnknownJobType or PayloadError."""
    tenant = tenant_of(request.tenant, caller)
    message = _message_for(broker, request)
    if tenant is not None:
        message = for_tenant(message, tenant)
    asked = (request.priority, request.delay_seconds, request.run_at)
    if request.tenant is not None:
        asked = (*asked, request.tenant)
    # Of a request that says none of them, the record of its Idempotency-Key is as it always was.
    return Send(message, request.delay_ms(), asked if any(one is not None for one in asked) else ())


def read_object(content_type: str, body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds. Raises InvalidRequest."""
    media_type = content_type.partition(";")[0].strip().lower()
    # Asked for, since a browser sends any other type to any site without asking that site first.
    if not (media_type.startswith("application/") and media_type.endswith(("/json", "+json"))):
        raise InvalidRequest([("body", "the Content-Type must be application/json")])
    try:
        document = json.loads(body)
    except RecursionError:
        raise InvalidRequest([("body", "is nested too deeply")]) from None
    except ValueError as error:
        raise InvalidRequest([("body", f"is no JSON: {error}")]) from None
    if not isinstance(document, dict):
        raise InvalidRequest([("body", "must be a JSON object")])
    return cast("dict[str, Any]", document)


def job_of(fields: object) -> JobRequest:
    """Read one job's request. Raises InvalidRequest."""
    if not isinstance(fields, dict):
        raise InvalidRequest([("body", "must be a JSON object")])
    fields = cast("dict[str, Any]", fields)
    # Here and not by the model, which takes long over many.
    if unknown := [(name, "Extra inputs are not permitted") for name in fields if name not in JobRequest.model_fields]:
        raise InvalidRequest(unknown)
    try:
        return JobRequest.model_validate(fields)
    except ValidationError as error:
        problems = [
            (".".join(map(str, item["loc"])) or "body", item["msg"].removeprefix("Value error, "))
            for item in error.errors(include_url=False)
        ]
        raise InvalidRequest(problems) from None


def _message_for(broker: RedisBroker, request: JobRequest) -> Message[Any]:
    try:
        actor = broker.get_actor(request.type)
    except ActorNotFound:
        raise UnknownJobType(request.type, broker.known_types) from None
    payload = _with_ref_id(request, actor)
    if isinstance(actor, Job):
        return actor.message_from_json(payload, **request.options())
    check_json(payload, actor.actor_name)
    if "self" in payload:
        raise PayloadError(actor.actor_name, [("self", "this actor can't be called with a parameter of this name")])
    return cast("Any", actor).message_with_options(kwargs=payload, **request.options())


def _with_ref_id(request: JobRequest, actor: Any) -> dict[str, Any]:
    if request.ref_id is None:
        return request.payload
    if isinstance(actor, Job) and "ref_id" not in actor.contract.model.model_fields:
        raise PayloadError(actor.actor_name, [("ref_id", "this type of job takes no ref_id")])
    if request.payload.get("ref_id", request.ref_id) != request.ref_id:
        raise PayloadError(actor.actor_name, [("ref_id", "differs from the ref_id beside the payload")])
    return {**request.payload, "ref_id": request.ref_id}
