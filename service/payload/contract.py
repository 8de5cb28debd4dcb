"""The contract between a producer and an actor.

An author states the payload as keyword parameters or as one parameter annotated with a pydantic model. Both become a
`PayloadContract` with the same JSON and the same JSON Schema. `dump` runs in the producer's process, `load` in the
worker. What arrives equals what was sent, or sending it is refused: `dump` reads its own JSON as the worker will.

A producer may not send a field that the model does not know; a worker ignores one, since it may come from a newer
release. A nested model that sets pydantic's `extra` keeps its own rule; to a worker, "forbid" is "ignore".
"""

import dataclasses
import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from service.errors import DeclarationError, PayloadError
from service.payload.comparison import Unsendable, find_difference, find_lost_type, find_what_json_lacks
from service.payload.extras import extras_in, owner_of, without
from service.payload.masking import holds_personal, without_personal
from service.payload.rereads import Rereads, decides_as_a_whole

type_of_json = dict[str, Any]

MOST_PROBLEMS = 1000

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
    #: What the model and those inside it say of unknown fields: "allow", "forbid", "ignore", or None for nothing.
    extras: frozenset[str | None]
    #: Whether a field is marked as personal: then no error shows a value of it.
    is_personal: bool = False
    rereads: Rereads = dataclasses.field(default_factory=Rereads)

    @classmethod
    def of(cls, function: Callable[..., Any], actor_name: str) -> "PayloadContract":
        """Read a function's parameters. Raises DeclarationError where they can't be a payload."""
        signature = inspect.signature(function)
        hints = _hints(function, actor_name)
        parameters = list(signature.parameters.values())
        takes_model = len(parameters) == 1 and _is_model(hints.get(parameters[0].name))
        for parameter in parameters:
            _check_parameter(parameter, hints, actor_name, takes_model=takes_model)
        with warnings.catch_warnings():
            # Of a parameter named like a method of BaseModel, such as `json`: nothing here calls these methods.
            warnings.simplefilter("ignore", UserWarning)
            try:
                model = hints[parameters[0].name] if takes_model else _generate(parameters, hints, actor_name)
                model.model_rebuild()
                schema = model.model_json_schema()
            except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise DeclarationError(f"{actor_name}: a parameter can't be sent as JSON: {reason}") from error
        if schema.get("type", "object") != "object":
            raise DeclarationError(f"{actor_name}: the payload must be a JSON object, not {schema['type']}")
        rereads = Rereads(None if decides_as_a_whole(model) else {})
        return cls(actor_name, model, signature, takes_model, extras_in(model), holds_personal(model), rereads)

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> type_of_json:
        """Turn the arguments of a call into the JSON object that is sent. Raises PayloadError."""
        return self._to_json(self._model_from_call(args, kwargs))

    def parse(self, document: object) -> type_of_json:
        """Check a JSON object that came over HTTP, and return it as `dump` would. Raises PayloadError."""
        text = check_json(document, self.actor_name)
        return self._to_json(self._check_sent(self.model.model_validate_json, text), document)

    def load(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn a message's JSON into the arguments that the function takes. Raises PayloadError."""
        payload = self._read(self.document_of(args, kwargs))
        if not self.takes_model:
            return (), {name: getattr(payload, name) for name in type(payload).model_fields}
        (parameter,) = self.signature.parameters.values()
        return ((), {parameter.name: payload}) if parameter.kind is parameter.KEYWORD_ONLY else ((payload,), {})

    def json_schema(self) -> type_of_json:
        """The JSON Schema of the payload."""
        return self.model.model_json_schema()

    def _call(self) -> str:
        return f"send({', '.join(f'{name}=...' for name in self.signature.parameters)})"

    def _misfits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: TypeError) -> list[tuple[str, str]]:
        names = list(self.signature.parameters)
        unknown = [name for name in kwargs if name not in names]
        if self.takes_model:
            return [("", f"takes one {self.model.__name__}, as in send({self.model.__name__}(...)): {error}")]
        if not unknown:
            return [("", f"{error}: name each argument, as in {self._call()}" if args else str(error))]
        meant = {name: get_close_matches(name, names, 1) for name in unknown}
        return [
            (name, f"is no field{f': use {close[0]}' if close else f': {self._call()}'}")
            for name, close in meant.items()
        ]

    def _model_from_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BaseModel:
        try:
            call = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PayloadError(self.actor_name, self._misfits(args, kwargs, error)) from None
        if not self.takes_model:
            payload = self._check_sent(self.model.model_validate, call.arguments)
            if lost := find_lost_type(dict(call.arguments), vars(payload)):
                raise PayloadError(self.actor_name, [lost])
            return payload
        call.apply_defaults()
        (payload,) = call.arguments.values()
        if not isinstance(payload, self.model):
            message = f"must be one {self.model.__name__}, not {type(payload).__name__}"
            raise PayloadError(self.actor_name, [("", message)])
        try:
            return self.model.model_validate(payload)
        except ValidationError as error:
            raise self._refusal(error) from None

    def _check_sent(self, validate: Callable[..., BaseModel], document: object) -> BaseModel:
        """Validate, and refuse fields that no model knows."""
        try:
            if self.extras <= {None, "forbid"}:
                return validate(document, extra="forbid")
            # pydantic's `extra=` would overrule the nested models that have a rule of their own.
            payload = validate(document)
        except ValidationError as error:
            raise self._refusal(error) from None
        try:
            validate(document, extra="forbid")
        except ValidationError as error:
            unknown = [path for path in _extra_fields(error) if owner_of(payload, path) is None]
            if unknown:
                raise PayloadError(
                    self.actor_name, [(_dotted(path), "Extra inputs are not permitted") for path in unknown]
                ) from None
        return payload

    def _read(self, document: object) -> BaseModel:
        """Read JSON as the worker does. By name as well as by alias: messages outlive the alias that a field gets."""
        try:
            text = json.dumps(document)
        except (TypeError, ValueError, RecursionError) as error:
            raise _no_json(error, self.actor_name) from None
        ignore = None if "allow" in self.extras else "ignore"
        try:
            try:
                return self.model.model_validate_json(text, extra=ignore, by_alias=True, by_name=True)
            except ValidationError as error:
                unknown = _extra_fields(error)
                if not unknown:
                    raise
            known = without(json.loads(text), unknown)
            return self.model.model_validate_json(json.dumps(known), extra=ignore, by_alias=True, by_name=True)
        except ValidationError as error:
            raise self._refusal(error) from None

    def document_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the JSON object that a message carries, which may have positional arguments. Raises PayloadError."""
        # Messages made by hand, and by Dramatiq's pipelines, carry positional arguments.
        if not args:
            return kwargs
        if self.takes_model:
            if len(args) == 1 and not kwargs:
                return args[0]
            raise PayloadError(self.actor_name, [("", f"must be one object, not {len(args) + len(kwargs)} arguments")])
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise PayloadError(self.actor_name, [("", str(error))]) from None

    def _to_json(self, payload: BaseModel, read_from: object = None) -> type_of_json:
        """Dump a payload, and see that it is read again as it is. `read_from` is the JSON that it was read from."""
        try:
            document = _dump(payload)
        except Exception as error:  # noqa: BLE001 - a field's own serializer may do anything
            reason = f"can't be written as JSON ({type(error).__name__})" if self.is_personal else _first_line(error)
            raise PayloadError(self.actor_name, [(_where_dumping_fails(payload), reason)]) from None
        if not isinstance(document, dict):
            raise PayloadError(self.actor_name, [("", "must be a JSON object")])
        if self.rereads.are_proven(read_from, cast("type_of_json", document)):
            return cast("type_of_json", document)
        found = find_what_json_lacks(document) or find_difference(payload, self._read(document))  # pyright: ignore[reportUnknownArgumentType]
        if found:
            raise PayloadError(self.actor_name, [found])
        self.rereads.prove(read_from, cast("type_of_json", document))
        return cast("type_of_json", document)

    def _refusal(self, error: ValidationError) -> PayloadError:
        if (count := error.error_count()) > MOST_PROBLEMS:
            # Listing a million would hold up all other threads for seconds.
            return PayloadError(self.actor_name, [("", f"{count} problems, too many to list")])
        problems = [
            (_dotted(item["loc"]), self._shown(item))
            for item in error.errors(include_url=False, include_context=False, include_input=self.is_personal)
        ]
        return PayloadError(self.actor_name, problems)

    def _shown(self, item: Any) -> str:
        message = item["msg"].removeprefix("Value error, ")
        if not self.is_personal or item["type"] == "extra_forbidden":
            return message
        shown = without_personal(message, self.model, item["loc"], item["input"])
        return f"is refused ({item['type']}); it is personal, and so not shown" if shown is None else shown


def check_json(document: object, actor_name: str) -> str:
    """Return a JSON object that came from outside as text. Raises PayloadError for what JSON can't carry."""
    try:
        if found := find_what_json_lacks(document):
            raise PayloadError(actor_name, [found])
        return json.dumps(document, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_json(error, actor_name) from None


def _no_json(error: Exception, actor_name: str) -> PayloadError:
    problem = "is nested too deeply" if isinstance(error, RecursionError) else _first_line(error)
    return PayloadError(actor_name, [("", problem)])


def _check_parameter(
    parameter: inspect.Parameter, hints: dict[str, Any], actor_name: str, *, takes_model: bool
) -> None:
    named = (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    if parameter.kind not in ((*named, parameter.POSITIONAL_ONLY) if takes_model else named):
        raise DeclarationError(f"{actor_name}: the parameter {parameter} has no name that a payload could use")
    if parameter.name not in hints:
        raise DeclarationError(f"{actor_name}: the parameter {parameter.name!r} needs a type annotation")
    if parameter.name == "self":
        raise DeclarationError(
            f"{actor_name}: an actor is a function, not a method: the parameter 'self' can't be sent"
        )


def _generate(parameters: list[inspect.Parameter], hints: dict[str, Any], actor_name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {
        parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
        for parameter in parameters
    }
    model = create_model(_model_name(actor_name), __config__=_GENERATED, **fields)
    # pydantic takes some names for something else: with an underscore first, a private attribute that is not sent.
    if lost := [name for name in fields if name not in model.model_fields]:
        raise DeclarationError(f"{actor_name}: the parameter {lost[0]!r} needs another name to be sent")
    return model


def _dump(payload: BaseModel, include: set[str] | None = None) -> Any:
    # Warnings are off: reading the JSON again says more, and names the path.
    return payload.model_dump(
        mode="json",
        by_alias=True,
        include=include,
        exclude_computed_fields=True,
        warnings=False,
        fallback=Unsendable.mark,
    )


def _where_dumping_fails(payload: BaseModel) -> str:
    for name, field in type(payload).model_fields.items():
        value = getattr(payload, name, None)
        try:
            _dump(payload, include={name})
        except Exception:  # noqa: BLE001 - that it fails is known; where is what is looked for
            path = field.serialization_alias or name
            items = enumerate(cast("list[Any]", value)) if isinstance(value, list) else [("", value)]
            inside = [f"{index}.{_where_dumping_fails(item)}" for index, item in items if isinstance(item, BaseModel)]
            found = [item.strip(".") for item in inside if not item.endswith(".")]
            return ".".join([path, *found[:1]])
    return ""


def _extra_fields(error: ValidationError) -> list[tuple[int | str, ...]]:
    items = error.errors(include_url=False, include_context=False, include_input=False)
    return [item["loc"] for item in items if item["type"] == "extra_forbidden"]


def _dotted(path: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in path)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _hints(function: Callable[..., Any], actor_name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationError(f"{actor_name}: an annotation can't be resolved: {error}") from None


def _is_model(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, BaseModel)


def _model_name(actor_name: str) -> str:
    return "".join(part.capitalize() for part in actor_name.replace("-", ".").replace("_", ".").split(".")) + "Payload"
