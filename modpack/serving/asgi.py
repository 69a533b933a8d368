"""What all ASGI applications of a server share: bodies, answers, and a log line per request."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from modpack.serving.open_inference import HEADER_LENGTH_KEY
from modpack.serving.problems import RequestError
from modpack.serving.settings import Answer
from modpack.serving.tasks import Log

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

FACTS: Final = "modpack"
"""The key of a scope with what the log reports about a request."""
GONE: Final = 499
"""The status in the log if the client has closed the connection before its request was complete."""
_QUIET: Final = ("/v2/health/", "/metrics")
"""Paths that are polled, and therefore not logged."""
_RETRY_AFTER: Final = b"1"
"""Seconds after which a client may try again if the queue is full."""


class ClientGone(Exception):
    """The client has closed the connection."""


async def read_body(
    headers: dict[bytes, bytes], receive: Receive, limit: int, timeout: float
) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: If the body exceeds the limit, or does not arrive in time.
        ClientGone: If the client has closed the connection.
    """
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise RequestError(f"the body has {int(length)} bytes, and the limit is {limit}", 413)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message.get("body", b"")
        if len(body) > limit:
            raise RequestError(f"the body exceeds {limit} bytes", 413)
        return body
    try:
        return await asyncio.wait_for(_read_chunks(message, receive, limit), timeout)
    except asyncio.TimeoutError:
        raise RequestError(f"the body did not arrive within {timeout:g} seconds", 408) from None


async def _read_chunks(message: Message, receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while message["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > limit:
            raise RequestError(f"the body exceeds {limit} bytes", 413)
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()
    raise ClientGone


async def send_answer(answer: Answer, send: Send) -> None:
    """Send an answer."""
    headers = [
        (b"content-type", answer.media_type.encode("ascii")),
        (b"content-length", str(len(answer.body)).encode("ascii")),
    ]
    if answer.json_length is not None:
        headers.append((HEADER_LENGTH_KEY, str(answer.json_length).encode("ascii")))
    if answer.status == 429:
        headers.append((b"retry-after", _RETRY_AFTER))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


class LoggedApp:
    """Writes a log line for each request, and gives each request an ID.

    Args:
        app: The application. It may add fields of the log line to ``scope[FACTS]``.
        log: Writes log lines.
    """

    def __init__(self, app: App, log: Log) -> None:
        self._app = app
        self._log = log
        self._prefix = os.urandom(4).hex()
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        given = next((v for k, v in scope["headers"] if k == b"x-request-id"), b"")
        identifier = given[:128] or f"{self._prefix}-{next(self._numbers)}".encode()
        facts: dict[str, Any] = {"started": started}
        scope[FACTS] = facts

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identifier)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            status = facts.pop("status", 500)
            del facts["started"]
            if status >= 400 or not scope["path"].startswith(_QUIET):
                self._log(
                    "request",
                    id=identifier.decode("latin-1"),
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round((time.perf_counter() - started) * 1000, 2),
                    **facts,
                )
