"""The routes of a server of models, on FastAPI.

Requests to models are handled below FastAPI's layer of parameters and response models: their bodies
go to the workers as they are.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from modpack._version import __version__
from modpack.serving.asgi import (
    FACTS,
    GONE,
    ClientGone,
    LoggedApp,
    Receive,
    Scope,
    Send,
    read_body,
    send_answer,
)
from modpack.serving.open_inference import model_metadata, server_metadata
from modpack.serving.openapi import openapi_document
from modpack.serving.page import render_page
from modpack.serving.problems import RequestError, error_answer
from modpack.serving.settings import Answer, JobKind

if TYPE_CHECKING:
    from modpack.core.call_signature import CallSignature
    from modpack.integrations.prometheus import PrometheusMetrics
    from modpack.serving.server import ModelServer


def make_app(server: ModelServer, metrics: PrometheusMetrics) -> LoggedApp:
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
    return LoggedApp(app, server.log)


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
        facts = scope[FACTS]
        try:
            answer = await self._answer(scope, receive, facts)
        except RequestError as failure:
            answer = error_answer(str(failure), failure.status, self._kind == "infer")
        except ClientGone:
            facts["status"] = GONE
            return
        if "model" in facts:
            seconds = time.perf_counter() - facts["started"]
            self._metrics.answered(facts["model"], self._kind, answer.status, seconds)
        await send_answer(answer, send)

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
            body = await read_body(headers, receive, settings.max_body, settings.timeout)
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
