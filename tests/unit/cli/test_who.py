"""Who does what an operator does by a command."""

import argparse
import getpass
import os

import pytest

from service.cli.who import who


def test_a_user_without_a_name_is_told_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000700000")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert who(argparse.Namespace(by=None)) == str(os.getuid())
    assert who(argparse.Namespace(by="ada")) == "ada"
