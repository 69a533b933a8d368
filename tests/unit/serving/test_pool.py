"""The workers of a package, with a zygote that a test controls."""

from __future__ import annotations

import asyncio
import socket

import pytest

from modpack.errors import ModpackError
from modpack.serving.dispatch import Dispatcher
from modpack.serving.frames import Channel
from modpack.serving.pool import WorkerPool
from modpack.serving.settings import LoadedPackage, LoadOrder, ServerSettings
from tests.unit.serving.test_dispatch import Figures


class FakeZygote:
    """A zygote whose process has ended after it has started some workers."""

    def __init__(self, workers: int) -> None:
        self.order = LoadOrder("net", "net.modpack")
        self.left = workers
        self.workers: list[Channel] = []
        self.lost = asyncio.Event()

    async def loaded(self) -> LoadedPackage:
        return LoadedPackage("0123", {}, True, ())

    async def wait_until_lost(self) -> None:
        await self.lost.wait()

    def command(self, command: bytes) -> socket.socket:
        if not self.left:
            raise OSError
        self.left -= 1
        ours, theirs = socket.socketpair()
        self.workers.append(Channel(theirs))
        return ours


def make_pool(zygote: FakeZygote, broken: list[bool]) -> WorkerPool:
    dispatcher = Dispatcher("net", ServerSettings(), Figures())
    return WorkerPool(
        zygote, zygote.left, dispatcher, lambda pid: None, lambda: broken.append(True), print
    )


def test_worker_that_cannot_be_replaced_breaks_the_pool_once():
    async def test() -> None:
        broken: list[bool] = []
        zygote = FakeZygote(1)
        pool = make_pool(zygote, broken)
        starting = asyncio.create_task(pool.start())
        await asyncio.sleep(0.3)
        zygote.workers[0].send({"worker": 1})
        await asyncio.wait_for(starting, 5)
        assert not pool.is_broken
        zygote.workers[0].connection.close()
        await asyncio.sleep(0.3)
        zygote.lost.set()
        await asyncio.sleep(0.3)
        assert pool.is_broken and broken == [True]

    asyncio.run(test())


def test_start_fails_if_a_worker_ends_and_cannot_be_replaced():
    async def test() -> None:
        zygote = FakeZygote(1)
        pool = make_pool(zygote, [])
        starting = asyncio.create_task(pool.start())
        await asyncio.sleep(0.3)
        zygote.workers[0].connection.close()
        with pytest.raises(ModpackError, match="workers end before they are ready"):
            await asyncio.wait_for(starting, 5)

    asyncio.run(test())
