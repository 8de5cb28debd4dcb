"""Bounds a request's body: in bytes, also where no Content-Length says so before, and in the time that it takes."""

import asyncio

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: A client that sends a byte now and then would hold its connection, and the process's end, for as long as it likes.
MOST_SECONDS = 60.0


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
        is_complete = False
        deadline = asyncio.get_running_loop().time() + MOST_SECONDS

        async def receive_some() -> Message:
            nonlocal received, is_complete
            if is_complete:
                return await receive()  # what follows is that the client goes, whenever it likes
            self._check(int(announced) if announced.isdecimal() else 0)
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                detail = f"The body of a request must have come within {MOST_SECONDS:g} s"
                raise HTTPException(408, detail, {"Connection": "close"}) from None
            received += len(message.get("body", b""))
            self._check(received)
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, receive_some, send)

    def _check(self, length: int) -> None:
        if length > self._max_bytes:
            raise HTTPException(413, f"The body of a request holds {self._max_bytes} bytes at most")
