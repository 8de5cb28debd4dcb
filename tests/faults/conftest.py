"""The fault tests use the processes of the end-to-end tests."""

from tests.e2e.conftest import service  # noqa: F401
