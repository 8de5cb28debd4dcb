"""The plugin in pytest runs of its own: one test's jobs are not the next one's, and a failure reads well."""

import sys

import pytest

pytest_plugins = ["pytester"]

ACTORS = """
from service.job import job

@job(name="demo.note", queue="default")
def note(*, text: str, count: int = 1) -> str:
    return text * count
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # its entry point, where it is installed


@pytest.fixture
def run(pytester):
    def run(code):
        pytester.makepyfile(test_it=ACTORS + code)
        return pytester.runpytest_subprocess("-p", "service.testing.plugin", "-W", "error")

    return run


def test_each_test_begins_with_nothing_enqueued_and_needs_no_setting(run):
    result = run(
        """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_sends(callboard, number):
    note.send(text="x")
    callboard.clock.advance(5)
    assert len(callboard.enqueued()) == 1
    assert callboard.clock.seconds == 5
"""
    )
    result.assert_outcomes(passed=2)


def test_a_failed_assertion_names_what_was_wanted_and_what_is_there(run):
    result = run(
        """
def test_sends(callboard):
    note.send(text="a", count=2)
    callboard.assert_enqueued(note, text="b")
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*AssertionError: demo.note(text='b', ...) is not enqueued. Of this actor: text='a', count=2*"]
    )


def test_a_send_without_the_fixture_never_reaches_anything(run):
    result = run(
        """
import pytest

def test_sends(callboard):
    with callboard.inline():
        note.send(text="a")

def test_sends_without():
    with pytest.raises(Exception, match="REDIS_URL is not set"):
        note.send(text="a")
"""
    )
    result.assert_outcomes(passed=2)


def test_pytest_imports_nothing_of_the_service_for_tests_that_do_not_ask_for_it(pytester):
    pytester.makepyfile(
        """
import sys

def test_light():
    assert sorted(name for name in sys.modules if name.startswith(("service", "dramatiq", "pydantic", "redis"))) == [
        "service", "service.testing", "service.testing.plugin"
    ]
"""
    )
    pytester.runpytest_subprocess("-p", "service.testing.plugin").assert_outcomes(passed=1)
