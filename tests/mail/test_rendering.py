"""Templates: the context is data, and what is wrong is said once and for good."""

from pathlib import Path
from typing import Any

import pytest

from actors.mail.catalogue import PACKAGED, known_templates
from actors.mail.rendering import MAX_PART_CHARACTERS, render
from service.job import Permanent


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a template "t" and render it."""

    def write_and_render(text: str, html: str | None = None, **context: Any) -> Any:
        (tmp_path / "t.txt.j2").write_text(text)
        if html is not None:
            (tmp_path / "t.html.j2").write_text(html)
        return render("t", context, tmp_path)

    return write_and_render


@pytest.mark.parametrize("template_id", known_templates(PACKAGED))
def test_the_packaged_templates_need_no_context(template_id: str) -> None:
    parts = render(template_id, {}, PACKAGED)
    assert parts.text.strip()
    assert parts.html is not None
    assert "</html>" in parts.html


@pytest.mark.parametrize("template_id", known_templates(PACKAGED))
def test_the_packaged_templates_escape_what_they_are_given(template_id: str) -> None:
    names = ["name", "message", "title", "url", "action", "code", "valid_for", "footer", "order_id", "total", "lang"]
    context = dict.fromkeys(names, "<script>\"'{{ 7*7 }}") | {"items": [{"name": "<b>", "price": "<i>", "quantity": 2}]}
    parts = render(template_id, context, PACKAGED)
    assert "<script>\"'{{ 7*7 }}" in parts.text
    assert parts.html is not None
    assert "&lt;script&gt;&#34;&#39;{{ 7*7 }}" in parts.html
    assert all(tag not in parts.html for tag in ("<script", "<b>", "<i>", "49"))


def test_an_order_lists_its_items() -> None:
    items = [{"name": "Tea", "quantity": 2, "price": "9.00"}, {"name": "Cup"}]
    parts = render("order-confirmation", {"order_id": "A-1", "items": items, "total": "9.00"}, PACKAGED)
    assert "order A-1" in parts.text
    assert "2 x Tea  9.00\n1 x Cup\n" in parts.text
    assert "2 x Tea" in (parts.html or "")


def test_the_html_part_is_optional(write: Any) -> None:
    assert write("Hello").html is None


@pytest.mark.parametrize(
    "template", ["{{ name }}", "{{ user.name }}", "{{ user['name'] }}", "{% if name %}{% endif %}"]
)
def test_a_missing_variable_is_permanent_and_named(template: str, write: Any) -> None:
    with pytest.raises(Permanent, match=r"Mail template t\.txt\.j2: UndefinedError: .*name") as caught:
        write(template, user={})
    assert "t.txt.j2" in str(caught.value)


@pytest.mark.parametrize("template", ["{% if %}", "{{ 1 / 0 }}", "{{ n + 'a' }}", "{% include 'no' %}", "{{ n() }}"])
def test_a_wrong_template_is_permanent(template: str, write: Any) -> None:
    with pytest.raises(Permanent, match=r"Mail template t\.html\.j2: "):
        write("fine", template, n=1)


def test_a_template_that_is_gone_is_permanent(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"'t' is gone: there is no t\.txt\.j2"):
        render("t", {}, tmp_path)


TRICKS = ["{{ ''.__class__.__mro__ }}", "{{ x.__class__ }}", "{{ x | attr('__class__') }}", "{{ range.__globals__ }}"]
TRICKS += ["{{ self.__init__.__globals__ }}", "{{ '{0.__class__}'.format(x) }}", "{{ cycler.__init__.__globals__.os }}"]


@pytest.mark.parametrize(
    "template", [*TRICKS, "{{ x.append(1) }}", "{{ lipsum.__globals__['os'].popen('id').read() }}"]
)
def test_a_template_is_kept_in_its_sandbox(template: str, write: Any) -> None:
    with pytest.raises(Permanent, match=r"SecurityError|UndefinedError"):
        write(template, x=[])


SHADOWS = ["self", "loop", "super", "caller", "varargs", "kwargs", "range", "dict", "context", "environment", "_"]
SHADOWS += ["true", "None", "a-b", "", "__class__", "resolve", "blocks", "name", "lipsum", "cycler"]


@pytest.mark.parametrize("key", SHADOWS)
def test_no_key_of_the_context_breaks_a_template(key: str) -> None:
    for template_id in known_templates(PACKAGED):
        render(template_id, {key: "x"}, PACKAGED)


def test_a_key_comes_before_a_method_of_dict(write: Any) -> None:
    assert write("{{ order.items[0] }} {{ order.keys }}", order={"items": ["tea"], "keys": 1}).text == "tea 1"


def test_the_size_of_a_part_is_bounded(write: Any) -> None:
    with pytest.raises(Permanent, match=f"more than {MAX_PART_CHARACTERS} characters"):
        write("{% for _ in range(99999) %}{{ x }}{% endfor %}", x="x" * 1000)


def test_a_changed_template_is_used_at_once(write: Any, tmp_path: Path) -> None:
    import os

    assert write("one").text == "one"
    (tmp_path / "t.txt.j2").write_text("two")
    os.utime(tmp_path / "t.txt.j2", (1, 1))
    assert render("t", {}, tmp_path).text == "two"
