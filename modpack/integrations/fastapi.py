"""The routes of a server of models, on FastAPI.

Requests to models are handled below FastAPI's layer of parameters and response models: their bodies
go to the workers as they are.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from modpack._version import __version__
from modpack.serving.open_inference import model_metadata, server_metadata
from modpack.serving.openapi import openapi_document
from modpack.serving.page import render_page
from modpack.serving.problems import RequestError, error_answer
from modpack.serving.server import RETRY_AFTER, unpack
from modpack.serving.settings import Answer, JobKind

if TYPE_CHECKING:
    from modpack.core.call_signature import CallSignature
    from modpack.integrations.prometheus import PrometheusMetrics
    from modpack.serving.server import ModelServer

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_FACTS: Final = "modpack"
"""The key of a scope with what the log reports about a request."""
_QUIET: Final = ("/v2/health/", "/metrics")
"""Paths that are polled, and therefore not logged."""
_GONE: Final = 499
"""The status in the log if the client has closed the connection before its request was complete."""


class _ClientGone(Exception):
    pass


def make_app(server: ModelServer, metrics: PrometheusMetrics) -> _LoggedApp:
    """Return the ASGI application of a server."""
    app = FastAPI(title="modpack", version=__version__, redoc_url=None, redirect_slashes=False)
    app.openapi = lambda: openapi_document(_signatures(server))  # type: ignore[method-assign]
    _add_information(app, server, metrics)
    infer = _ModelRoute(server, metrics, "infer")
    predict = _ModelRoute(server, metrics, "predict")
    root = "/v2/models/{name}"
    app.router.routes[:0] = [  # before the others: routes are tried in order
        Route(f"{root}/infer", infer, methods=["POST"]),
        Route(f"{root}/versions/{{version}}/infer", infer, methods=["POST"]),
        Route("/predict", predict, methods=["POST"]),
        Route("/models/{name}/predict", predict, methods=["POST"]),
    ]
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestError, _answer_request_error)
    app.add_exception_handler(Exception, _answer_bug)
    return _LoggedApp(app, server)


def _signatures(server: ModelServer) -> dict[str, CallSignature]:
    return {name: model.signature for name, model in server.models.items()}


def _add_information(app: FastAPI, server: ModelServer, metrics: PrometheusMetrics) -> None:
    """Add the routes that tell about the server. None of them waits for a model."""

    @app.get("/")
    async def page() -> Response:
        text, policy = render_page(_signatures(server))
        return HTMLResponse(text, headers={"content-security-policy": policy})

    @app.get("/metrics")
    async def get_metrics() -> Response:
        content, media_type = metrics.render()
        return Response(content, headers={"content-type": media_type})

    @app.get("/v2")
    async def get_server() -> Response:
        return JSONResponse(server_metadata())

    @app.get("/v2/health/live")
    async def get_live() -> Response:
        return JSONResponse({"live": True})

    @app.get("/v2/health/ready")
    async def get_ready() -> Response:
        return JSONResponse({"ready": server.is_ready}, 200 if server.is_ready else 503)

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def get_model(name: str, version: str | None = None) -> Response:
        model = server.find(name, version)
        return JSONResponse(model_metadata(name, model.digest, model.signature))

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def get_model_ready(name: str, version: str | None = None) -> Response:
        is_ready = server.find(name, version).is_ready
        return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)


class _ModelRoute:
    """The ASGI application of the requests to models."""

    def __init__(self, server: ModelServer, metrics: PrometheusMetrics, kind: JobKind) -> None:
        self._server = server
        self._metrics = metrics
        self._kind: JobKind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        facts = scope.setdefault(_FACTS, {"started": time.perf_counter()})
        try:
            answer = await self._answer(scope, receive, facts)
        except RequestError as failure:
            answer = error_answer(str(failure), failure.status, self._kind == "infer")
        except _ClientGone:
            facts["status"] = _GONE
            return
        if "model" in facts:
            seconds = time.perf_counter() - facts["started"]
            self._metrics.answered(facts["model"], self._kind, answer.status, seconds)
        await _send_answer(answer, send)

    async def _answer(self, scope: Scope, receive: Receive, facts: dict[str, Any]) -> Answer:
        names = scope["path_params"]
        model = self._server.find(self._model_name(names), names.get("version"))
        facts["model"] = model.name
        if not model.dispatcher.admit():
            raise RequestError("the queue is full", 429)
        is_submitted = False
        try:
            headers = dict(scope["headers"])
            settings = self._server.settings
            body = await _read_body(headers, receive, settings.max_body, settings.timeout)
            job = self._server.make_job(self._kind, headers, body)
            is_submitted = True
        finally:
            if not is_submitted:
                model.dispatcher.withdraw()
        model.dispatcher.submit(job)
        answer = await job.answer
        facts["batch"] = job.batch
        return answer

    def _model_name(self, names: dict[str, str]) -> str:
        if "name" in names:
            return names["name"]
        if len(self._server.models) > 1:
            known = ", ".join(f"/models/{name}/predict" for name in self._server.models)
            raise RequestError(f"the server has several models. Use one of: {known}", 404)
        return next(iter(self._server.models))


async def _read_body(
    headers: dict[bytes, bytes], receive: Receive, limit: int, timeout: float
) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: If the body exceeds the limit, or does not arrive in time.
        _ClientGone: If the client has closed the connection.
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


async def _read_chunks(message: MutableMapping[str, Any], receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while message["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > limit:
            raise RequestError(f"the body exceeds {limit} bytes", 413)
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()
    raise _ClientGone


async def _send_answer(answer: Answer, send: Send) -> None:
    status, headers, body = unpack(answer)
    if status == 429:
        headers.append((b"retry-after", RETRY_AFTER.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _LoggedApp:
    """Writes a log line for each request, and gives each request an ID."""

    def __init__(self, app: FastAPI, server: ModelServer) -> None:
        self._app = app
        self._log = server.log
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
        scope[_FACTS] = facts

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
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


def _error_response(request: Request, message: str, status: int) -> Response:
    answer = error_answer(message, status, request.url.path.startswith("/v2"))
    return Response(answer.body, answer.status, media_type=answer.media_type)


async def _answer_http_error(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    path = request.url.path
    texts = {404: f"no such path: {path!r:.200}", 405: f"{request.method} is not allowed here"}
    message = texts.get(failure.status_code, str(failure.detail))
    response = _error_response(request, message, failure.status_code)
    response.headers.update(failure.headers or {})
    return response


async def _answer_request_error(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, RequestError)
    return _error_response(request, str(failure), failure.status)


async def _answer_bug(request: Request, failure: Exception) -> Response:
    return _error_response(request, "internal error; see the log of the server", 500)
