"""A server of models run by uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from modpack.errors import ModpackError
from modpack.serving.log import LogHandler

if TYPE_CHECKING:
    from modpack.serving.server import ModelServer

_KEEP_ALIVE = 75
"""Seconds that an idle connection stays open."""


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
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.propagate = [LogHandler(server.log)], False
    config = uvicorn.Config(
        app,
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
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(server, _Server(config, server)))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


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
