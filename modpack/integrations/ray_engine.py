"""The engine of ``modpack run --engine ray``: batches that actors of a Ray cluster run.

This process reads the inputs and writes the outputs, so that both are exactly those of a run in one
process. It knows the rows of a batch; an actor receives and returns values only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final

import torch

from modpack.core.call_signature import PLAIN_TYPES, CallSignature
from modpack.core.names import url_of
from modpack.core.process import usable_cores
from modpack.core.text import counted
from modpack.errors import ModpackError, ModpackWarning
from modpack.integrations.ray import SharedPackage, load_predictor, require_ray
from modpack.predicting.predictor import Predictor
from modpack.predicting.rows import (
    BadRow,
    Chunk,
    Layout,
    Outputs,
    RanBatch,
    RanItem,
    batch_name,
    layout_of,
    run_batch,
)
from modpack.running.job import Engine, OpenEngine

_TASK_ROWS: Final = 1024
_TASK_BYTES: Final = 1 << 20
"""Batches are sent together until they have so many rows or bytes."""
_RETRIES: Final = 3
"""How often the batches of a worker that has ended are run again."""


class _Worker:
    """An actor that runs batches of ``modpack run``. It loads the package again if it restarts.

    Each call has a list with a reference to the package: Ray does not keep objects that the
    constructor of an actor refers to.
    """

    def __init__(self, device: str | None, options: Mapping[str, Any]) -> None:
        self._device, self._options = device, options
        self._loaded: Predictor | None = None

    def describe(self, package: list[Any]) -> tuple[CallSignature, str, list[str]]:
        """Return the call signature, the device, and the warnings of the load."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = self._predictor(package)
        texts = [str(each.message) for each in caught if issubclass(each.category, ModpackWarning)]
        return loaded.signature, loaded.device, texts

    def run(
        self,
        package: list[Any],
        rows: frozenset[str],
        batches: Sequence[tuple[str, Mapping[str, object], int]],
    ) -> list[tuple[list[RanBatch], list[str]]]:
        """Return the results of each batch, and the problems that no row has alone."""
        loaded = self._predictor(package)
        layout = layout_of(loaded.signature, None)._replace(rows=rows)
        answers = []
        for name, values, count in batches:
            problems: list[str] = []
            unpacked = {key: _unpacked(value) for key, value in values.items()}
            ran = run_batch(loaded.predict, unpacked, count, layout, name, problems)
            plain = [(r if isinstance(r, str) else _require_plain(r), size) for r, size in ran]
            answers.append(([_converted(each, _packed) for each in plain], problems))
        return answers

    def _predictor(self, package: list[Any]) -> Predictor:
        # Not in __init__, whose exceptions Ray reports as text.
        if self._loaded is None:
            found = require_ray().get(package[0])
            self._loaded = load_predictor(found, self._device, self._options)
        return self._loaded


def _require_plain(outputs: Outputs) -> Outputs | str:
    """Return outputs, or the reason why another process cannot read them without the package."""
    for name, value in (*outputs.rows.items(), *outputs.whole.items()):
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, torch.Tensor) and type(each) not in PLAIN_TYPES.values():
                kind = type(each).__name__
                return f"the output {name!r} is {kind}, which stays in a process of Ray"
    return outputs


def _packed(value: Any) -> Any:
    """Return a tensor as an array, whose memory Ray shares, if NumPy has its dtype."""
    with contextlib.suppress(TypeError, RuntimeError):
        if isinstance(value, torch.Tensor):
            return value.resolve_conj().resolve_neg().numpy()
    return value


def _unpacked(value: Any) -> Any:
    # A copy, because Ray's arrays cannot be written.
    return torch.tensor(value) if hasattr(value, "__array_interface__") else value


def _converted(result: RanBatch, convert: Callable[[Any], Any]) -> RanBatch:
    """Return a result whose outputs were converted."""
    outputs, count = result
    if isinstance(outputs, str):
        return result
    rows, whole = (
        {name: convert(value) for name, value in values.items()}
        for values in (outputs.rows, outputs.whole)
    )
    return Outputs(rows, whole, outputs.row_count), count


def ray_engine(workers: int | None) -> OpenEngine:
    """Return an engine of :func:`.run_package` whose batches are run by actors of a Ray cluster.

    The cluster is that of the environment variable ``RAY_ADDRESS``; without it, a local one starts.

    Args:
        workers: Number of actors. None for one on each CPU of the cluster, or on each GPU if the
            device is ``"cuda"``.
    """

    @contextlib.contextmanager
    def opened(path: str, options: Mapping[str, Any]) -> Iterator[Engine]:
        ray = require_ray()
        with _cluster(ray, workers) as is_shared:
            shared = SharedPackage(path) if is_shared and url_of(path) is None else path
            package = [ray.put(shared)]
            actors = _start_actors(ray, workers, options)
            with _explained(ray, path):
                # The others load at the same time.
                loading = [actor.describe.remote(package) for actor in actors]
                signature, device, texts = ray.get(loading[0])
            for text in texts:
                warnings.warn(text, ModpackWarning, stacklevel=2)
            yield Engine(signature, device, partial(_run, ray, path, package, actors))

    return opened


