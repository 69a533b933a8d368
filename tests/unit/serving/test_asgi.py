"""The ASGI application, with a server that a test controls."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from modpack.core.call_signature import CallSignature
from modpack.integrations.uvicorn import _limit_heads
from modpack.serving.asgi import ServerApp
from modpack.serving.dispatch import Dispatcher
from modpack.serving.server import ModelServer
from modpack.serving.settings import Answer, ServerSettings
from tests.unit.serving.test_dispatch import Figures

SIGNATURE = CallSignature(("net", "model.pkl"), (), 0, (), ())
DONE = Answer(200, "application/json", b'{"y":1}')


class Metrics(Figures):
    def __init__(self) -> None:
        super().__init__()
        self.counted: list[tuple[str, str, int]] = []

    def answered(self, model: str, kind: str, status: int, seconds: float) -> None:
        self.counted.append((model, kind, status))

    def render(self) -> tuple[str, bytes]:
        return "text/plain", str(len(self.counted)).encode()


class Worker:
    """Answers at once, or raises the exception of a test."""

    def __init__(self, dispatcher: Dispatcher, failure: Exception | None = None) -> None:
        self.dispatcher, self.failure = dispatcher, failure

    def start(self, jobs: list[Any]) -> None:
        if self.failure is not None:
            raise self.failure
        asyncio.get_running_loop().call_soon(self.finish, len(jobs))

    def finish(self, count: int) -> None:
        if self.dispatcher.finish(self, [DONE] * count, 0.0):
            self.dispatcher.add(self)

    def kill(self) -> None: ...


class Served:
    """An application with one model, and what it has written.

    Attributes:
        lines: The log lines.
        metrics: The figures.
    """

    def __init__(self, failure: Exception | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self.metrics = Metrics()
        server = ModelServer({}, ServerSettings(), None, self.metrics, self._log)
        dispatcher = Dispatcher("net", server.settings, self.metrics)
        dispatcher.add(Worker(dispatcher, failure))
        model = SimpleNamespace(
            name="net", version="1", digest="1", is_ready=True, signature=SIGNATURE
        )
        server.models = {"net": SimpleNamespace(**vars(model), dispatcher=dispatcher)}
        self.app = ServerApp(server)

    def _log(self, event: str, at: float, **fields: Any) -> None:
        self.lines.append({"at": at, **fields})

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, dict[bytes, bytes], Any]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], **more}
        try:
            await self.app(scope, receive, send)
        finally:
            self.answer = sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])
        return self.answer


def test_app_below_a_prefix_answers_paths_without_it():
    async def run() -> None:
        served = Served()
        found = await served.ask("POST", "/ml/models/net/predict", root_path="/ml")
        assert (found[0], found[2]) == (200, {"y": 1})
        assert (await served.ask("POST", "/ml/v2/models/net/infer", root_path="/ml"))[0] == 200
        served.app.record()
        assert served.metrics.counted == [("net", "predict", 200), ("net", "infer", 200)]
        assert served.lines[0]["path"] == "/ml/models/net/predict"

    asyncio.run(run())


@pytest.mark.parametrize(
    "method, path, status, allowed",
    [
        ("HEAD", "/v2/health/ready", 200, None),
        ("GET", "/v2/models/net/versions/1/ready", 200, None),
        ("PUT", "/v2", 405, b"GET, HEAD"),
        ("GET", "/predict", 405, b"POST"),
        ("GET", "/v2/models/net/infer", 405, b"POST"),
        ("POST", "/v2/models/net/versions/2/infer", 404, None),
        ("POST", "/models//predict", 404, None),
        ("GET", "/v2/models/net/", 404, None),
    ],
)
def test_app_answers_status_and_allowed_methods(method, path, status, allowed):
    found = asyncio.run(Served().ask(method, path))
    assert (found[0], found[1].get(b"allow")) == (status, allowed)


def test_metrics_count_all_answers_before_them():
    async def run() -> None:
        served = Served()
        for _ in range(3):
            await served.ask("POST", "/predict")
        assert (await served.ask("GET", "/metrics"))[2] == 3

    asyncio.run(run())


def test_requests_are_logged_soon_with_the_time_of_their_answers():
    async def run() -> None:
        served = Served()
        for _ in range(2):
            await served.ask("POST", "/predict")
        assert not served.lines
        await asyncio.sleep(0.1)
        first, second = served.lines
        assert first["at"] < second["at"] and first["id"] != second["id"]
        assert (first["status"], first["model"], first["batch"]) == (200, "net", 1)

    asyncio.run(run())


def test_bug_is_answered_logged_and_raised():
    async def run() -> None:
        served = Served(ZeroDivisionError("bug"))
        with pytest.raises(ZeroDivisionError):
            await served.ask("POST", "/predict")
        assert served.answer[0] == 500 and "bug" not in served.answer[2]["error"]
        served.app.record()
        assert served.lines[0]["status"] == 500

    asyncio.run(run())


class Transport:
    """Keeps each write of an answer."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def get_extra_info(self, name: str) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_each_answer_is_one_write_in_order():
    async def run() -> None:
        config = uvicorn.Config(Served().app, http=_limit_heads(60), lifespan="off", ws="none")
        config.load()
        protocol = config.http_protocol_class(
            config=config, server_state=ServerState(), app_state={}
        )
        transport = Transport()
        protocol.connection_made(transport)
        head = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}"
        protocol.data_received(head % b"/predict" + head % b"/other" + head % b"/predict")
        while len(transport.writes) < 3:
            await asyncio.sleep(0.01)
        assert [w[9:12] for w in transport.writes] == [b"200", b"404", b"200"]
        assert all(b"\r\n\r\n{" in write for write in transport.writes)
        slow = head.replace(b"host: a", b"host: a\r\nexpect: 100-continue") % b"/predict"
        protocol.data_received(slow[:-2])
        while len(transport.writes) < 4:
            await asyncio.sleep(0.01)
        assert transport.writes[3] == b"HTTP/1.1 100 Continue\r\n\r\n"
        protocol.data_received(b"{}")
        while len(transport.writes) < 5:
            await asyncio.sleep(0.01)
        assert transport.writes[4].startswith(b"HTTP/1.1 200 OK")

    asyncio.run(asyncio.wait_for(run(), 20))
