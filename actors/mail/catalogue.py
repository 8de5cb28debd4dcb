"""Which mail templates there are. Knows files only, so that a producer without Jinja2 can check a template's id.

A template is `<id>.txt.j2`, and `<id>.html.j2` beside it for the HTML part. A file whose name starts with an
underscore is a layout for others to extend: no id can name it.
"""

import os
import re
from pathlib import Path

from service.job import get_settings

PACKAGED = Path(__file__).with_name("templates")
TEXT_SUFFIX = ".txt.j2"
HTML_SUFFIX = ".html.j2"

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def folder() -> Path:
    """The folder in CALLBOARD_MAIL_TEMPLATES, or the one that comes with the service."""
    return get_settings().mail_templates or PACKAGED


def known_templates(where: Path) -> list[str]:
    """The ids of all templates in a folder, sorted."""
    names = (path.name.removesuffix(TEXT_SUFFIX) for path in where.glob(f"*{TEXT_SUFFIX}"))
    return sorted(name for name in names if _ID.fullmatch(name))


def template_id(value: str) -> str:
    """Return an id that names a template. Raises a ValueError that lists the known ones."""
    if not _ID.fullmatch(value):
        raise ValueError("must be 1 to 64 small letters, digits, dashes or underscores, such as welcome")
    # One look for this file, not over the folder: every send of a mail comes by here twice.
    where = folder()
    if not os.path.isfile(f"{where}/{value}{TEXT_SUFFIX}"):  # noqa: PTH113 - a path object costs as much again
        known = known_templates(where)
        raise ValueError(f"Unknown template: {value}; known templates: {', '.join(known) or 'none'}")
    return value
