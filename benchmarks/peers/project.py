"""Projects of many modules, made of sources that nobody wrote."""

from __future__ import annotations

import random
from pathlib import Path

MAIN = "app.main"
"""The module that imports all others."""
TRACKER = "tracker"
"""The module that some of them use, where that is wanted; there is none of that name."""

_FUNCTIONS_EACH = 8
_FUNCTION = '''

def step_{number}(values, weight={number}, *, scale=1.0):
    """Combine some values, weighted and scaled, into one; nothing calls this.

    Args:
        values: numbers, in any order.
        weight: what each of them counts.
        scale: what the sum is multiplied with.
    """
    total = 0.0
    for position, value in enumerate(values):
        if position % (weight + 1):
            total += value * weight
        else:
            total -= {used}.step_0(value, scale)
    return total * scale
'''


_TRACKED = '''
import tracker

log = tracker.get_logger(__name__)


class Watching(tracker.Callback):
    """Derived from something that is not there."""

    @tracker.watched
    def finished_{number}(self, results):
        log.info("finished", report_{number}(results))


def report_{number}(values):
    """Tell the tracker about some values."""
    tracker.log(sum(values))
'''


def write_project(folder: Path, count: int, tracked: int = 0) -> None:
    """A package of so many modules, each of which imports three of those before it.

    Args:
        folder: where it is written.
        count: how many modules.
        tracked: each module whose number this divides uses :data:`TRACKER`; 0 for none.
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


def _source(used: list[str]) -> str:
    parts = ['"""Generated."""\n\nimport os\n', *(f"from app import {name}\n" for name in used)]
    helper = used[0] if used else "os"
    parts += [_FUNCTION.format(number=each, used=helper) for each in range(_FUNCTIONS_EACH)]
    return "".join(parts)
