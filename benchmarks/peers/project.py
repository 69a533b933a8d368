"""Generated projects of many modules."""

from __future__ import annotations

import random
from pathlib import Path

MAIN = "app.main"
"""The module that imports all others."""
TRACKER = "tracker"
"""A module that does not exist, which some modules use on request."""

_FUNCTIONS_EACH = 8
_FUNCTION = '''

def step_{number}(values, weight={number}, *, scale=1.0):
    """Return a weighted and scaled sum. Never called.

    Args:
        values: Numbers to add.
        weight: Weight of each number.
        scale: Factor of the sum.
    """
    total = 0.0
    for position, value in enumerate(values):
        if position % (weight + 1):
            total += value * weight
        else:
            total -= {used}.step_0(value, scale)
    return total * scale
'''


_MODEL = '''"""A model that imports all modules."""

import torch

import app.main


class Net(torch.nn.Linear):
    """A layer."""

    def __init__(self):
        super().__init__(4, 4)
'''
_TRACKED = '''
import tracker

log = tracker.get_logger(__name__)


class Watching(tracker.Callback):
    """A class with a missing base class."""

    @tracker.watched
    def finished_{number}(self, results):
        log.info("finished", report_{number}(results))


def report_{number}(values):
    """Log values with the tracker."""
    tracker.log(sum(values))
'''


def write_project(folder: Path, count: int, tracked: int = 0) -> None:
    """Write a Python package whose modules import three earlier ones each.

    Args:
        folder: Folder for the package.
        count: Number of modules.
        tracked: Every so many modules, one uses :data:`TRACKER`. 0 means none.
    """
    chance = random.Random(count)
    package = folder / "app"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Generated."""\n')
    names = [f"m{number:05}" for number in range(count)]
    for number, name in enumerate(names):
        used = sorted(set(chance.choices(names[:number], k=3))) if number else []
        tracking = _TRACKED.format(number=number) if tracked and number % tracked == 0 else ""
        (package / f"{name}.py").write_text(_source(used) + tracking)
    imports = "".join(f"import app.{name}\n" for name in names)
    (package / "main.py").write_text(f'"""Generated."""\n{imports}')
    (package / "model.py").write_text(_MODEL)


def _source(used: list[str]) -> str:
    parts = ['"""Generated."""\n\nimport os\n', *(f"from app import {name}\n" for name in used)]
    helper = used[0] if used else "os"
    parts += [_FUNCTION.format(number=each, used=helper) for each in range(_FUNCTIONS_EACH)]
    return "".join(parts)
