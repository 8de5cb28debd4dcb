import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PARTS = ("requirements.lock", "requirements-image.lock", "requirements-build.lock")
LOCKS = (*PARTS, "requirements-dev.lock")


def requirement_of(entry):
    return Requirement(entry.partition(" \\\n")[0])


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_with_a_hash(lock, name):
    entries = lock(name)
    assert len(entries) > 10
    for entry in entries.values():
        first, *hashes = re.split(r" *\\\n +", entry)
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[^ ;=]+( ; .+)?", first), first
        assert hashes, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), first


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_registry(root, name):
    text = (root / name).read_text()
    for forbidden in ("://", "--index-url", "--extra-index-url", "--find-links", "--trusted-host", " @ ", "-e "):
        assert forbidden not in text


@pytest.mark.parametrize("name", PARTS)
def test_a_smaller_lock_is_a_part_of_the_largest(lock, name):
    smaller, larger = lock(name), lock("requirements-dev.lock")
    assert set(smaller) < set(larger)
    for name, entry in smaller.items():
        assert requirement_of(entry).specifier == requirement_of(larger[name]).specifier
        assert set(re.findall(r"sha256:\w+", entry)) == set(re.findall(r"sha256:\w+", larger[name]))


def wanted(project, extra):
    """The requirements of an extra, with those of the extras of ours that it names."""
    for text in project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            for inner in requirement.extras:
                yield from wanted(project, inner)
        else:
            yield requirement


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("requirements.lock", ("all", "embedded", "build")),
        ("requirements-image.lock", ("all",)),
        ("requirements-build.lock", ("build",)),
        ("requirements-dev.lock", ("dev",)),
    ],
)
def test_a_lock_covers_what_the_project_asks_for(project, lock, name, extras):
    pins = {key: requirement_of(entry) for key, entry in lock(name).items()}
    asked = [Requirement(text) for text in project["dependencies"]]
    asked += [requirement for extra in extras for requirement in wanted(project, extra)]
    assert len(asked) >= 5
    for requirement in asked:
        pin = pins[canonicalize_name(requirement.name)]
        (version,) = (each.version for each in pin.specifier)
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_extras_are_there(project):
    assert {"worker", "api", "ai", "dev", "all"} <= set(project["optional-dependencies"])


# Homes and checkouts, and what lies beside a checkout: somebody else's machine has none of it.
FOREIGN = r"/(?:home|Users|root|work|workspaces?)/[\w.-]|\.\./{1}shared"


def test_no_tracked_file_holds_a_path_of_the_machine_that_it_was_written_on(root):
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, timeout=30)
    places = [re.escape(f"{place}/") for place in (root, Path.home()) if place != Path("/")]
    pattern = re.compile(rf"(?<![\w.])(?:{'|'.join([FOREIGN, *places])})")
    found = []
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = root / name
        if path.is_file():
            lines = path.read_text(errors="replace").splitlines()
            found += [f"{name}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    assert found == []
