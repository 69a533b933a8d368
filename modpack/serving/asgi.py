"""The ASGI application of a server of models: routes, bodies, answers, and a log line per request.

There is no web framework. Bodies go to the workers as they are, and come back as they are sent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from modpack.serving.open_inference import HEADER_LENGTH_KEY, model_metadata, server_metadata
from modpack.serving.pages import docs_page, openapi_document, start_page
from modpack.serving.settings import JSON, Answer, JobKind, RequestError, error_answer

if TYPE_CHECKING:
    from modpack.core.call_signature import CallSignature
    from modpack.serving.dispatch import Job
    from modpack.serving.model import ServedModel
    from modpack.serving.server import ModelServer

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = dict[bytes, bytes]
_Ended: TypeAlias = tuple[float, bytes, Scope, int, float, dict[str, Any]]
_Action: TypeAlias = Literal["predict", "infer", "ready", "metadata", "page"]

_GONE: Final = 499
"""The status in the log if the client has closed the connection before its request was complete."""
_QUIET: Final = ("/v2/health/", "/metrics")
"""Paths that are polled, and therefore not logged."""
_RECORD_AFTER: Final = 0.01
"""Seconds after which the requests that have ended are counted and logged.

Doing so between the answer and the next request takes three times as long for each, because all of
this code leaves the processor's caches in between (benchmark serving, 1 client).
"""
_RETRY_AFTER: Final = b"1"
"""Seconds after which a client may try again if the queue is full."""
_PREDICT: Final = re.compile(r"(?:/models/([^/]+))?/predict")
_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready))?")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class _ClientGone(Exception):
    """The client has closed the connection."""


class ServerApp:
    """The ASGI application of a server.

    Args:
        server: The models.
    """

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._metrics = server.metrics
        self._prefix = os.urandom(4).hex()
        self._numbers = itertools.count(1)
        self._ended: list[_Ended] = []
        self._pages: dict[str, Callable[[], Answer]] = {
            "/": lambda: start_page(self._signatures()),
            "/docs": docs_page,
            "/openapi.json": lambda: _json_answer(openapi_document(self._signatures())),
            "/metrics": self._render_metrics,
            "/v2": lambda: _json_answer(server_metadata()),
            "/v2/health/live": lambda: _json_answer({"live": True}),
            "/v2/health/ready": lambda: _ready_answer(server.is_ready),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        started = time.perf_counter()
        # Below another application, the path starts with the prefix of the mount (ASGI).
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers = dict(scope["headers"])
        # The client chooses this text, which is in the answer and in the log: it must stay short.
        given: bytes = headers.get(b"x-request-id", b"")[:128]
        identifier = given or f"{self._prefix}-{next(self._numbers)}".encode()
        facts: dict[str, Any] = {}
        status = 500
        try:
            try:
                answer = self._route(scope["method"], path)
                if not isinstance(answer, Answer):
                    model, kind = answer
                    facts["model"] = model.name
                    job = await self._call(model, kind, headers, receive)
                    answer, facts["batch"] = job.answer.result(), job.batch
            except RequestError as failure:
                answer = error_answer(str(failure), failure.status, path.startswith("/v2"))
            status = answer.status
            await _send(answer, identifier, send)
        except _ClientGone:
            status = _GONE
        except Exception:  # a bug; the HTTP server logs it
            text = "internal error; see the log of the server"
            await _send(error_answer(text, 500, path.startswith("/v2")), identifier, send)
            raise
        finally:
            seconds = time.perf_counter() - started
            if not self._ended:
                asyncio.get_running_loop().call_later(_RECORD_AFTER, self.record)
            self._ended.append((time.time(), identifier, scope, status, seconds, facts))

    def record(self) -> None:
        """Count and log the requests that have ended since the last call."""
        ended, self._ended = self._ended, []
        for at, identifier, scope, status, seconds, facts in ended:
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            # A client that has gone received no answer that could be counted.
            if "model" in facts and status != _GONE:
                kind = "infer" if path.startswith("/v2") else "predict"
                self._metrics.answered(facts["model"], kind, status, seconds)
            if status >= 400 or not path.startswith(_QUIET):
                self._server.log(
                    "request",
                    at,
                    id=identifier.decode("latin-1"),
                    method=scope["method"],
                    path=scope["path"],
                    status=status,
                    ms=round(seconds * 1000, 2),
                    **facts,
                )

    def _render_metrics(self) -> Answer:
        # Requests that have just ended are counted first.
        self.record()
        return Answer(200, *self._metrics.render())

    def _route(self, method: str, path: str) -> Answer | tuple[ServedModel, JobKind]:
        """Return the answer of a page, or the model that a request calls.

        Raises:
            RequestError: If there is no such path, model, or version.
        """
        page = self._pages.get(path)
        action, name, version = ("page", None, None) if page else _split(path)
        is_call = action == "predict" or action == "infer"
        allowed = ("POST",) if is_call else ("GET", "HEAD")
        if method not in allowed:
            text = f"{method} is not allowed here"
            # RFC 9110 requires the header Allow in this answer.
            answer = error_answer(text, 405, path.startswith("/v2"))
            return answer._replace(headers=((b"allow", ", ".join(allowed).encode()),))
        if page is not None:
            return page()
        model = self._server.find(name or self._only_name(), version)
        if action == "predict" or action == "infer":
            return model, action
        if action == "ready":
            return _ready_answer(model.is_ready, name=model.name)
        return _json_answer(model_metadata(model.name, model.digest, model.signature))

    async def _call(
        self, model: ServedModel, kind: JobKind, headers: Headers, receive: Receive
    ) -> Job:
        """Return a request that a model's worker has answered."""
        # Before the body is read, so that requests beyond the queue take no memory.
        if not model.dispatcher.admit():
            raise RequestError("the queue is full", 429)
        job = None
        try:
            settings = self._server.settings
            body = await _read_body(headers, receive, settings.max_body, settings.timeout)
            job = self._server.make_job(kind, headers, body)
        finally:
            # Also if the client has gone: the place in the queue would be lost forever.
            if job is None:
                model.dispatcher.withdraw()
        model.dispatcher.submit(job)
        await job.answer
        return job

    def _only_name(self) -> str:
        if len(self._server.models) > 1:
            known = ", ".join(f"/models/{name}/predict" for name in self._server.models)
            raise RequestError(f"the server has several models. Use one of: {known}", 404)
        return next(iter(self._server.models))

    def _signatures(self) -> dict[str, CallSignature]:
        return {name: model.signature for name, model in self._server.models.items()}


