"""Metrics for Prometheus. All of them are counted in the server process, over all workers."""

from __future__ import annotations

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
        self._waiting = self._gauge("modpack_queue_requests", "Requests that wait")
        self._running = self._gauge("modpack_busy_workers", "Workers that compute")
        self._ready = self._gauge("modpack_ready", "Whether the model is ready")
        # Finding a child by its labels takes longer than counting.
        self._request_counter = lru_cache(1000)(self._requests.labels)
        self._request_timer = lru_cache(1000)(self._seconds.labels)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model"], registry=self._registry)

    def observe(self, server: ModelServer) -> None:
        """Add the gauges of a server's models."""
        for name, model in server.models.items():
            self._lost.labels(name)
            for result in ("succeeded", "failed"):
                self._replacements.labels(name, result)
            self._waiting.labels(name).set_function(partial(_waiting, model))
            self._running.labels(name).set_function(partial(_running, model))
            self._ready.labels(name).set_function(partial(_ready, model))

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

    def render(self) -> tuple[bytes, str]:
        """Return all metrics in the text format, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


def _waiting(model: ServedModel) -> float:
    return model.dispatcher.waiting


def _running(model: ServedModel) -> float:
    return model.dispatcher.running


def _ready(model: ServedModel) -> float:
    return model.is_ready
