"""Who acts, and why: the options of every act of an operator."""

import argparse
import getpass
import os


def add_who(parser: argparse.ArgumentParser) -> None:
    """Add `--by` and `--why`."""
    parser.add_argument("--by", default=None, metavar="NAME", help="who does it (default: the user of this machine)")
    parser.add_argument("--why", default="", metavar="TEXT", help="logged, and kept with what ends by it")


def who(arguments: argparse.Namespace) -> str:
    """Return the name of who acts."""
    return arguments.by or user()


def user() -> str:
    """Return the user of this machine, also where it has no name, as in a container with a number of its own."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
