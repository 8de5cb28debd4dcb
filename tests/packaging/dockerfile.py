"""Reads the project's Dockerfile and .dockerignore, and carries out the builder stage without an engine."""

import fnmatch
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.packaging.conftest import ROOT

TEXT = (ROOT / "Dockerfile").read_text()
INSTALLED = "/opt/callboard"


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str

    @property
    def parts(self) -> list[str]:
        """The strings of an exec form."""
        return json.loads(self.rest)

    @property
    def pairs(self) -> dict[str, str]:
        """What ENV and LABEL set."""
        return {name: value.strip('"') for name, value in re.findall(r'(\S+?)=("[^"]*"|\S+)', self.rest)}


def stages() -> list[list[Instruction]]:
    """The instructions, by stage; those before the first FROM are a stage too."""
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    found: list[list[Instruction]] = [[]]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, rest = line.split(maxsplit=1)
            if word == "FROM":
                found.append([])
            found[-1].append(Instruction(word, rest))
    return found


def context() -> list[str]:
    """The tracked or new files that .dockerignore lets in."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file() and _is_let_in(name, rules)]


def _is_let_in(name: str, rules: list[str]) -> bool:
    let_in = True
    parts = Path(name).parts
    for rule in rules:
        pattern = rule.removeprefix("!")
        if pattern.startswith("**/"):
            hit = any(fnmatch.fnmatch(part, pattern[3:]) for part in parts)
        else:
            hit = fnmatch.fnmatch(parts[0], pattern)
        if hit:
            let_in = rule.startswith("!")
    return let_in


def build(folder: Path) -> Path:
    """Run the builder stage's own commands below a folder, on nothing but the context. Returns what is installed.

    The interpreter of the base image is a fresh environment of the Python that runs the tests.
    """
    image, source = folder / "image", folder / "context"
    for name in context():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", folder / "base"], check=True)
    python = folder / "base" / "bin" / "python"
    where = image
    for step in stages()[1]:
        match step.word:
            case "WORKDIR":
                where = image / step.rest.lstrip("/")
                where.mkdir(parents=True)
            case "COPY":
                *names, target = step.rest.split()
                for name in names:
                    to = where / target / (name if len(names) > 1 or (source / name).is_file() else "")
                    copy = shutil.copytree if (source / name).is_dir() else shutil.copy2
                    copy(source / name, to)
            case "RUN":
                command = [str(python) if part == "python" else part for part in step.parts]
                command = [str(image) + part if part.startswith(INSTALLED) else part for part in command]
                done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=100)
                assert done.returncode == 0, (step.rest, done.stderr)
            case "FROM" | "ENV" | "ARG":
                pass
            case other:
                raise AssertionError(f"the builder stage has {other}, which is not read here")
    for leftover in (source, image / "build", folder / "base" / "lib"):
        shutil.rmtree(leftover)  # the image has neither the sources nor the packages of the base
    return image / INSTALLED.lstrip("/")
