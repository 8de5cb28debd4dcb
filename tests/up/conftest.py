from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.up.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    home.path.mkdir()
    yield home
    home.clean()
    assert home.processes() == []
