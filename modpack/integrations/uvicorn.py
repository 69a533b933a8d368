"""A server of models run by uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from modpack.errors import ModpackError
from modpack.serving.log import LogHandler

if TYPE_CHECKING:
    from modpack.serving.asgi import ServerApp
    from modpack.serving.server import ModelServer

_KEEP_ALIVE = 75
"""Seconds that an idle connection stays open."""


_MAX_HEAD = 1 << 16
"""Bytes of a request's head, or trailers, at most, apart from bytes that arrive together."""
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class _JoinedWrites:
    """A transport that sends an answer as a whole.

    uvicorn writes the head and the body. Two writes cost the server a tenth of its time, and wake
    the client twice (benchmark serving, 1 client).

    Args:
        transport: The transport.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._held.append(data)
        if data.startswith(b"HTTP/1.1 100"):  # the client waits for it before it sends the body
            self.flush()

    def flush(self) -> None:
        """Send a complete answer."""
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.writelines(held)

    def close(self) -> None:
        self.flush()
        self._transport.close()


def _limit_heads(timeout: float) -> type[asyncio.Protocol]:
    """Return a protocol that limits the head of a request in bytes and seconds.

    uvicorn's own waits for the head forever, and httptools collects any number of bytes, also in
    the trailers of a chunked body. h11 limits trailers itself.
    """
    parses_bodies = hasattr(AutoHTTPProtocol, "on_body")

    class Limited(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _size = 0
        _has_body = False
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            self._joined = _JoinedWrites(transport)
            super().connection_made(self._joined)
            self._wait()

        def on_response_complete(self) -> None:
            self._joined.flush()
            super().on_response_complete()

        def data_received(self, data: bytes) -> None:
            cycle = self.cycle
            was_head = cycle is None or not cycle.more_body
            self._has_body = False
            super().data_received(data)
            if self.cycle is not cycle:  # a head is complete
                self._stop()
            elif self._has_body:
                self._size = 0
            elif was_head or parses_bodies:
                self._size += len(data)
                if self._size > _MAX_HEAD and not self.transport.is_closing():
                    if cycle is None or cycle.response_complete:  # not in the middle of an answer
                        self.transport.write(_HEAD_TOO_LARGE)
                    self.transport.close()
                elif was_head and self._timer is None:
                    self._wait()

        def on_body(self, body: bytes) -> None:
            self._has_body = True
            super().on_body(body)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._timer = asyncio.get_running_loop().call_later(timeout, self._expire)

        def _expire(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._wait()  # the next head may wait while a request is answered
            else:
                self.transport.close()

        def _stop(self) -> None:
            self._size = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Limited


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


def run(server: ModelServer, app: ServerApp) -> None:
    """Wait until all models are ready, open the port, and answer requests until a signal.

    SIGTERM and SIGINT close the port and finish accepted requests; a second signal ends at once.

    Raises:
        ModpackError: If a package cannot be loaded, or the port cannot be opened.
    """
    settings = server.settings
    # All libraries' records, asyncio's among them, become lines of the log.
    logging.getLogger().handlers = [LogHandler(server.log)]
    logging.captureWarnings(True)
    config = uvicorn.Config(
        app,
        http=_limit_heads(settings.timeout),
        lifespan="off",
        backlog=2048,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # nothing here reads the address of a client
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_timeout)),
    )
    loop = (config.get_loop_factory() or asyncio.new_event_loop)()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(server, _Server(config, server), app))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _serve(server: ModelServer, http: uvicorn.Server, app: ServerApp) -> None:
    host = server.settings.host
    try:
        with _reserve(host, server.settings.port) as listener:
            await server.start()
            await http.serve([listener])
    finally:
        app.record()
        await server.close()
    server.log("stopped")


def _reserve(host: str, port: int) -> socket.socket:
    """Return a socket with an address, which refuses connections until uvicorn listens."""
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # A restart would otherwise fail while connections of the previous server expire.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError as failure:
        reserved.close()
        raise ModpackError(
            f"cannot listen on {host}, port {port}: {failure.strerror or failure}",
            hint="Pass another --host or --port.",
        ) from failure
    return reserved
