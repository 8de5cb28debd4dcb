"""What a job is called with: one JSON object, checked against one pydantic model, at both ends.

An author states the payload as keyword parameters or as one parameter annotated with a pydantic model. Both become a
`PayloadContract` with the same JSON and the same JSON Schema. `dump` runs in the producer's process, `load` in the
worker. A producer may not send a field that the model does not know; a worker ignores one, since it may come from a
newer release.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError

from service.errors import DeclarationError, PayloadError

type_of_json = dict[str, Any]

_GENERATED = ConfigDict(
    extra="forbid", allow_inf_nan=False, ser_json_bytes="base64", val_json_bytes="base64", arbitrary_types_allowed=False
)


@dataclass(frozen=True, slots=True)
class PayloadContract:
    """The payload of one actor. `takes_model` says that the function takes the model itself, not its fields."""

    actor_name: str
    model: type[BaseModel]
    signature: inspect.Signature
    takes_model: bool

    @classmethod
    def of(cls, function: Callable[..., Any], actor_name: str) -> "PayloadContract":
        """Read a function's parameters. Raises DeclarationError where they can't be a payload."""
        signature = inspect.signature(function)
        hints = _hints(function, actor_name)
        parameters = list(signature.parameters.values())
        if len(parameters) == 1 and _is_model(hints.get(parameters[0].name)):
            return cls(actor_name, hints[parameters[0].name], signature, takes_model=True)
        fields: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise DeclarationError(f"{actor_name}: the parameter {parameter} has no name that a payload could use")
            if parameter.name not in hints:
                raise DeclarationError(f"{actor_name}: the parameter {parameter.name!r} needs a type annotation")
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints[parameter.name], default)
        try:
            model = create_model(_model_name(actor_name), __config__=_GENERATED, **fields)
        except (PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
            reason = str(error).splitlines()[0]
            raise DeclarationError(f"{actor_name}: a parameter can't be sent as JSON: {reason}") from error
        return cls(actor_name, model, signature, takes_model=False)

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> type_of_json:
        """Turn the arguments of a call into the JSON object that is sent. Raises PayloadError."""
        return self._to_json(self._model_from_call(args, kwargs))

    def parse(self, document: object) -> type_of_json:
        """Check a JSON object that came over HTTP, and return it as `dump` would. Raises PayloadError."""
        forbid = "forbid" if self.model.model_config.get("extra") is None else None
        try:
            return self._to_json(self.model.model_validate_json(_encode(document), extra=forbid))
        except ValidationError as error:
            raise self._refusal(error) from None
        except (ValueError, UnicodeError) as error:
            raise PayloadError(self.actor_name, [("", str(error))]) from None

    def load(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn a message's JSON into the arguments that the function takes. Raises PayloadError."""
        document: Any = kwargs if not args else self._document_of(args, kwargs)
        ignore = "ignore" if self.model.model_config.get("extra") in (None, "forbid") else None
        try:
            payload = self.model.model_validate_json(json.dumps(document), extra=ignore)
        except ValidationError as error:
            raise self._refusal(error) from None
        if self.takes_model:
            return (payload,), {}
        return (), {name: getattr(payload, name) for name in type(payload).model_fields}

    def json_schema(self) -> type_of_json:
        """The JSON Schema of the payload."""
        return self.model.model_json_schema()

    def _model_from_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BaseModel:
        try:
            arguments = self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise PayloadError(self.actor_name, [("", str(error))]) from None
        payload: Any = next(iter(arguments.values())) if self.takes_model else arguments
        if self.takes_model and not isinstance(payload, self.model):
            message = f"must be a {self.model.__name__}, not {type(payload).__name__}"
            raise PayloadError(self.actor_name, [("", message)])
        try:
            return self.model.model_validate(payload)
        except ValidationError as error:
            raise self._refusal(error) from None

    def _document_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # Messages made by hand, and by Dramatiq's pipelines, carry positional arguments.
        if self.takes_model:
            return args[0]
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise PayloadError(self.actor_name, [("", str(error))]) from None

    def _to_json(self, payload: BaseModel) -> type_of_json:
        try:
            document = payload.model_dump(mode="json", by_alias=True, warnings="error")
        except (PydanticSerializationError, UnicodeError) as error:
            raise PayloadError(self.actor_name, [("", str(error))]) from None
        if path_and_problem := _find_what_json_lacks(document, ""):
            raise PayloadError(self.actor_name, [path_and_problem])
        return document

    def _refusal(self, error: ValidationError) -> PayloadError:
        problems = [
            (".".join(str(part) for part in item["loc"]), item["msg"].removeprefix("Value error, "))
            for item in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        return PayloadError(self.actor_name, problems)


def _find_what_json_lacks(value: Any, path: str) -> tuple[str, str] | None:
    """Return path and problem of the first number or text that has no JSON form, or None."""
    if isinstance(value, float):
        return (path, "NaN and infinity can't be sent as JSON") if value - value != 0 else None
    if isinstance(value, str):
        return None if value.isascii() or _is_unicode(value) else (path, "holds half of a surrogate pair")
    if isinstance(value, dict):
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            if found := _find_what_json_lacks(key, path) or _find_what_json_lacks(item, f"{path}.{key}".lstrip(".")):
                return found
    elif isinstance(value, list):
        for index, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            if found := _find_what_json_lacks(item, f"{path}.{index}".lstrip(".")):
                return found
    return None


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode(document: object) -> bytes:
    return json.dumps(document, allow_nan=False, ensure_ascii=False).encode()


def _hints(function: Callable[..., Any], actor_name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationError(f"{actor_name}: an annotation can't be resolved: {error}") from None


def _is_model(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, BaseModel)


def _model_name(actor_name: str) -> str:
    return "".join(part.capitalize() for part in actor_name.replace("-", ".").replace("_", ".").split(".")) + "Payload"
