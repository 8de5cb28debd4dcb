"""The state of a Redis namespace as JSON, and back: text where it is text, else base64."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
#: What stands in the files for the namespace, which each test has of its own.
NAMESPACE = "NAMESPACE"


def releases() -> list[str]:
    """The releases whose state is kept."""
    return sorted(folder.name for folder in CORPUS.iterdir())


def dump(client: Any, namespace: str) -> dict[str, Any]:
    """Read all keys of a namespace, each as its type and value."""
    found: dict[str, Any] = {}
    for key in sorted(client.scan_iter(match=f"{{{namespace}:*")):
        kind = client.type(key).decode()
        found[key.decode().replace(f"{{{namespace}:", f"{{{NAMESPACE}:")] = {
            "type": kind,
            "value": READ[kind](client, key),
        }
    return found


def load(client: Any, namespace: str, state: dict[str, Any]) -> None:
    """Write what `dump` has read."""
    for name, stored in state.items():
        WRITE[stored["type"]](client, name.replace(f"{{{NAMESPACE}:", f"{{{namespace}:"), stored["value"])


def _pack(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _unpack(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def _read_stream(client: Any, key: bytes) -> Any:
    return [
        [entry.decode(), [[_pack(field), _pack(value)] for field, value in fields.items()]]
        for entry, fields in client.xrange(key)
    ]


def _write_stream(client: Any, key: str, entries: Any) -> None:
    for entry, fields in entries:
        client.xadd(key, {_unpack(field): _unpack(value) for field, value in fields}, id=entry)


READ: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda client, key: _pack(client.get(key)),
    "hash": lambda client, key: [[_pack(field), _pack(value)] for field, value in sorted(client.hgetall(key).items())],
    "zset": lambda client, key: [
        [_pack(member), score] for member, score in client.zrange(key, 0, -1, withscores=True)
    ],
    "stream": _read_stream,
}
WRITE: dict[str, Callable[[Any, str, Any], Any]] = {
    "string": lambda client, key, value: client.set(key, _unpack(value)),
    "hash": lambda client, key, value: client.hset(
        key, mapping={_unpack(field): _unpack(content) for field, content in value}
    ),
    "zset": lambda client, key, value: client.zadd(key, {_unpack(member): score for member, score in value}),
    "stream": _write_stream,
}
