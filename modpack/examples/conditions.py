"""Conditions of a computation other than model and input: random states, modes, and threads.

They are recorded in one interpreter and applied in another, so that both compute the same bits.
After a run, the live model's tensors are restored, whatever their layout.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch.nn.parameter import is_lazy

from modpack.core.json_values import Json
from modpack.loading.torch_settings import DEFAULTS, read_settings


def capture_rng_and_modes() -> dict[str, Json]:
    """Return the current random states, modes, and number of threads as a record."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        **read_settings(),
        "threads": torch.get_num_threads(),
        "random": _random_states(),
    }


def drop_unused_generators(conditions: dict[str, Json]) -> dict[str, Json]:
    """Remove the states of generators that have not been used since they were recorded.

    Those depend on the process and not on the computation.
    """
    before, now = cast(dict[str, Json], conditions["random"]), _random_states()
    used: dict[str, Json] = {n: state for n, state in before.items() if now.get(n) != state}
    return {**conditions, "random": used}


def without_settings(conditions: dict[str, Any]) -> dict[str, Any] | None:
    """Return conditions with torch's default settings, or None if they have these already."""
    changed = {**conditions, **DEFAULTS}
    return changed if changed != conditions else None


def on_device(conditions: dict[str, Any], device: str) -> dict[str, Any]:
    """Return conditions for another device than that of the recorded run."""
    autocast = {torch.device(device).type: dtype for dtype in conditions["autocast"].values()}
    is_default = conditions["default_device"] == "cpu"
    chosen = {"default_device": "cpu" if is_default else device, "autocast": autocast}
    return {**conditions, **chosen}


@contextmanager
def apply_conditions(conditions: dict[str, Any]) -> Iterator[None]:
    """Apply recorded conditions. They are not restored: this is for a dedicated process."""
    torch.set_num_threads(conditions["threads"])
    torch.set_default_dtype(getattr(torch, conditions["default_dtype"]))
    torch.set_float32_matmul_precision(conditions["matmul_precision"])
    torch.backends.mkldnn.enabled = conditions["mkldnn"]
    now = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    recorded = (conditions["deterministic"], conditions["deterministic_warn_only"])
    if recorded != now:  # the call imports torch's compiler, which takes almost a second
        torch.use_deterministic_algorithms(recorded[0], warn_only=recorded[1])
    with ExitStack() as modes:
        if conditions["default_device"] != "cpu":
            modes.enter_context(torch.device(conditions["default_device"]))
        for device, dtype in conditions["autocast"].items():
            modes.enter_context(torch.autocast(device, getattr(torch, dtype)))
        modes.enter_context(torch.set_grad_enabled(conditions["grad"]))
        if conditions["inference"]:
            modes.enter_context(torch.inference_mode())
        # Last, so that nothing draws numbers between this and the run.
        _set_random_states(conditions["random"])
        yield


@contextmanager
def preserve_random_states(conditions: dict[str, Any] | None = None) -> Iterator[None]:
    """Restore the states of all random generators after the block.

    Args:
        conditions: Recorded conditions, whose states apply in the block. None for the current ones.
    """
    before = _random_states()
    try:
        if conditions is not None:
            _set_random_states(conditions["random"])
        yield
    finally:
        _set_random_states(before)


def _random_states() -> dict[str, Json]:
    states: dict[str, Json] = {
        "torch": _encode(torch.get_rng_state()),
        "python": cast(Json, random.getstate()),
    }
    # Reading these states would initialize CUDA in a process that does not use it.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = [_encode(state) for state in torch.cuda.get_rng_state_all()]
    # Not imported here, because torch works without numpy.
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = [kind, keys.tolist(), *rest]
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    if "torch" in states:
        torch.set_rng_state(_decode(states["torch"]))
    if "python" in states:
        # JSON turns tuples into lists, which setstate rejects.
        version, internal, following = states["python"]
        random.setstate((version, tuple(internal), following))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(map(_decode, states["cuda"])))
    numpy = sys.modules.get("numpy")
    if "numpy" in states and numpy is not None:
        numpy.random.set_state(tuple(states["numpy"]))


def _encode(state: torch.Tensor) -> str:
    # Not state.numpy(), which requires numpy.
    return base64.b64encode(bytes(state.tolist())).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def tensor_versions(model: Any) -> list[int]:
    """Return the version counter of each tensor of a model, to detect in-place changes."""
    if not isinstance(model, torch.nn.Module):
        return []
    tensors = (t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t))
    # Inference tensors have no counter.
    with torch._C.DisableTorchFunctionSubclass():
        return [t._version for t in tensors if not t.is_inference()]
