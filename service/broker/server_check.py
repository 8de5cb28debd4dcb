"""What is wrong with a Redis server for jobs: it may throw them away or lose them, is too old, or grants too little."""

from typing import Any

import redis
from redis.exceptions import NoPermissionError

MINIMUM_REDIS = (7, 0)
MINIMUM_VALKEY = (7, 2)


def problems_of(client: Any, namespace: str) -> list[str]:
    """Return what an operator should know, in sentences. Empty where all is well. Raises redis.RedisError."""
    problems = [_too_old(client), _may_not_wake(client, namespace)]
    settings = _settings(client)
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}: a full server throws jobs away in silence. Set noeviction")
    if settings.get("appendonly") == "no":
        problems.append(
            "appendonly is off: a restart loses the jobs since the last snapshot, or all. Set appendonly yes"
        )
    return [problem for problem in problems if problem]


def _may_not_wake(client: Any, namespace: str) -> str:
    try:
        client.publish(f"{namespace}:wake:", "")
    except NoPermissionError as error:
        rights = f"+publish &{namespace}:wake:*"
        return f"this user may not call other workers ({error}). Give it the ACL rights {rights}"
    return ""


def _too_old(client: Any) -> str:
    try:
        server: dict[str, Any] = client.info("server")
    except NoPermissionError:
        return ""
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
