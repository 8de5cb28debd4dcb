"""The SMTP server of `callboard up`: it delivers nothing and keeps each mail as one `.eml` file.

A process of its own: `python -m service.cli.up.mail_catcher --fd N --folder PATH`. This file alone meets aiosmtpd,
which ships no types.
"""

import argparse
import asyncio
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_count = itertools.count()


class KeepMails:
    """What aiosmtpd calls for each mail."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        """Keep one mail, then accept it."""
        recipients = [str(recipient) for recipient in envelope.rcpt_tos]
        try:
            path = keep(self._folder, str(envelope.mail_from), recipients, bytes(envelope.content))
        except OSError as error:
            logger.error("A mail could not be stored: %s", error)
            # A 4xx reply: the sender keeps the mail and tries again.
            return "451 4.3.0 The mail could not be stored"
        logger.info("Mail for %s kept in %s", ", ".join(recipients), path.name)
        return "250 2.0.0 OK"


def keep(folder: Path, sender: str, recipients: Sequence[str], content: bytes) -> Path:
    """Store one mail whole, with its envelope in front, and return the file."""
    path = folder / _file_name()
    draft = path.with_suffix(".tmp")
    envelope = f"X-Envelope-From: {_one_line(sender)}\r\nX-Envelope-To: {_one_line(', '.join(recipients))}\r\n"
    draft.write_bytes(envelope.encode() + content)
    draft.replace(path)
    return path


def _file_name() -> str:
    # Sorted by time; the process id and the count keep apart what arrives within a microsecond or after a restart.
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{now}-{os.getpid()}-{next(_count):06d}.eml"


def _one_line(text: str) -> str:
    return " ".join(text.split())


async def serve(listener: socket.socket, folder: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    from aiosmtpd.smtp import SMTP  # pyright: ignore[reportMissingTypeStubs]

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def session() -> asyncio.Protocol:
        return SMTP(KeepMails(folder), enable_SMTPUTF8=True, hostname="callboard.localhost", loop=loop)

    server = await loop.create_server(session, sock=listener, backlog=socket.SOMAXCONN)
    logger.info("Mail catcher is ready on port %s", listener.getsockname()[1])
    await stop.wait()
    server.close()


def main() -> int:
    """Serve on a socket that `callboard up` has opened."""
    parser = argparse.ArgumentParser(description="Keep each mail as one file.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # aiosmtpd logs each command of each session.
    logging.getLogger("mail.log").setLevel(logging.WARNING)
    asyncio.run(serve(socket.socket(fileno=arguments.fd), arguments.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
