"""A server of models, apart from HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from modpack.core.policy import TrustPolicy
from modpack.serving.dispatch import Job, Metrics
from modpack.serving.frames import LoadOrder
from modpack.serving.log import Log
from modpack.serving.model import ServedModel
from modpack.serving.open_inference import HEADER_LENGTH, HEADER_LENGTH_KEY
from modpack.serving.settings import JobKind, RequestError, ServerSettings

_ENCODINGS: Final = {b"": "", b"identity": "", b"gzip": "gzip", b"deflate": "deflate"}


class ModelServer:
    """Models that answer requests. Loading their packages begins at once.

    Args:
        packages: The packages by name of the model.
        settings: The settings of the server.
        policy: The trust policy of the packages. None allows everything.
        metrics: The figures of the models and of requests.
        log: Writes log lines.

    Attributes:
        models: The models by name.
        settings: The settings.
        metrics: The figures.
    """

    def __init__(
        self,
        packages: Mapping[str, str],
        settings: ServerSettings,
        policy: TrustPolicy | None,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.log = log
        self.models = {
            name: ServedModel(LoadOrder(name, path, settings, policy), metrics, log)
            for name, path in packages.items()
        }

    @property
    def is_ready(self) -> bool:
        """Whether every model has a worker that is ready."""
        return all(model.is_ready for model in self.models.values())

    async def start(self) -> None:
        """Wait until all models are ready.

        Raises:
            ModpackError: If a package cannot be loaded. All processes have ended.
        """
        # Exceptions are collected, so that the processes of the other models end, too.
        started = await asyncio.gather(
            *(model.start() for model in self.models.values()), return_exceptions=True
        )
        failures = [each for each in started if isinstance(each, BaseException)]
        if failures:
            await self.close(0)
            raise failures[0]

    async def close(self, timeout: float = 1.0) -> None:
        """End all processes."""
        await asyncio.gather(*(model.close(timeout) for model in self.models.values()))

    def kill(self) -> None:
        """Kill all processes that have not ended."""
        for model in self.models.values():
            model.kill()

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Return a model.

        Raises:
            RequestError: If the server has no such model or version.
        """
        model = self.models.get(name)
        if model is None:
            known = ", ".join(map(repr, self.models))
            raise RequestError(f"no model {name!r:.100}. The models are: {known}", 404)
        if version is not None and version != model.version:
            raise RequestError(
                f"no version {version!r:.100} of model {name!r}; it has {model.version!r}", 404
            )
        return model

    def make_job(self, kind: JobKind, headers: dict[bytes, bytes], body: bytes) -> Job:
        """Return a request as a job.

        Args:
            kind: The form of the request.
            headers: The headers, with names in lowercase.
            body: The body.

        Raises:
            RequestError: If a header is invalid.
        """
        # A missing type stands for JSON: tritonclient sends none.
        media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media.startswith((b"image/", b"multipart/")):
            if kind == "infer" or not media.startswith(b"image/"):
                image = "" if kind == "infer" else ", or an image file as the body, as image/png"
                shown = media.decode("latin-1")
                raise RequestError(f"content type {shown!r:.60}: send application/json{image}", 415)
            kind = "image"
        encoding = headers.get(b"content-encoding", b"").strip().lower()
        if encoding not in _ENCODINGS:
            shown = encoding.decode("latin-1")
            raise RequestError(f"content encoding {shown!r:.40} is not gzip or deflate", 415)
        json_length = None
        length = headers.get(HEADER_LENGTH_KEY)
        if length is not None and kind == "infer":
            # More digits than any body needs; int() takes quadratic time for thousands of them.
            if not length.isdigit() or len(length) > 15:
                shown = length.decode("latin-1")
                raise RequestError(f"{HEADER_LENGTH} must be a number, not {shown!r:.40}")
            json_length = int(length)
        return Job(kind, body, json_length, _ENCODINGS[encoding], self.settings.timeout)
