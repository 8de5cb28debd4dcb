"""The Redis-compatible server of `callboard up`."""

import socket

from service.cli.supervise.program import Program
from service.cli.up import programs
from service.cli.up.private_file import write_private
from service.cli.up.state_dir import StateDir

NAME = "redis"


def valkey_program(state: StateDir, port: int, password: str, env: dict[str, str]) -> Program:
    """Return the server as a program to run. Its configuration, with the password, is in a private file."""
    configuration = state.redis / "server.conf"
    write_private(configuration, _configuration(state, port, password))
    argv = (str(programs.redis_server()), str(configuration))
    return Program(NAME, argv, env=env, log=state.log_of(NAME))


def valkey_answers(port: int, password: str) -> bool:
    """Say whether the server is up and has loaded its data."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2 and (chunk := connection.recv(256)):
                answer += chunk
    except OSError:
        return False
    return answer == b"+OK\r\n+PONG\r\n"


def url(port: int, password: str) -> str:
    """Return what REDIS_URL is for this server."""
    return f"redis://:{password}@127.0.0.1:{port}/0"


def _configuration(state: StateDir, port: int, password: str) -> str:
    quoted = str(state.redis).replace("\\", "\\\\").replace('"', '\\"')
    return (
        f"bind 127.0.0.1\nport {port}\nrequirepass {password}\n"
        f'dir "{quoted}"\ndaemonize no\nloglevel warning\n'
        # It writes its title over its command line and its environment: so it is known when its record is gone.
        f'proc-title-template "{{title}} {{listen-addr}} {state.title}"\n'
        # A full server refuses writes; any other policy would throw jobs away.
        "maxmemory-policy noeviction\n"
        'appendonly yes\nappendfsync everysec\nsave ""\n'
    )
