"""Who a request comes from, as the gate has found out: for the routes."""

from fastapi import Request

from service.access.scopes import Caller


def caller_of(request: Request) -> Caller:
    """Return the caller of a request that has passed the gate."""
    caller: Caller = request.state.caller
    return caller


async def check_again(request: Request) -> None:
    """Raise what the gate would answer now to a request that goes on for long: its key may have ended since."""
    await request.state.admit_again()
