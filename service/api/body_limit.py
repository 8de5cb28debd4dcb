"""Refuses a request's body beyond a number of bytes, also where no Content-Length says so before."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware. The application meets an HTTPException where it reads on."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        received = 0

        async def receive_some() -> Message:
            nonlocal received
            self._check(int(announced) if announced.isdecimal() else 0)
            message = await receive()
            received += len(message.get("body", b""))
            self._check(received)
            return message

        await self._app(scope, receive_some, send)

    def _check(self, length: int) -> None:
        if length > self._max_bytes:
            raise HTTPException(413, f"The body of a request holds {self._max_bytes} bytes at most")
