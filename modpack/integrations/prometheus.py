"""Metrics for Prometheus. All of them are counted in the server process, over all workers."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from modpack.serving.model import ServedModel
    from modpack.serving.server import ModelServer

_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_REQUESTS: Final = ("modpack_requests", "Answered requests", ("model", "kind", "status"))
_LOST: Final = ("modpack_workers_lost", "Workers that ended unexpectedly", ("model",))
_REPLACEMENTS: Final = ("modpack_replacements", "Replaced packages", ("model", "result"))
_GAUGES: Final[tuple[tuple[str, str, Callable[[ServedModel], float]], ...]] = (
    ("modpack_queue_requests", "Requests that wait", lambda m: m.dispatcher.waiting),
    ("modpack_busy_workers", "Workers that compute", lambda m: m.dispatcher.running),
    ("modpack_ready", "Whether the model is ready", lambda m: m.is_ready),
)


class _Histogram:
    """The values of each model, counted by the least bound that is not below them."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, model: str, value: float) -> None:
        self._counts[model][bisect_left(self._bounds, value)] += 1
        self._sums[model] += value

    def family(self) -> Metric:
        """Return the values as Prometheus reads them."""
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for model, counts in self._counts.items():
            # Buckets are cumulative in Prometheus: each includes all smaller ones.
            buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
            family.add_metric([model], buckets, self._sums[model])
        return family


class PrometheusMetrics:
    """The metrics of a server, which the library reads as from a collector.

    The library's own counters take locks: 8 us more for each request (benchmark serving, 16
    clients). The server counts in one thread.
    """

    def __init__(self) -> None:
        self._models: Mapping[str, ServedModel] = {}
        self._requests: Counter[tuple[object, ...]] = Counter()
        self._lost: Counter[tuple[object, ...]] = Counter()
        self._replacements: Counter[tuple[object, ...]] = Counter()
        self._seconds = _Histogram(
            "modpack_request_seconds", "Time from a request's headers to its answer", _SECONDS
        )
        self._batches = _Histogram(
            "modpack_batch_requests", "Requests that were computed together", _BATCHES
        )
        self._computing = _Histogram(
            "modpack_batch_seconds", "Time of a worker for a batch", _SECONDS
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, server: ModelServer) -> None:
        """Add the models of a server, with their gauges."""
        self._models = server.models
        for name in server.models:
            # A series that starts with its first event would hide that event from rate().
            self._lost[name,] = 0
            self._replacements[name, "succeeded"] = self._replacements[name, "failed"] = 0

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for (name, text, labels), counts in (
            (_REQUESTS, self._requests),
            (_LOST, self._lost),
            (_REPLACEMENTS, self._replacements),
        ):
            counter = CounterMetricFamily(name, text, labels=labels)
            for values, count in counts.items():
                counter.add_metric([*map(str, values)], count)
            yield counter
        for histogram in (self._seconds, self._batches, self._computing):
            yield histogram.family()
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=("model",))
            for model in self._models.values():
                gauge.add_metric([model.name], read(model))
            yield gauge

    def answered(self, model: str, kind: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests[model, kind, status] += 1
        self._seconds.add(model, seconds)

    def computed(self, model: str, requests: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.add(model, requests)
        self._computing.add(model, seconds)

    def worker_lost(self, model: str) -> None:
        """Count a worker that ended unexpectedly."""
        self._lost[model,] += 1

    def replaced(self, model: str, succeeded: bool) -> None:
        """Count an attempt to replace a package."""
        self._replacements[model, "succeeded" if succeeded else "failed"] += 1

    def render(self) -> tuple[str, bytes]:
        """Return the media type of all metrics in the text format, and their text."""
        return CONTENT_TYPE_LATEST, generate_latest(self._registry)
