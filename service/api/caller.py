"""Who a request comes from, as the gate has found out: for the routes."""

from fastapi import Request

from service.access.scopes import Caller


def caller_of(request: Request) -> Caller:
    """Return the caller of a request that has passed the gate."""
    caller: Caller = request.state.caller
    return caller
