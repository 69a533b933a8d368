"""Metrics for Prometheus. All of them are counted in the server process, over all workers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import prometheus_client
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from modpack.serving.model import ServedModel
    from modpack.serving.server import ModelServer

_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _Histogram:
    """The values of each model, counted by the least bound that is not below them."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: dict[str, float] = defaultdict(float)

    def observe(self, model: str, value: float) -> None:
        self._counts[model][bisect_left(self._bounds, value)] += 1
        self._sums[model] += value

    def family(self) -> HistogramMetricFamily:
        """Return what Prometheus reads."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for model, counts in self._counts.items():
            buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
            family.add_metric([model], buckets, self._sums[model])
        return family


class PrometheusMetrics:
    """The metrics of a server.

    Requests and batches are counted here, and the library reads the numbers as from a collector.
    Its own counters and histograms take locks for each request.
    """

    def __init__(self) -> None:
        self._registry = registry = prometheus_client.CollectorRegistry()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds = _Histogram(
            "modpack_request_seconds", "Time from a request's headers to its answer", _SECONDS
        )
        self._batches = _Histogram(
            "modpack_batch_requests", "Requests that were computed together", _BATCHES
        )
        self._computing = _Histogram(
            "modpack_batch_seconds", "Time of a worker for a batch", _SECONDS
        )
        registry.register(self)
        self._lost = prometheus_client.Counter(
            "modpack_workers_lost", "Workers that ended unexpectedly", ["model"], registry=registry
        )
        self._replacements = prometheus_client.Counter(
            "modpack_replacements", "Replaced packages", ["model", "result"], registry=registry
        )

    def observe(self, server: ModelServer) -> None:
        """Add the gauges of a server's models."""
        gauges: tuple[tuple[str, str, Callable[[ServedModel], float]], ...] = (
            ("modpack_queue_requests", "Requests that wait", lambda m: m.dispatcher.waiting),
            ("modpack_busy_workers", "Workers that compute", lambda m: m.dispatcher.running),
            ("modpack_ready", "Whether the model is ready", lambda m: m.is_ready),
        )
        for title, text, value in gauges:
            gauge = prometheus_client.Gauge(title, text, ["model"], registry=self._registry)
            for name, model in server.models.items():
                gauge.labels(name).set_function(partial(value, model))
        for name in server.models:
            self._lost.labels(name)
            for result in ("succeeded", "failed"):
                self._replacements.labels(name, result)

    def collect(self) -> Iterator[Metric]:
        """Yield the counted numbers, for the library."""
        requests = CounterMetricFamily(
            "modpack_requests", "Answered requests", labels=["model", "kind", "status"]
        )
        for labels, count in self._requests.items():
            requests.add_metric([*map(str, labels)], count)
        yield requests
        for each in (self._seconds, self._batches, self._computing):
            yield each.family()

    def answered(self, model: str, kind: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests[model, kind, status] += 1
        self._seconds.observe(model, seconds)

    def computed(self, model: str, requests: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.observe(model, requests)
        self._computing.observe(model, seconds)

    def worker_lost(self, model: str) -> None:
        """Count a worker that ended unexpectedly."""
        self._lost.labels(model).inc()

    def replaced(self, model: str, succeeded: bool) -> None:
        """Count an attempt to replace a package."""
        self._replacements.labels(model, "succeeded" if succeeded else "failed").inc()

    def render(self) -> tuple[str, bytes]:
        """Return the media type of all metrics in the text format, and their text."""
        return CONTENT_TYPE_LATEST, prometheus_client.generate_latest(self._registry)