def _split(path: str) -> tuple[_Action, str | None, str | None]:
    """Return what a path asks of a model, the model's name if it has one, and the version.

    Raises:
        RequestError: If there is no such path.
    """
    if found := _PREDICT.fullmatch(path):
        return "predict", found[1], None
    if found := _MODEL.fullmatch(path):
        action = cast(_Action, found[3] or "metadata")
        return action, found[1], found[2]
    raise RequestError(f"no such path: {path!r:.200}", 404)


def _json_answer(document: object, status: int = 200) -> Answer:
    return Answer(status, JSON, _encode(document).encode())


def _ready_answer(is_ready: bool, **names: str) -> Answer:
    return _json_answer({**names, "ready": is_ready}, 200 if is_ready else 503)


async def _read_body(headers: Headers, receive: Receive, limit: int, timeout: float) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: If the body exceeds the limit, or does not arrive in time.
        _ClientGone: If the client has closed the connection.
    """
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise RequestError(f"the body has {int(length)} bytes, and the limit is {limit}", 413)
    is_late, task = False, asyncio.current_task()

    def stop() -> None:
        nonlocal is_late
        is_late = True
        if task is not None:
            task.cancel()

    # asyncio.wait_for would create a task for each body, though most have arrived already.
    timer = asyncio.get_running_loop().call_later(timeout, stop)
    try:
        return await _read_chunks(receive, limit)
    except asyncio.CancelledError:
        if not is_late:
            raise
        if task is not None and sys.version_info >= (3, 11):
            task.uncancel()
        raise RequestError(f"the body did not arrive within {timeout:g} seconds", 408) from None
    finally:
        timer.cancel()


async def _read_chunks(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while (message := await receive())["type"] == "http.request":
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise RequestError(f"the body exceeds {limit} bytes", 413)
        if not message.get("more_body"):
            return b"".join(chunks)  # returns a single chunk as it is
    raise _ClientGone


async def _send(answer: Answer, identifier: bytes, send: Send) -> None:
    headers = [
        (b"content-type", answer.media_type.encode("ascii")),
        (b"content-length", b"%d" % len(answer.body)),
        (b"x-request-id", identifier),
        *answer.headers,
    ]
    if answer.json_length is not None:
        headers.append((HEADER_LENGTH_KEY, b"%d" % answer.json_length))
    if answer.status == 429:
        headers.append((b"retry-after", _RETRY_AFTER))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
