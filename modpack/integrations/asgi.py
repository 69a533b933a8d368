"""The models of packages as a part of another ASGI application, such as one of FastAPI."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from modpack.core.policy import TrustPolicy
from modpack.integrations.prometheus import PrometheusMetrics
from modpack.serving.asgi import Receive, Scope, Send, ServerApp
from modpack.serving.server import ModelServer
from modpack.serving.settings import ServerSettings

_log = logging.getLogger(__name__)


class ModelApp:
    """An ASGI application that answers requests as ``modpack serve`` does, to mount in another.

    The models run in processes of their own, from the start to the end of :meth:`lifespan`.

    Args:
        packages: The packages by name of the model.
        policy: The trust policy of the packages. None allows everything.
        settings: Fields of :class:`.ServerSettings`, such as ``workers`` and ``max_batch``. Those
            of the HTTP server (``host``, ``port``, ``log_format``) have no effect.

    Raises:
        TypeError: If a setting is unknown.
    """

    def __init__(
        self,
        packages: Mapping[str, str | os.PathLike[str]],
        *,
        policy: TrustPolicy | None = None,
        **settings: Any,
    ) -> None:
        self._packages = {name: os.fspath(path) for name, path in packages.items()}
        self._policy = policy
        self._settings = ServerSettings(**settings)
        self._app: ServerApp | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Run the models. This is the lifespan of the application, or a part of it.

        Frameworks do not run the lifespan of a mounted application.

        Args:
            app: The application that the framework passes; not used.

        Raises:
            ModpackError: If a package cannot be loaded.
        """
        metrics = PrometheusMetrics()
        server = ModelServer(self._packages, self._settings, self._policy, metrics, _write_log)
        metrics.observe(server)
        try:
            await server.start()
            self._app = ServerApp(server)
            yield
        finally:
            # Requests of the last moments are counted with a delay, which must not lose them.
            if self._app is not None:
                self._app.record()
            self._app = None
            await server.close()
            # For processes that have not ended in time.
            server.kill()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            RuntimeError: If :meth:`lifespan` is not running.
        """
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif self._app is None:
            raise RuntimeError(
                "the models are not running. Run the lifespan of this application with yours, as "
                "in FastAPI(lifespan=models.lifespan)."
            )
        else:
            await self._app(scope, receive, send)


def _write_log(event: str, at: float | None = None, /, **fields: object) -> None:
    """Log an event of the server, without its time: requests are logged soon after their end."""
    level = logging.INFO if event in ("ready", "request") else logging.WARNING
    _log.log(level, "%s %s", event, " ".join(f"{name}={value}" for name, value in fields.items()))
