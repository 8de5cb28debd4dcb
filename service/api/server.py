"""The server of the API: uvicorn, which tells the application's waiting requests that it is about to end."""

import socket
from types import FrameType

import uvicorn

from service.api.leaving import Leaving

#: A client that is gone without a word is given up so long after it was last sent something, as streams are regularly.
SILENCE_MS = 15_000


class Server(uvicorn.Server):
    """Ends at a signal as uvicorn does, without waiting for requests that only wait themselves."""

    def __init__(self, config: uvicorn.Config, leaving: Leaving) -> None:
        super().__init__(config)
        self._leaving = leaving

    def leave(self) -> None:
        """End when what is under way has ended, within the grace time."""
        self.should_exit = True
        self._leaving.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for a signal."""
        super().handle_exit(sig, frame)
        self._leaving.set()


def give_up_silent_clients(listening: socket.socket) -> None:
    """Bound how long a connection lives whose client does not acknowledge what it is sent, where the system can."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections take it over from the socket that listens
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
