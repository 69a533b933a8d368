"""What a computation depends on besides model and input: random states, modes, threads.

Recorded in one interpreter and put in place in another, so that both compute the same bits. A
live model runs without leaving a trace: its tensors are put back, whatever their layout.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch.nn.parameter import is_lazy

from modpack.core.json_values import Json


def conditions_now() -> dict[str, Json]:
    """What holds in this thread now, as a record."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": _autocast(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "threads": torch.get_num_threads(),
        "random": _random_states(),
    }


def without_unused(conditions: dict[str, Json]) -> dict[str, Json]:
    """Conditions without the states of generators that have drawn no number since.

    Those tell of the process, and nothing that the computation depends on.
    """
    before, now = cast(dict[str, Json], conditions["random"]), _random_states()
    used: dict[str, Json] = {n: state for n, state in before.items() if now.get(n) != state}
    return {**conditions, "random": used}


@contextmanager
def applied(conditions: dict[str, Any]) -> Iterator[None]:
    """Put recorded conditions in place; for a process that does nothing else."""
    torch.set_num_threads(conditions["threads"])
    torch.set_default_dtype(getattr(torch, conditions["default_dtype"]))
    torch.set_float32_matmul_precision(conditions["matmul_precision"])
    torch.backends.mkldnn.enabled = conditions["mkldnn"]
    now = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    recorded = (conditions["deterministic"], conditions["deterministic_warn_only"])
    if recorded != now:  # the call imports torch's compiler, which takes most of a second
        torch.use_deterministic_algorithms(recorded[0], warn_only=recorded[1])
    with ExitStack() as modes:
        if conditions["default_device"] != "cpu":
            modes.enter_context(torch.device(conditions["default_device"]))
        for device, dtype in conditions["autocast"].items():
            modes.enter_context(torch.autocast(device, getattr(torch, dtype)))
        modes.enter_context(torch.set_grad_enabled(conditions["grad"]))
        if conditions["inference"]:
            modes.enter_context(torch.inference_mode())
        _set_random_states(conditions["random"])
        yield


@contextmanager
def preserved_random_states() -> Iterator[None]:
    """Random numbers go on afterwards as if nothing had been drawn within the block."""
    before = _random_states()
    try:
        yield
    finally:
        _set_random_states(before)


@contextmanager
def restored_random_states(conditions: dict[str, Any]) -> Iterator[None]:
    """Draw the random numbers within the block that were drawn when these were recorded."""
    with preserved_random_states():
        _set_random_states(conditions["random"])
        yield


def _autocast() -> dict[str, Json]:
    """The devices on which autocast is on, with its dtype."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {
        device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        for device in devices
        if torch.is_autocast_enabled(device)
    }


def _random_states() -> dict[str, Json]:
    states: dict[str, Json] = {
        "torch": _encoded(torch.get_rng_state()),
        "python": cast(Json, random.getstate()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = [_encoded(state) for state in torch.cuda.get_rng_state_all()]
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = [kind, keys.tolist(), *rest]
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    if "torch" in states:
        torch.set_rng_state(_decoded(states["torch"]))
    if "python" in states:
        version, internal, following = states["python"]
        random.setstate((version, tuple(internal), following))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(list(map(_decoded, states["cuda"])))
    numpy = sys.modules.get("numpy")
    if "numpy" in states and numpy is not None:
        numpy.random.set_state(tuple(states["numpy"]))


def _encoded(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode("ascii")


def _decoded(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


PutBack = Callable[[], None]
"""Puts the content of every tensor back that was saved with the model and has changed."""


class _Held(NamedTuple):
    """The parameters and buffers of one module, as they were."""

    module: torch.nn.Module
    kind: type
    parameters: Mapping[str, torch.Tensor | None]
    buffers: Mapping[str, torch.Tensor | None]

    def put_back(self) -> None:
        if type(self.module) is self.kind:  # a lazy module has become another one for good
            _refill(self.module._parameters, self.parameters)
            _refill(self.module._buffers, self.buffers)


@contextmanager
def preserved(model: Any, put_back: PutBack) -> Iterator[None]:
    """Keep parameters and buffers the same tensors, with the same contents, over a block.

    Args:
        model: the live model; of other objects nothing but ``put_back`` is done.
        put_back: puts back the tensors that were saved.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    # dict() takes the wrappers that a ScriptModule shows in place of dicts as well.
    held = [_Held(m, type(m), dict(m._parameters), dict(m._buffers)) for m in modules]
    with torch._C.DisableTorchFunctionSubclass():  # a class may refuse to be asked
        tensors = [
            (tensor, tensor.data)
            for each in held
            for tensor in (*each.parameters.values(), *each.buffers.values())
            if tensor is not None and not is_lazy(tensor)
        ]
    try:
        yield
    finally:
        for each in held:
            each.put_back()
        with torch._C.DisableTorchFunctionSubclass():
            for tensor, data in tensors:
                if _has_moved(tensor, data):
                    tensor.data = data
        put_back()


def versions_of(model: Any) -> list[int]:
    """How often each tensor of a model was written to in place; shows whether it was changed."""
    if not isinstance(model, torch.nn.Module):
        return []
    tensors = (t for t in (*model.parameters(), *model.buffers()) if not is_lazy(t))
    with torch._C.DisableTorchFunctionSubclass():
        return [t._version for t in tensors if not t.is_inference()]


def _refill(contents: MutableMapping[str, Any], before: Mapping[str, torch.Tensor | None]) -> None:
    now = dict(contents)
    if list(now) == list(before) and all(now[name] is before[name] for name in before):
        return
    if isinstance(contents, dict):
        contents.clear()
    for name, tensor in before.items():  # a ScriptModule cannot lose or gain any
        contents[name] = tensor


def _has_moved(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether a tensor may show other memory than it did; ``data`` is what it was."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return True  # it consists of several tensors, and has no address of its own
    return tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape
