"""The recorded run: the live model, once, on the example; nothing of it stays behind."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modpack.core.planjson import Json
from modpack.core.progress import phase
from modpack.errors import ExampleError
from modpack.trial.comparing import Difference, compare
from modpack.trial.conditions import (
    conditions_now,
    preserved_random_states,
    restored_random_states,
    without_unused,
)
from modpack.trial.examples import Example
from modpack.trial.leaves import Leaf, leaves_of
from modpack.trial.outputs import CaseRecords

__all__ = ["Case", "record_case"]

PutBack = Callable[[], None]
"""Puts the content of every tensor back that was saved with the model and has changed."""


@dataclass(frozen=True)
class Case:
    """One example of one saved object, with the output that the live one gave.

    Attributes:
        resource: package and resource of the object.
        records: where the example lies in the package.
        model: the live object.
        example: its arguments.
        conditions: what held when it ran.
        leaves: its output.
        seconds: how long it took.
        restore_global: whether process-wide hooks were saved with it.
        put_back: undoes what a run did to tensors.
        versions: of the model's tensors, after the run: tells whether they changed since.
    """

    resource: tuple[str, str]
    records: CaseRecords
    model: Any
    example: Example
    conditions: dict[str, Json]
    leaves: list[Leaf]
    seconds: float
    restore_global: bool
    put_back: PutBack
    versions: list[int]

    def differs_from_itself(self) -> list[Difference]:
        """Run the live model once more, with the same random numbers; what differs this time.

        A model that was changed after it was saved tells nothing: then nothing is returned.
        """
        if _versions(self.model) != self.versions:
            return []
        with restored_random_states(self.conditions), _preserved(self.model, self.put_back):
            again = leaves_of(_called(self.model, self.example, self.resource))
        return compare(self.leaves, again)

    def to_json(self) -> dict[str, Json]:
        """What another interpreter needs to know to repeat it."""
        return {
            "resource": list(self.resource),
            "number": self.records.number,
            "restore_global": self.restore_global,
        }


def record_case(
    resource: tuple[str, str],
    records: CaseRecords,
    model: Any,
    example: Example,
    restore_global: bool,
    put_back: PutBack,
) -> Case:
    """Run the live model on its example, and leave it as it was.

    Its parameters and buffers are put back, and so are the random states. What it collects in
    lists of its own, and what its hooks collect, stays collected.

    Args:
        resource: package and resource under which it was saved.
        records: where the example goes.
        model: the model, which was saved already.
        example: its arguments.
        restore_global: whether process-wide hooks were saved with it.
        put_back: puts back the tensors that were saved.

    Raises:
        ExampleError: the live model itself fails on the example.
    """
    conditions = conditions_now()
    running = phase("running the live model", is_major=True)
    with running, preserved_random_states(), _preserved(model, put_back):
        started = time.perf_counter()
        output = _called(model, example, resource)
        seconds = time.perf_counter() - started
        leaves = leaves_of(output)
        conditions = without_unused(conditions)
    return Case(
        resource,
        records,
        model,
        example,
        conditions,
        leaves,
        seconds,
        restore_global,
        put_back,
        _versions(model),
    )


def _called(model: Any, example: Example, resource: tuple[str, str]) -> Any:
    try:
        return example.call(model)
    except Exception as failure:
        raise ExampleError("/".join(resource), failure, _place_of(failure)) from failure


def _place_of(failure: BaseException) -> str:
    """The innermost line that raised it, outside torch: the one that its author wrote."""
    folders = (Path(__file__).parents[1], Path(torch.__file__).parent)
    ours = tuple(f"{folder}{os.sep}" for folder in folders)
    frames = traceback.extract_tb(failure.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(("<", *ours))]
    if not theirs:
        return ""
    line = f": {theirs[-1].line}" if theirs[-1].line else ""
    return f"{theirs[-1].filename}:{theirs[-1].lineno}, in {theirs[-1].name}{line}"


@contextmanager
def _preserved(model: Any, put_back: PutBack) -> Iterator[None]:
    """Parameters and buffers are the same tensors afterwards, with the same contents."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    held = [
        (module, type(module), dict(module._parameters), dict(module._buffers))
        for module in modules
    ]
    tensors = [
        (tensor, tensor.data)
        for _, _, parameters, buffers in held
        for tensor in (*parameters.values(), *buffers.values())
        if tensor is not None and not torch.nn.parameter.is_lazy(tensor)
    ]
    try:
        yield
    finally:
        for module, kind, parameters, buffers in held:
            if type(module) is kind:  # a lazy module has become another one for good
                _refill(module._parameters, parameters)
                _refill(module._buffers, buffers)
        for tensor, data in tensors:
            if tensor.data_ptr() != data.data_ptr() or tensor.shape != data.shape:
                tensor.data = data
        put_back()


def _refill(contents: dict[str, Any], before: dict[str, Any]) -> None:
    if list(contents) != list(before) or any(contents[k] is not before[k] for k in before):
        contents.clear()
        contents.update(before)


def _versions(model: Any) -> list[int]:
    if not isinstance(model, torch.nn.Module):
        return []
    tensors = (*model.parameters(), *model.buffers())
    return [t._version for t in tensors if not t.is_inference()]
