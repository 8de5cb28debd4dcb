"""An API without keys is for the machine that it runs on: it does not start where others could reach it."""

import ipaddress
import socket
from functools import lru_cache

from service.errors import SettingsError
from service.settings import Settings


def check_may_listen(settings: Settings, host: str) -> None:
    """Raise SettingsError where the API would be open on an address that others can reach."""
    if settings.api_access == "open" and not is_loopback_host(host):
        raise SettingsError(
            f"CALLBOARD_API_HOST={host!r} can be reached from elsewhere, and the API asks for no keys. Either set "
            "CALLBOARD_API_ACCESS=keys, and make a key with: callboard keys create NAME --scope submit; "
            "or keep the API on this machine with CALLBOARD_API_HOST=127.0.0.1"
        )


def is_loopback_host(host: str) -> bool:
    """Say whether a name or address means this machine only, whatever it resolves to."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(is_loopback_address(str(address[0])) for *_, address in found)


@lru_cache(maxsize=1024)  # asked of each request, and mostly of the same few
def is_loopback_address(text: str) -> bool:
    """Say whether an address is one of this machine only."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
