"""What packaging and reloading a recipe share: steps, outputs, operators that are not here."""

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
    """Declare the operators of a library whose compiled code cannot run here.

    They are not implemented: Python code may refer to them. An empty name stands for none.
    """
    for signature in _OPERATORS.get(library, ()):
        fragment = torch.library.Library(library, "FRAGMENT")
        fragment.define(signature)
        _declared.append(fragment)


class Steps:
    """What came of each step, in order: one failing step must not hide the others.

    Attributes:
        outcomes: ``ok``, or the last line of the error, by the name of the step. The whole
            traceback goes to standard error.
        failures: the exception of each step that failed.
        seconds: how long each step took.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.failures: dict[str, BaseException] = {}
        self.seconds: dict[str, float] = {}

    def take(self, name: str, step: Callable[[], Any]) -> Any:
        """Carry out a step; what it returns, or None if it fails."""
        started = time.perf_counter()
        self.outcomes[name] = OK
        try:
            return step()
        except (Exception, SystemExit) as failure:
            print(f"--- {name}", file=sys.stderr)
            traceback.print_exc()
            lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
            told = " / ".join(lines[:4])
            self.outcomes[name] = f"{type(failure).__name__}: {told}"[:400]
            self.failures[name] = failure
        finally:
            self.seconds[name] = round(time.perf_counter() - started, 3)
        return None

    def write(self, file: Path, **report: Any) -> None:
        """Write down what came of them, and more."""
        report = {"steps": self.outcomes, "seconds": self.seconds, **report}
        file.write_text(json.dumps(report, indent=1))


def leaves(value: Any) -> dict[str, Leaf]:
    """The tensors and plain values in an output, by their path in it.

    Mappings, sequences and the attributes of any other objects are followed, an object that is
    reached twice only once.
    """
    return dict(_leaves(value, "output", set()))


def _leaves(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, torch.Tensor):
        yield path, value.detach().as_subclass(torch.Tensor).clone()
    elif value is None or isinstance(value, (str, int, float, bool)):
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
    """The first leaf that is not the same to the last bit, in a few words; None if all are."""
    if list(expected) != list(found):
        odd = sorted(set(expected) ^ set(found))
        return f"other leaves: {', '.join(odd) or 'in another order'}"
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