def _start_actors(ray: ModuleType, workers: int | None, options: Mapping[str, Any]) -> list[Any]:
    others = dict(options)
    device = others.pop("device", None)
    on_gpu = device == "cuda"
    if not on_gpu and str(device).startswith("cuda"):
        reason = f"device {device!r}: Ray chooses the GPU of each worker"
        raise ModpackError(reason, hint="Pass --device cuda.")
    unit = "GPU" if on_gpu else "CPU"
    available = int(ray.cluster_resources().get(unit, 0))
    count = workers or available
    # Ray would wait for more nodes, forever.
    if not 0 < count <= available:
        needs = f"{counted(max(count, 1), 'worker')} with a {unit} each"
        reason = f"Ray: the cluster has {counted(available, unit)}, not enough for {needs}"
        raise ModpackError(reason, hint="Pass a smaller number to --workers.")
    actor = ray.remote(_Worker).options(
        num_cpus=0 if on_gpu else 1,
        num_gpus=int(on_gpu),
        max_restarts=-1,
        max_task_retries=_RETRIES,
    )
    # The GPU that Ray gives to an actor is the only one that it sees.
    chosen = None if on_gpu else device
    return [actor.remote(chosen, others) for _ in range(count)]


def _run(
    ray: ModuleType,
    path: str,
    package: list[Any],
    actors: Sequence[Any],
    items: Iterable[Chunk | BadRow],
    layout: Layout,
) -> Iterator[RanItem]:
    # Each actor has a task that waits, so that it never waits for this process.
    pool = ray.util.ActorPool([*actors, *actors])
    sent: deque[list[Chunk | BadRow]] = deque()

    def receive() -> Iterator[RanItem]:
        with _explained(ray, path):
            answers = iter(pool.get_next())
        for item in sent.popleft():
            if isinstance(item, BadRow):
                yield item, (), []
                continue
            results, problems = next(answers)
            yield item, [_converted(each, _unpacked) for each in results], problems

    for group in _grouped(items):
        if not pool.has_free():
            yield from receive()
        batches = [
            (batch_name(each), {n: _packed(v) for n, v in each.values.items()}, len(each.places))
            for each in group
            if isinstance(each, Chunk)
        ]
        pool.submit(lambda actor, sent: actor.run.remote(package, layout.rows, sent), batches)
        sent.append(group)
    while sent:
        yield from receive()


def _grouped(items: Iterable[Chunk | BadRow]) -> Iterator[list[Chunk | BadRow]]:
    """Yield consecutive batches that one task runs."""
    group: list[Chunk | BadRow] = []
    rows = size = 0
    for item in items:
        group.append(item)
        if isinstance(item, Chunk):
            rows += len(item.places)
            tensors = (v for v in item.values.values() if isinstance(v, torch.Tensor))
            size += sum(tensor.nbytes for tensor in tensors)
        if rows >= _TASK_ROWS or size >= _TASK_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


@contextlib.contextmanager
def _explained(ray: ModuleType, path: str) -> Iterator[None]:
    """Raise exceptions of a worker as they were raised, and explain the end of a worker."""
    errors = ray.exceptions
    try:
        yield
    except errors.RayTaskError as failure:
        raise failure.cause from failure.cause.__cause__
    except errors.RayActorError as failure:
        raise ModpackError(
            f"{path}: a Ray worker ended {_RETRIES + 1} times while it ran the same rows",
            hint="Find the reason with a run of these rows without --engine.",
        ) from failure


@contextlib.contextmanager
def _cluster(ray: ModuleType, workers: int | None) -> Iterator[bool]:
    """Connect to the cluster of ``RAY_ADDRESS``, or start a local one.

    Returns:
        Whether the cluster is that of ``RAY_ADDRESS``, which may have several nodes.
    """
    address, before = os.environ.get("RAY_ADDRESS"), signal.getsignal(signal.SIGTERM)
    # A local cluster must not report to Ray's developers; the user's setting has precedence.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address:
            ray.init(address, logging_level="error")
        else:
            count = max(workers or 0, usable_cores())
            ray.init("local", num_cpus=count, include_dashboard=False, logging_level="error")
    except Exception as failure:  # Ray raises exceptions of many classes, and plain ones
        where = f"the cluster at RAY_ADDRESS={address}" if address else "a local cluster"
        reason = " ".join(str(failure).split())
        raise ModpackError(f"Ray: {where} cannot be used: {reason:.300}") from failure
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, before)  # Ray replaces the handler
    try:
        yield bool(address)
    finally:
        ray.shutdown()
