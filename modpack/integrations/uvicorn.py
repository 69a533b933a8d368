"""A server of models run by uvicorn."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from modpack.errors import ModpackError
from modpack.serving.log import LogHandler

if TYPE_CHECKING:
    from modpack.serving.model import Log
    from modpack.serving.server import ModelServer

_KEEP_ALIVE = 75
"""Seconds that an idle connection stays open."""
MAX_HEAD_BYTES = 64 << 10


class _BoundedProtocol(HttpToolsProtocol):
    """Limits the size of request heads, and the time in which a client sends one.

    uvicorn has neither limit for httptools. A head of 40 MB takes seconds, in which no other client
    gets an answer.
    """

    head_seconds = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, f"the request head is larger than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._end_head()
        self._head_bytes = 0
        reason = f"the request head did not arrive within {self.head_seconds:g} seconds"
        self._head_timer = self.loop.call_later(self.head_seconds, self._refuse, 408, reason)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, reason: str) -> None:
        self._end_head()
        body = json.dumps({"error": reason}).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """A server that logs its address, and ends with status 0 after SIGTERM.

    uvicorn's own raises the signal again.
    """

    def __init__(self, config: uvicorn.Config, server: ModelServer) -> None:
        super().__init__(config)
        self._models = server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{port}"
            self._models.log("listening", url=url, models=list(self._models.models))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def run(server: ModelServer, app: Callable[..., Any]) -> None:
    """Wait until all models are ready, open the port, and answer requests until a signal.

    SIGTERM and SIGINT close the port and finish accepted requests; a second signal ends at once.

    Raises:
        ModpackError: If a package cannot be loaded, or the port cannot be opened.
    """
    settings = server.settings
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [LogHandler(server.log)], False
    limits = {"head_seconds": settings.timeout}
    config = uvicorn.Config(
        app,
        http=type("Protocol", (_BoundedProtocol,), limits),
        lifespan="off",
        backlog=2048,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout)),
    )
    loop = (config.get_loop_factory() or asyncio.new_event_loop)()
    loop.set_exception_handler(partial(_log_failure, server.log))
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(server, _Server(config, server)))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _log_failure(log: Log, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what asyncio reports: failed background tasks, and exhausted system resources."""
    failure = context.get("exception")
    error = None if failure is None else f"{type(failure).__name__}: {failure}"
    log("error", message=context["message"], error=error)


async def _serve(server: ModelServer, http: uvicorn.Server) -> None:
    host = server.settings.host
    try:
        with _reserve(host, server.settings.port) as listener:
            await server.start()
            await http.serve([listener])
    finally:
        await server.close()
    server.log("stopped")


def _reserve(host: str, port: int) -> socket.socket:
    """Return a socket with an address, which refuses connections until uvicorn listens."""
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError as failure:
        reserved.close()
        raise ModpackError(
            f"cannot listen on {host}, port {port}: {failure.strerror or failure}",
            hint="Pass another --host or --port.",
        ) from failure
    return reserved
