"""What the terminal shows: each process's lines with its name in front.

Processes write to their log files and this module reads the files: so they lose no line, and are held up by nothing,
when the supervisor is slow or killed.
"""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import TextIO

INTERVAL_SECONDS = 0.1
COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class Output:
    """The terminal, written to by one line at a time."""

    def __init__(self, width: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._width = width
        self._colours: dict[str, int] = {}
        self._coloured = self._stream.isatty() and "NO_COLOR" not in os.environ
        self._lock = threading.Lock()

    def line(self, name: str, text: str) -> None:
        """Write one line with a name in front."""
        self.write(f"{self._label(name)} | {text}\n")

    def write(self, text: str) -> None:
        """Write text as it is. A terminal that is gone does not stop the supervisor."""
        with self._lock:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                return

    def _label(self, name: str) -> str:
        label = name.ljust(self._width)
        if not self._coloured:
            return label
        colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return f"\x1b[{colour}m{label}\x1b[0m"


class Tail:
    """Shows what is written to log files from now on."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._files: dict[str, tuple[Path, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tail", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def add(self, name: str, path: Path) -> None:
        """Follow one more file, from its beginning."""
        self._files.setdefault(name, (path, 0))

    def stop(self) -> None:
        """Show what is left, then end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self._show_news()
        self._show_news()

    def _show_news(self) -> None:
        for name, (path, position) in list(self._files.items()):
            try:
                with path.open("rb") as file:
                    file.seek(position)
                    news = file.read(1 << 20)
            except OSError:
                continue
            whole, newline, _ = news.rpartition(b"\n")
            self._files[name] = (path, position + len(whole) + len(newline))
            for line in whole.decode("utf-8", "replace").splitlines():
                self._output.line(name, line)


class OutputHandler(logging.Handler):
    """Sends the supervisor's own log records to the terminal."""

    def __init__(self, output: Output, name: str) -> None:
        super().__init__()
        self._output = output
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._output.line(self._name, self.format(record))


def last_lines(path: Path, count: int = 15) -> str:
    """Return the end of a log file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-count:])
