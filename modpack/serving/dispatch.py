"""The queue of one model: admission, dynamic batches, time limits, and requests of lost workers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from modpack.serving.settings import Answer, JobKind, ServerSettings, error_answer

KILL_AFTER: Final = 1.0
"""Seconds that a worker has after the time limit of its last request, before it is killed."""
_SHORT: Final = 0.02
"""A worker is sent a batch in advance if it computes for fewer seconds."""
_VERY_SHORT: Final = 0.002
"""Without batches, a worker is sent several requests at once if each takes fewer seconds."""
_MAX_TOGETHER: Final = 8
_MAX_DEATHS: Final = 2
"""Workers that may die of a request before it is given up."""


class Metrics(Protocol):
    """The figures of a server."""

    def answered(self, model: str, kind: str, status: int, seconds: float) -> None:
        """Count an answered request."""

    def computed(self, model: str, requests: int, seconds: float) -> None:
        """Count a batch."""

    def worker_lost(self, model: str) -> None:
        """Count a worker that ended although nobody asked it to."""

    def replaced(self, model: str, succeeded: bool) -> None:
        """Count an attempt to replace the package."""

    def render(self) -> tuple[str, bytes]:
        """Return the media type of all figures, and their text."""


class Job:
    """A request on its way to a worker.

    Attributes:
        kind: The form of the request.
        encoding: Content encoding of the body, or "".
        json_length: Length of the JSON before binary tensors, or None.
        body: The body.
        answer: The answer, as soon as there is one.
        batch: Requests that were computed together with it, itself included.
    """

    def __init__(
        self, kind: JobKind, body: bytes, json_length: int | None, encoding: str, timeout: float
    ) -> None:
        loop = asyncio.get_running_loop()
        self.kind = kind
        self.encoding = encoding
        self.json_length = json_length
        self.body = body
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self.arrived = loop.time()
        self.deadline = self.arrived + timeout
        self.deaths = 0
        self.batch = 0
        self._timer = loop.call_at(
            self.deadline, self.fail, f"no answer within {timeout:g} seconds", 504
        )

    def resolve(self, answer: Answer) -> None:
        """Set the answer, unless there is one already."""
        self._timer.cancel()
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, message: str, status: int) -> None:
        """Answer with an error."""
        self.resolve(error_answer(message, status, self.kind == "infer"))


class JobWorker(Protocol):
    """A worker as the dispatcher sees it."""

    def start(self, jobs: Sequence[Job]) -> None:
        """Send jobs to the worker."""

    def kill(self) -> None:
        """End the worker at once."""


class _Batch(NamedTuple):
    """Requests that were sent to a worker together, and the timer that kills it."""

    jobs: list[Job]
    watchdog: asyncio.TimerHandle


class Dispatcher:
    """Gives the requests of one model to its idle workers.

    A request is dispatched at once if a worker is idle, except shortly after a batch of several
    requests: their clients are likely to send the next ones, and the first of those waits up to
    ``max_wait`` for the others. A lone client never waits.

    A busy worker that computes for milliseconds is sent a full batch in advance, so that it does
    not wait for this process (benchmark serving, 16 clients without batches: 3 times as fast on a
    busy machine). Without batches, several requests are one message if they take microseconds,
    which saves a quarter of the processor time.

    Args:
        name: Name of the model.
        settings: Limits of batches, waiting, and time.
        metrics: Receives the sizes and durations of batches.
    """

    def __init__(self, name: str, settings: ServerSettings, metrics: Metrics) -> None:
        self._name = name
        self._settings = settings
        self._metrics = metrics
        self._pending: deque[Job] = deque()
        self._idle: list[JobWorker] = []
        self._running: dict[JobWorker, deque[_Batch]] = {}
        self._retired: set[JobWorker] = set()
        self._seconds = 1.0
        self._admitted = 0
        self._expected = 0
        self._finished = 0.0
        self._wakeup: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Requests that were admitted and not dispatched."""
        return self._admitted + sum(not job.answer.done() for job in self._pending)

    @property
    def running(self) -> int:
        """Workers that compute."""
        return len(self._running)

    def admit(self) -> bool:
        """Take a place in the queue before a request's body is read; return whether there is one.

        An admitted request is submitted or withdrawn.
        """
        limit = self._settings.max_queue
        # Answered requests in the queue do not wait. They are counted only if it seems full.
        idle = len(self._idle)
        if self._admitted + len(self._pending) >= limit + idle and self.waiting >= limit + idle:
            return False
        self._admitted += 1
        return True

    def withdraw(self) -> None:
        """Give back the place of an admitted request."""
        self._admitted -= 1

    def submit(self, job: Job) -> None:
        """Queue an admitted request. Its answer arrives in ``job.answer``."""
        self._admitted -= 1
        self._pending.append(job)
        self._dispatch()

    def add(self, worker: JobWorker) -> None:
        """Add an idle worker."""
        self._idle.append(worker)
        self._dispatch()

    def finish(self, worker: JobWorker, answers: Sequence[Answer], seconds: float) -> bool:
        """Answer the requests that a worker has computed.

        Args:
            worker: The worker.
            answers: The answers of the first batch that it was given.
            seconds: The time that they took.

        Returns:
            Whether the worker has no other batch. It gets more only after :meth:`add`.
        """
        batches = self._running[worker]
        jobs, watchdog = batches.popleft()
        watchdog.cancel()
        for job, answer in zip(jobs, answers, strict=True):
            job.resolve(answer)
        self._finished = asyncio.get_running_loop().time()
        self._expected = min(self._settings.max_batch, len(jobs) + len(self._pending))
        batches_done = -(-len(jobs) // self._settings.max_batch)
        # A moving average, because the first batches of a worker are slow.
        self._seconds += (seconds / batches_done - self._seconds) / 4
        for job in jobs[:: self._settings.max_batch]:
            self._metrics.computed(self._name, job.batch, seconds / batches_done)
        if batches:
            self._dispatch()
            return False
        del self._running[worker]
        return True

    def remove(self, worker: JobWorker) -> None:
        """Remove a worker that is lost. Its requests go to another one."""
        self._retired.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        batches = self._running.pop(worker, deque())
        for batch in batches:
            batch.watchdog.cancel()
        for number in range(len(batches) - 1, -1, -1):
            for job in reversed(batches[number].jobs):
                if not job.answer.done():
                    self._repeat(job, was_running=number == 0)
        self._dispatch()

    def _repeat(self, job: Job, was_running: bool) -> None:
        # Only the first batch was running. One of its requests may be the cause, so that each of
        # them runs alone from now on.
        job.deaths += was_running
        if job.deaths >= _MAX_DEATHS:
            job.fail("the request ended two workers, so the server gave it up", 500)
        else:
            self._pending.appendleft(job)

    def retire(self, worker: JobWorker) -> bool:
        """Give no more requests to a worker; return whether it was idle."""
        if worker not in self._idle:
            self._retired.add(worker)
            return False
        self._idle.remove(worker)
        return True

    def _dispatch(self) -> None:
        while self._idle:
            jobs = self._take()
            if not jobs:
                return
            self._send(self._idle.pop(), jobs)
        # A batch in advance would wait here while another worker becomes idle.
        if self._seconds >= _SHORT:
            return
        for worker, batches in list(self._running.items()):
            if len(self._pending) < self._settings.max_batch or self._pending[0].deaths:
                return
            is_open = worker not in self._retired and not batches[0].jobs[0].deaths
            if len(batches) == 1 and is_open:
                self._send(worker, self._take())

    def _send(self, worker: JobWorker, jobs: list[Job]) -> None:
        if jobs:
            deadline = max(job.deadline for job in jobs) + KILL_AFTER
            watchdog = asyncio.get_running_loop().call_at(deadline, worker.kill)
            self._running.setdefault(worker, deque()).append(_Batch(jobs, watchdog))
            worker.start(jobs)

    def _take(self) -> list[Job]:
        """Take the next batch from the queue; empty if there is none, or it may grow."""
        pending = self._pending
        while pending and pending[0].answer.done():
            pending.popleft()  # the time limit passed
        if not pending or self._should_wait(pending[0]):
            return []
        jobs: list[Job] = []
        most = self._settings.max_batch
        if most == 1 and self._seconds < _VERY_SHORT:
            # One message for several requests, which the worker computes one by one.
            workers = len(self._idle) + len(self._running)
            most = min(_MAX_TOGETHER, 1 + len(pending) // (workers + 1))
        while pending and len(jobs) < most:
            job = pending[0]
            if job.deaths and jobs:
                break  # it runs alone
            pending.popleft()
            if not job.answer.done():
                jobs.append(job)
                if job.deaths:
                    break
        for job in jobs:
            job.batch = min(len(jobs), self._settings.max_batch)
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        return jobs

    def _should_wait(self, first: Job) -> bool:
        """Return whether the next batch waits for more requests; they or a timer dispatch it."""
        if len(self._pending) >= self._expected or first.deaths:
            return False
        loop = asyncio.get_running_loop()
        # Waiting longer than a batch takes would cost more than the batch saves.
        longest = min(self._settings.max_wait, self._seconds)
        until = first.arrived + longest
        if first.arrived - self._finished > longest or until <= loop.time():
            return False
        if self._wakeup is None:
            self._wakeup = loop.call_at(until, self._stop_waiting)
        return True

    def _stop_waiting(self) -> None:
        self._wakeup = None
        self._expected = 0
        self._dispatch()
