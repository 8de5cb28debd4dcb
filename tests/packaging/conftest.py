"""What the packaging tests share: the locks, the wheel, and a producer's environment that holds nothing else."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

Lock = dict[str, str]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def lock() -> Callable[[str], Lock]:
    """Read a lock: each package's name with the lines of its pin, hashes included."""

    def read(name: str) -> Lock:
        entries = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
        return {canonicalize_name(re.split(r"[=<>!~;\[ ]", entry, maxsplit=1)[0]): entry for entry in entries}

    return read


@pytest.fixture(scope="session")
def base_closure(project: dict[str, Any]) -> list[str]:
    """The names of all packages that `pip install callboard` brings on this Python."""
    found: set[str] = set()
    ahead = [Requirement(each) for each in project["dependencies"]]
    while ahead:
        wanted = ahead.pop()
        name = canonicalize_name(wanted.name)
        environments = [{"extra": extra} for extra in wanted.extras or {""}]
        if name in found or (wanted.marker and not any(wanted.marker.evaluate(each) for each in environments)):
            continue
        found.add(name)
        for each in map(Requirement, requires(name) or []):
            if each.marker is None or any(each.marker.evaluate(extra) for extra in environments):
                each.marker = None
                ahead.append(each)
    return sorted(found)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline from a copy, so that nothing is left in the tree."""
    copy = tmp_path_factory.mktemp("build") / "project"
    copy.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache")
    for name in ("service", "actors", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=copy,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def producer(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, base_closure: list[str], lock: Callable[[str], Lock]
) -> Path:
    """The Python of a fresh environment with the wheel and its base dependencies, pinned by hash as in the lock."""
    folder = tmp_path_factory.mktemp("producer")
    pins = lock("requirements.lock")
    (folder / "requirements.txt").write_text("\n".join(pins[name] for name in base_closure) + "\n")
    run = {"check": True, "timeout": 110, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], **run)
    python = folder / "venv" / "bin" / "python"
    # The pip of the environment that runs the tests: making one more costs more than all the rest.
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", folder / "requirements.txt"], **run)
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], **run)
    return python
