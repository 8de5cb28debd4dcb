"""A template and a context become the text and the HTML of a mail.

The context is data: its texts are never read as template code, and are escaped in HTML. Jinja2 is imported when the
first mail is rendered, since a producer's install has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.mail.catalogue import HTML_SUFFIX, TEXT_SUFFIX
from service.job import Permanent

if TYPE_CHECKING:
    from jinja2 import Environment

#: A part that grows beyond this is a mistake in a template or a context, and no server would take it.
MAX_PART_CHARACTERS = 2_000_000


@dataclass(frozen=True, slots=True)
class Rendered:
    """The parts of one mail. `html` is None where the template has no HTML part."""

    text: str
    html: str | None


def render(template_id: str, context: Mapping[str, Any], folder: Path) -> Rendered:
    """Render both parts. Raises Permanent with the template's name and what is wrong."""
    text = _part(template_id + TEXT_SUFFIX, context, folder)
    if text is None:
        raise Permanent(f"Mail template {template_id!r} is gone: there is no {template_id}{TEXT_SUFFIX} any more")
    return Rendered(text=text, html=_part(template_id + HTML_SUFFIX, context, folder))


def _part(name: str, context: Mapping[str, Any], folder: Path) -> str | None:
    if not (folder / name).is_file():
        return None
    try:
        return _bounded(_environment(folder).get_template(name).generate(dict(context)))
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The folder can't be read right now: worth another attempt. Jinja2's TemplateNotFound has no errno.
        # Templates run code of their author on data of the caller: whatever comes out, a repetition gives the same.
        raise Permanent(f"Mail template {name}: {_describe(error)}") from error


def _bounded(pieces: Any) -> str:
    found: list[str] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > MAX_PART_CHARACTERS:
            raise ValueError(f"gives more than {MAX_PART_CHARACTERS} characters")
    return "".join(found)


def _describe(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {str(error)[:500]}{where}"


def _escapes(name: str | None) -> bool:
    return name is None or not name.endswith(TEXT_SUFFIX)


@lru_cache(maxsize=8)
def _environment(folder: Path) -> "Environment":
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class DataFirst(ImmutableSandboxedEnvironment):
        """`order.items` is the context's value "items", not the method of dict."""

        def getattr(self, obj: Any, attribute: str) -> Any:
            if isinstance(obj, dict) and attribute in obj:
                return obj[attribute]  # pyright: ignore[reportUnknownVariableType]
            return super().getattr(obj, attribute)

    return DataFirst(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=_escapes,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
