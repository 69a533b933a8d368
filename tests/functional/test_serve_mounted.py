"""Models of packages in an application of Starlette, as in one of FastAPI."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from modpack.errors import ModpackError
from modpack.integrations.asgi import ModelApp
from tests.serving_process import export


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> ModelApp:
    folder = tmp_path_factory.mktemp("mounted")
    return ModelApp({"net": export(folder, folder / "net.modpack", 2)}, workers=1, threads=1)


def _client(app: Starlette) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def test_mounted_models_answer_while_the_lifespan_runs(models, caplog):
    caplog.set_level(logging.INFO, "modpack.integrations.asgi")

    async def run() -> None:
        app = Starlette(lifespan=models.lifespan)
        app.mount("/ml", models)
        async with app.router.lifespan_context(app), _client(app) as client:
            answer = await client.post("/ml/predict", json={"x": [[1, 2, 3, 4]]})
            assert (answer.status_code, answer.json()) == (200, {"output": [[20.0, 20.0]]})
            ready = await client.get("/ml/v2/models/net/ready")
            assert ready.json() == {"name": "net", "ready": True}
            assert "modpack_requests" in (await client.get("/ml/metrics")).text
            assert (await client.get("/ml/")).status_code == 200
            assert (await client.get("/predict")).status_code == 404  # of the application

    for _ in range(2):  # the application can start again
        asyncio.run(run())
    lines = [each.getMessage() for each in caplog.records]
    assert sum(line.startswith("ready model=net") for line in lines) == 2
    assert any("path=/ml/predict status=200" in line for line in lines)


def test_models_without_their_lifespan_say_how_to_run_it():
    async def run() -> None:
        app = Starlette()
        app.mount("/ml", ModelApp({"net": "net.modpack"}))
        async with _client(app) as client:
            await client.post("/ml/predict", json={})

    with pytest.raises(RuntimeError, match=r"lifespan=models\.lifespan"):
        asyncio.run(run())


def test_websockets_are_closed():
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    app = ModelApp({"net": "net.modpack"})
    asyncio.run(app({"type": "websocket", "path": "/predict"}, lambda: None, send))
    assert [each["type"] for each in sent] == ["websocket.close"]


def test_package_that_cannot_be_loaded_stops_the_start(tmp_path):
    path = tmp_path / "net.modpack"
    path.write_bytes(b"PK")

    async def run() -> None:
        async with ModelApp({"net": path}).lifespan():
            pass

    with pytest.raises(ModpackError, match=r"net\.modpack"):
        asyncio.run(run())
