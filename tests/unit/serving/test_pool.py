"""The workers of a package, with a zygote that a test controls."""

from __future__ import annotations

import asyncio
import socket

import pytest

from modpack.core.call_signature import CallSignature
from modpack.errors import ModpackError
from modpack.serving.dispatch import Dispatcher
from modpack.serving.frames import Channel, LoadedPackage, LoadOrder
from modpack.serving.pool import WorkerPool
from modpack.serving.settings import ServerSettings
from tests.unit.serving.test_dispatch import Figures

SIGNATURE = CallSignature(("net", "model.pkl"), (), 0, (), ())


class FakeZygote:
    """A zygote whose process can start some workers, and ends when a test says so."""

    def __init__(self, order: LoadOrder, can_fork: bool, workers: int) -> None:
        self.order = order
        self.can_fork = can_fork
        self.left = workers
        self.workers: list[Channel] = []
        self.has_ended = False

    async def loaded(self) -> LoadedPackage:
        await asyncio.sleep(0.05)
        return LoadedPackage("0123", SIGNATURE, self.can_fork, ())

    def start_worker(self) -> socket.socket:
        if not self.left or self.has_ended:
            raise OSError
        self.left -= 1
        ours, theirs = socket.socketpair()
        self.workers.append(Channel(theirs))
        return ours

    def close(self) -> None:
        self.has_ended = True


class Pool(WorkerPool):
    """A pool with zygotes that a test controls.

    Attributes:
        loads: The zygotes so far.
        logged: The events of the log.
    """

    def __init__(self, workers: int, can_fork: bool = True, starts: int = 99) -> None:
        self.loads: list[FakeZygote] = []
        self.logged: list[str] = []

        def load(order: LoadOrder, log: object) -> FakeZygote:
            self.loads.append(FakeZygote(order, can_fork, starts))
            return self.loads[-1]

        settings = ServerSettings(workers=workers)
        super().__init__(
            LoadOrder("net", "net.modpack", settings),
            Dispatcher("net", settings, Figures()),
            lambda pid: None,
            lambda event, **fields: self.logged.append(event),
            load,
        )

    @property
    def channels(self) -> list[Channel]:
        return [each for zygote in self.loads for each in zygote.workers]

    async def start_all(self) -> None:
        """Start the pool, whose workers say that they are ready."""
        starting = asyncio.create_task(self.start())
        await asyncio.sleep(0.3)
        self.greet(self.channels)
        await asyncio.wait_for(starting, 5)

    def greet(self, channels: list[Channel], first: int = 1) -> None:
        for number, channel in enumerate(channels, first):
            channel.send({"worker": number})


def test_worker_that_cannot_be_replaced_breaks_the_pool():
    async def test() -> None:
        pool = Pool(1, starts=1)
        await pool.start_all()
        assert not pool.is_broken
        pool.channels[0].connection.close()
        await asyncio.sleep(0.3)
        assert pool.is_broken

    asyncio.run(test())


def test_start_fails_if_a_worker_ends_and_cannot_be_replaced():
    async def test() -> None:
        pool = Pool(1, starts=1)
        starting = asyncio.create_task(pool.start())
        await asyncio.sleep(0.3)
        pool.channels[0].connection.close()
        with pytest.raises(ModpackError, match="workers end before they are ready"):
            await asyncio.wait_for(starting, 5)

    asyncio.run(test())


def test_workers_that_are_lost_with_their_zygote_get_one_new_zygote():
    async def test() -> None:
        pool = Pool(3)
        await pool.start_all()
        assert len(pool.loads) == 1
        lost = pool.channels
        pool.loads[0].has_ended = True
        for channel in lost:
            channel.connection.close()
        await asyncio.sleep(0.3)
        _, again = pool.loads
        assert again.order.digest == "0123"
        assert len(again.workers) == 3 and pool.logged == ["loading process lost"]
        pool.greet(again.workers, 4)
        await asyncio.sleep(0.1)
        assert pool.pids == [4, 5, 6] and not pool.is_broken

    asyncio.run(test())


def test_zygote_that_cannot_fork_is_one_worker():
    async def test() -> None:
        pool = Pool(2, can_fork=False)
        await pool.start_all()
        assert [len(each.workers) for each in pool.loads] == [1, 1]
        first = pool.loads[0]
        first.has_ended = True
        first.workers[0].connection.close()
        await asyncio.sleep(0.3)
        assert [len(each.workers) for each in pool.loads] == [1, 1, 1]
        assert pool.logged == []

    asyncio.run(test())
