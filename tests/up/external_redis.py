"""A Redis-compatible server that is not `up`'s own."""

import socket
import subprocess
from pathlib import Path

from service.cli.up import programs
from tests.up.eventually import eventually
from tests.up.home import free_port


class ExternalRedis:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        argv = [programs.redis_server(), "--port", str(self.port), "--dir", folder, "--save", ""]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        eventually(lambda: self.ask("PING") == b"+PONG\r\n")

    def ask(self, command: str) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(f"{command}\r\n".encode())
                return connection.recv(256)
        except OSError:
            return b""
