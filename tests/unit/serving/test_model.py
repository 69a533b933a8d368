"""A served model whose processes cannot be started for a while."""

from __future__ import annotations

import asyncio

import pytest

from modpack.errors import ModpackError
from modpack.serving import model as serving_model
from modpack.serving.settings import LoadedPackage, LoadOrder, ServerSettings
from tests.unit.serving.test_dispatch import Figures


class Pool:
    """A pool that starts, or fails."""

    def __init__(self, failures: list[Exception]) -> None:
        self.pids = [1]
        self.is_broken = False
        self._failures = failures

    async def start(self) -> LoadedPackage:
        if self._failures:
            raise self._failures.pop(0)
        return LoadedPackage("0123", SIGNATURE, True, ())

    async def close(self, timeout: float) -> None:
        pass


SIGNATURE = {
    **{"resource": ["net", "m.pkl"], "parameters": [], "positional": 0, "inputs": []},
    **{"outputs": [], "containers": [], "output_containers": [], "batch": None},
    "batching": "untested",
}


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """Return a function that serves a file, replaces it, and returns the log."""
    monkeypatch.setattr(serving_model, "_POLL_SECONDS", 0.01)
    path = tmp_path / "net.modpack"
    path.write_bytes(b"1")

    def watch(when_made: list[Exception], when_started: list[Exception]) -> list[str]:
        log: list[str] = []

        def make_pool(self):
            if when_made:
                raise when_made.pop(0)
            return Pool(when_started)

        async def test() -> None:
            model = serving_model.ServedModel.__new__(serving_model.ServedModel)
            monkeypatch.setattr(serving_model.ServedModel, "_make_pool", lambda self: Pool([]))
            write = lambda event, **fields: log.append(f"{event} {fields.get('error', '')}")  # noqa: E731
            order = LoadOrder("net", str(path))
            model.__init__(order, ServerSettings(), Figures(), write)  # type: ignore[misc]
            await model.start()
            monkeypatch.setattr(serving_model.ServedModel, "_make_pool", make_pool)
            path.write_bytes(b"12")
            await asyncio.sleep(0.5)
            await model.close(0)

        asyncio.run(test())
        return log

    return watch


def test_replacement_is_loaded_when_descriptors_are_left_again(watched):
    exhausted = OSError(24, "Too many open files")
    log = watched([exhausted, exhausted], [exhausted])
    failed = "replacement failed [Errno 24] Too many open files"
    assert log == ["ready ", failed, failed, failed, "ready "]


def test_broken_replacement_is_tried_once(watched):
    log = watched([], [ModpackError("it is damaged")])
    assert log == ["ready ", "replacement failed it is damaged"]


def test_watching_goes_on_after_any_error(watched):
    log = watched([RuntimeError("odd")], [])
    assert log == ["ready ", "watching failed RuntimeError: odd", "ready "]
