"""Metrics for Prometheus. All of them are counted in the server process, over all workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from modpack.serving.model import ServedModel
    from modpack.serving.server import ModelServer

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class PrometheusMetrics:
    """The metrics of a server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "modpack_requests", "Answered requests", ["model", "kind", "status"], registry=registry
        )
        self._seconds = Histogram(
            "modpack_request_seconds",
            "Time from a request's headers to its answer",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "modpack_batch_requests",
            "Requests that were computed together",
            ["model"],
            buckets=_BATCHES,
            registry=registry,
        )
        self._computing = Histogram(
            "modpack_batch_seconds",
            "Time of a worker for a batch",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._lost = Counter(
            "modpack_workers_lost", "Workers that ended unexpectedly", ["model"], registry=registry
        )
        self._replacements = Counter(
            "modpack_replacements", "Replaced packages", ["model", "result"], registry=registry
        )
        # Finding a child by its labels takes longer than counting.
        self._request_counter = lru_cache(1000)(self._requests.labels)
        self._request_timer = lru_cache(1000)(self._seconds.labels)

    def observe(self, server: ModelServer) -> None:
        """Add the gauges of a server's models."""
        gauges: tuple[tuple[str, str, Callable[[ServedModel], float]], ...] = (
            ("modpack_queue_requests", "Requests that wait", lambda m: m.dispatcher.waiting),
            ("modpack_busy_workers", "Workers that compute", lambda m: m.dispatcher.running),
            ("modpack_ready", "Whether the model is ready", lambda m: m.is_ready),
        )
        for title, text, value in gauges:
            gauge = Gauge(title, text, ["model"], registry=self._registry)
            for name, model in server.models.items():
                gauge.labels(name).set_function(partial(value, model))
        for name in server.models:
            self._lost.labels(name)
            for result in ("succeeded", "failed"):
                self._replacements.labels(name, result)

    def answered(self, model: str, kind: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._request_counter(model, kind, status).inc()
        self._request_timer(model).observe(seconds)

    def computed(self, model: str, requests: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.labels(model).observe(requests)
        self._computing.labels(model).observe(seconds)

    def worker_lost(self, model: str) -> None:
        """Count a worker that ended unexpectedly."""
        self._lost.labels(model).inc()

    def replaced(self, model: str, succeeded: bool) -> None:
        """Count an attempt to replace a package."""
        self._replacements.labels(model, "succeeded" if succeeded else "failed").inc()

    def render(self) -> tuple[str, bytes]:
        """Return the media type of all metrics in the text format, and their text."""
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)
