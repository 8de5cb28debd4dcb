"""What `POST /jobs` takes: the shape of the request, and the message that it asks for."""

import json
from typing import Annotated, Any, cast

from dramatiq.errors import ActorNotFound
from dramatiq.message import Message
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.broker import RedisBroker
from service.errors import InvalidRequest, PayloadError, UnknownJobType
from service.job import Job
from service.payload import check_json


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


def read_message(broker: RedisBroker, content_type: str, body: bytes) -> Message[Any]:
    """Return the message that a request asks for. Raises InvalidRequest, UnknownJobType or PayloadError."""
    return _message_for(broker, _read(content_type, body))


def _read(content_type: str, body: bytes) -> JobRequest:
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
    fields = cast("dict[str, Any]", document)
    # Here and not by the model, which takes long over many.
    if unknown := [(name, "Extra inputs are not permitted") for name in fields if name not in JobRequest.model_fields]:
        raise InvalidRequest(unknown)
    try:
        return JobRequest.model_validate(fields)
    except ValidationError as error:
        problems = [(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors(include_url=False)]
        raise InvalidRequest(problems) from None


def _message_for(broker: RedisBroker, request: JobRequest) -> Message[Any]:
    try:
        actor = broker.get_actor(request.type)
    except ActorNotFound:
        raise UnknownJobType(request.type, broker.known_types) from None
    payload = _with_ref_id(request, actor)
    if isinstance(actor, Job):
        return actor.message_from_json(payload)
    check_json(payload, actor.actor_name)
    if "self" in payload:
        raise PayloadError(actor.actor_name, [("self", "this actor can't be called with a parameter of this name")])
    return cast("Any", actor).message_with_options(kwargs=payload)


def _with_ref_id(request: JobRequest, actor: Any) -> dict[str, Any]:
    if request.ref_id is None:
        return request.payload
    if isinstance(actor, Job) and "ref_id" not in actor.contract.model.model_fields:
        raise PayloadError(actor.actor_name, [("ref_id", "this type of job takes no ref_id")])
    if request.payload.get("ref_id", request.ref_id) != request.ref_id:
        raise PayloadError(actor.actor_name, [("ref_id", "differs from the ref_id beside the payload")])
    return {**request.payload, "ref_id": request.ref_id}
