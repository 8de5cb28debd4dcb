"""What an `email.send` job is sent with: the same model at `send()`, at the API and in the worker."""

import base64
import binascii
import json
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
)

from actors.mail import catalogue, rules

#: The message travels through Redis and stays in history until it is done. A bigger file belongs behind a link.
MAX_ATTACHMENTS = 10
MAX_ATTACHMENTS_BYTES = 2 * 1024 * 1024
MAX_HEADERS = 25


def _from_base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be base64 (RFC 4648, with padding, without line breaks)") from None


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Address = Annotated[str, AfterValidator(rules.address)]
HeaderText = Annotated[str, AfterValidator(rules.header_text)]
# In Python the bytes themselves, in JSON base64. Pydantic's Base64Bytes would take raw bytes for base64 in Python too.
FileContent = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(_to_base64, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class _Model(BaseModel):
    # An instance is checked again wherever it is handed over: `model_construct` and a changed dict get no free pass.
    model_config = ConfigDict(frozen=True, extra="forbid", revalidate_instances="always")


class Attachment(_Model):
    """A file that goes with the mail. `content` is bytes in Python and base64 in JSON."""

    filename: Annotated[str, AfterValidator(rules.filename)] = Field(examples=["invoice.pdf"])
    content_type: Annotated[str, AfterValidator(rules.content_type)] = Field(examples=["application/pdf"])
    content: FileContent


class EmailJobPayload(_Model):
    """One mail to one recipient, written by a template.

    `context` reaches the template as data and nothing else; its texts may hold line breaks, since they go to the body.
    What goes to a header may not. Up to 25 headers, and up to 10 attachments of 2 MiB together.
    """

    to: Address = Field(examples=["ann@example.org"])
    subject: HeaderText = Field(examples=["Welcome"])
    template_id: Annotated[str, AfterValidator(catalogue.template_id)] = Field(examples=["welcome"])
    context: dict[str, JsonValue] = Field(default_factory=dict, examples=[{"name": "Ann"}])
    ref_id: str | None = Field(default=None, max_length=255, description="A name of your own for this mail.")
    from_name: HeaderText | None = Field(default=None, max_length=200, examples=["Example Shop"])
    reply_to: Address | None = Field(default=None, examples=["support@example.org"])
    headers: dict[str, HeaderText] = Field(default_factory=dict, max_length=MAX_HEADERS)
    attachments: list[Attachment] = Field(default_factory=list[Attachment], max_length=MAX_ATTACHMENTS)

    @field_validator("context")
    @classmethod
    def _context_is_text(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("holds half of a surrogate pair, which no mail can carry") from None
        return value

    @field_validator("headers", mode="before")
    @classmethod
    def _names_are_names(cls, value: object) -> object:
        # Here and not on the key's type: pydantic would put the refused name, line breaks and all, into the path.
        for name in value if isinstance(value, dict) else ():  # pyright: ignore[reportUnknownVariableType]
            try:
                rules.header_name(str(name))  # pyright: ignore[reportUnknownArgumentType]
            except ValueError as error:
                raise ValueError(f"the name {ascii(name)[:100]}: {error}") from None  # pyright: ignore[reportUnknownArgumentType]
        return value  # pyright: ignore[reportUnknownVariableType]

    @field_validator("headers")
    @classmethod
    def _names_differ(cls, value: dict[str, str]) -> dict[str, str]:
        if len({name.lower() for name in value}) < len(value):
            raise ValueError("must name each header once: small and capital letters are the same")
        return value

    @field_validator("attachments")
    @classmethod
    def _attachments_fit(cls, value: list[Attachment]) -> list[Attachment]:
        if sum(len(attachment.content) for attachment in value) > MAX_ATTACHMENTS_BYTES:
            raise ValueError(f"must not hold more than {MAX_ATTACHMENTS_BYTES} bytes together: send a link instead")
        return value
