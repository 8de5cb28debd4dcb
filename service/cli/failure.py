"""What a command could not do: told to the user in plain words, without a traceback."""

from service.errors import CallboardError


class CommandFailed(CallboardError):
    """A command can't go on; the message says why and what to do."""

    code = "command"
