"""Steps, outputs, and declared operators, shared by packaging and loading."""

from __future__ import annotations

import json
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

OK = "ok"
Leaf = torch.Tensor | str | int | float | bool | None

_OPERATORS = {
    "torchvision": (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    )
}
_declared: list[torch.library.Library] = []


def declare(library: str) -> None:
    """Declare the operators of a library whose native extensions are not installed.

    Python code can refer to the operators, but not call them. An empty name declares nothing.
    """
    for signature in _OPERATORS.get(library, ()):
        fragment = torch.library.Library(library, "FRAGMENT")
        fragment.define(signature)
        _declared.append(fragment)


class Steps:
    """Steps of a process, and their results. A failed step does not stop the next ones.

    Attributes:
        outcomes: ``ok`` or a short error, by step. The traceback goes to stderr.
        failures: Exceptions of failed steps.
        seconds: Duration of each step.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.failures: dict[str, BaseException] = {}
        self.seconds: dict[str, float] = {}

    def take(self, name: str, step: Callable[[], Any]) -> Any:
        """Run a step, and return its result, or None if it fails."""
        started = time.perf_counter()
        self.outcomes[name] = OK
        try:
            return step()
        except (Exception, SystemExit) as error:
            print(f"--- {name}", file=sys.stderr)
            traceback.print_exc()
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            text = " / ".join(lines[:4])
            self.outcomes[name] = f"{type(error).__name__}: {text}"[:400]
            self.failures[name] = error
        finally:
            self.seconds[name] = round(time.perf_counter() - started, 3)
        return None

    def write(self, file: Path, **report: Any) -> None:
        """Write the results of the steps, and other fields, as JSON."""
        report = {"steps": self.outcomes, "seconds": self.seconds, **report}
        file.write_text(json.dumps(report, indent=1))


def leaves(value: Any, is_detached: bool = True) -> dict[str, Leaf]:
    """Return the tensors and plain values in an output, by path.

    Mappings, sequences, and attributes of other objects are traversed, each object once.

    Args:
        value: The output.
        is_detached: Whether to return copies of tensors, without their gradient functions.
    """
    found = dict(_leaves(value, "output", set()))
    if not is_detached:
        return found
    return {
        path: leaf.detach().as_subclass(torch.Tensor).clone()
        if isinstance(leaf, torch.Tensor)
        else leaf
        for path, leaf in found.items()
    }


def _leaves(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    if value is None or isinstance(value, (torch.Tensor, str, int, float, bool)):
        yield path, value
    elif id(value) not in seen:
        seen.add(id(value))
        for part, below in _parts(value):
            yield from _leaves(below, path + part, seen)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", below) for key, below in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", below) for number, below in enumerate(value))
    elif not isinstance(value, (type, types.FunctionType, types.MethodType, types.ModuleType)):
        yield from ((f".{name}", below) for name, below in getattr(value, "__dict__", {}).items())


def difference(expected: Mapping[str, Leaf], found: Mapping[str, Leaf]) -> str | None:
    """Describe the first leaf that is not bit-identical, or return None."""
    if list(expected) != list(found):
        unmatched = sorted(set(expected) ^ set(found))
        return f"different leaves: {', '.join(unmatched) or 'in another order'}"
    return next(
        (f"{path} differs" for path in expected if not _same(expected[path], found[path])), None
    )


def _same(one: Leaf, other: Leaf) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(_bits(one), _bits(other))
    return type(one) is type(other) and repr(one) == repr(other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
