"""The queue of a model, with workers that a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from modpack.serving.dispatch import Dispatcher, Job
from modpack.serving.settings import Answer, ServerSettings

DONE = Answer(200, "application/json", b"{}")


class FakeWorker:
    def __init__(self) -> None:
        self.started: list[list[Job]] = []
        self.kills = 0

    def start(self, jobs: Sequence[Job]) -> None:
        self.started.append(list(jobs))

    def kill(self) -> None:
        self.kills += 1


class Figures:
    def __init__(self) -> None:
        self.batches: list[int] = []

    def computed(self, model: str, requests: int, seconds: float) -> None:
        self.batches.append(requests)

    def worker_lost(self, model: str) -> None: ...

    def replaced(self, model: str, succeeded: bool) -> None: ...


class Queue:
    """A dispatcher with one worker."""

    def __init__(self, **settings: object) -> None:
        self.settings = ServerSettings(**{"max_batch": 4, "max_wait": 0.05, **settings})
        self.figures = Figures()
        self.dispatcher = Dispatcher("net", self.settings, self.figures)
        self.worker = FakeWorker()
        self.seconds = 1.0  # of a batch
        self.finished = 0
        self.dispatcher.add(self.worker)

    def ask(self, count: int = 1) -> list[Job]:
        jobs = [Job("infer", b"", None, "", self.settings.timeout) for _ in range(count)]
        for job in jobs:
            assert self.dispatcher.admit()
            self.dispatcher.submit(job)
        return jobs

    def finish(self) -> None:
        running = self.worker.started[self.finished]
        self.finished += 1
        if self.dispatcher.finish(self.worker, [DONE] * len(running), self.seconds):
            self.dispatcher.add(self.worker)

    @property
    def sizes(self) -> list[int]:
        return [len(each) for each in self.worker.started]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())


def test_lone_client_never_waits():
    async def test() -> None:
        queue = Queue(max_wait=1000)
        for number in range(1, 4):
            queue.ask()
            assert len(queue.worker.started) == number  # at once
            queue.finish()

    run(test)


def test_requests_during_a_batch_are_the_next_batch():
    async def test() -> None:
        queue = Queue(max_wait=0)
        queue.ask(7)
        queue.finish()
        queue.finish()
        assert queue.sizes == [1, 4, 2]
        assert queue.figures.batches == [1, 4]

    run(test)


def test_first_requests_after_a_batch_wait_for_the_others():
    async def test() -> None:
        queue = Queue(max_wait=1000)
        queue.ask(4)
        assert queue.sizes == [1]
        queue.finish()
        assert queue.sizes == [1]  # the client of the first request is likely to ask again
        queue.ask()
        assert queue.sizes == [1, 4]
        queue.finish()
        queue.ask(3)
        assert queue.sizes == [1, 4]
        queue.ask()
        assert queue.sizes == [1, 4, 4]

    run(test)


def test_waiting_ends_after_its_time():
    async def test() -> None:
        queue = Queue(max_wait=0.05)
        queue.ask(4)
        queue.finish()
        await asyncio.sleep(0.2)
        assert queue.sizes == [1, 3]
        queue.finish()
        queue.ask()
        assert queue.sizes == [1, 3]
        await asyncio.sleep(0.2)
        assert queue.sizes == [1, 3, 1]
        queue.finish()
        queue.ask()
        assert queue.sizes == [1, 3, 1, 1]

    run(test)


def test_full_queue_admits_nothing_until_a_place_is_free():
    async def test() -> None:
        queue = Queue(max_queue=2, max_batch=1)
        queue.ask(3)  # one runs, two wait
        assert not queue.dispatcher.admit()
        queue.finish()
        assert queue.dispatcher.admit()
        assert not queue.dispatcher.admit()
        queue.dispatcher.withdraw()
        assert queue.dispatcher.admit()

    run(test)


def test_expired_request_is_504_and_leaves_the_queue():
    async def test() -> None:
        queue = Queue(timeout=0.05, max_queue=1, max_batch=1)
        _, waiting = queue.ask(2)
        await asyncio.sleep(0.1)
        assert waiting.answer.result().status == 504
        assert queue.dispatcher.admit()
        queue.finish()
        assert queue.sizes == [1]

    run(test)


def test_requests_of_a_lost_worker_run_alone_and_first():
    async def test() -> None:
        queue = Queue(max_wait=0)
        first, *others = queue.ask(4)
        queue.finish()
        queue.ask()
        queue.dispatcher.remove(queue.worker)
        replacement = FakeWorker()
        for expected in others:
            queue.worker = replacement
            queue.dispatcher.add(replacement)
            assert replacement.started[-1] == [expected]
            queue.dispatcher.finish(replacement, [DONE], 1.0)
        assert all(job.answer.result() == DONE for job in (first, *others))

    run(test)


def test_fast_workers_are_sent_several_requests_in_advance():
    async def test() -> None:
        queue = Queue(max_batch=1, max_queue=100)
        queue.seconds = 0.0001
        queue.ask(90)
        assert queue.sizes == [1]  # nothing is known about its speed
        while queue.sizes[-1] == 1:
            queue.finish()
        queue.finish()
        running, behind = queue.worker.started[queue.finished :]
        assert len(running) > 1 and {job.batch for job in (*running, *behind)} == {1}
        assert set(queue.figures.batches) == {1}
        queue.dispatcher.remove(queue.worker)
        assert {job.deaths for job in running} == {1}
        assert {job.deaths for job in behind} == {0}
        replacement = FakeWorker()
        queue.dispatcher.add(replacement)
        # The first one may have ended the worker: none is sent with it, or behind it.
        assert replacement.started == [[running[0]]]

    run(test)


def test_request_that_ends_two_workers_is_500():
    async def test() -> None:
        queue = Queue()
        (job,) = queue.ask()
        queue.dispatcher.remove(queue.worker)
        queue.dispatcher.add(queue.worker)
        assert queue.worker.started == [[job], [job]]
        queue.dispatcher.remove(queue.worker)
        assert job.answer.result().status == 500

    run(test)


def test_worker_beyond_the_time_limit_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("modpack.serving.dispatch.KILL_AFTER", 0.01)

    async def test() -> None:
        queue = Queue(timeout=0.02)
        queue.ask()
        await asyncio.sleep(0.1)
        assert queue.worker.kills == 1

    run(test)
