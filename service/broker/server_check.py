"""What is wrong with a Redis server for jobs: an eviction policy that throws them away, no persistence, too old."""

from typing import Any

import redis

MINIMUM_REDIS = (7, 0)
MINIMUM_VALKEY = (7, 2)


def problems_of(client: Any) -> list[str]:
    """Return what an operator should know, in sentences. Empty where all is well. Raises redis.RedisError."""
    server: dict[str, Any] = client.info("server")
    problems = [_too_old(server)]
    settings = _settings(client)
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}: a full server throws jobs away in silence. Set noeviction")
    if settings.get("appendonly") == "no":
        problems.append(
            "appendonly is off: a restart loses the jobs since the last snapshot, or all. Set appendonly yes"
        )
    return [problem for problem in problems if problem]


def _too_old(server: dict[str, Any]) -> str:
    is_valkey = "valkey_version" in server
    version = str(server["valkey_version"] if is_valkey else server["redis_version"])
    least = MINIMUM_VALKEY if is_valkey else MINIMUM_REDIS
    if tuple(int(part) for part in version.split(".")[:2]) >= least:
        return ""
    name = "Valkey" if is_valkey else "Redis"
    return f"{name} {version} is too old: {least[0]}.{least[1]} is the oldest that the scripts run on"


def _settings(client: Any) -> dict[str, str]:
    try:
        found: dict[Any, Any] = client.config_get("maxmemory-policy", "appendonly")
    except redis.ResponseError:
        return {}  # managed servers hide their configuration
    return {_text(name): _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
