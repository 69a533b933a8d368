"""Projects of many modules, made of sources that nobody wrote."""

from __future__ import annotations

import random
from pathlib import Path

__all__ = ["MAIN", "write_project"]

MAIN = "app.main"
"""The module that imports all others."""

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


def write_project(folder: Path, count: int) -> None:
    """A package of so many modules, each of which imports three of those before it."""
    chance = random.Random(count)
    package = folder / "app"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Generated."""\n')
    names = [f"m{number:05}" for number in range(count)]
    for number, name in enumerate(names):
        used = sorted(set(chance.choices(names[:number], k=3))) if number else []
        (package / f"{name}.py").write_text(_source(used))
    imports = "".join(f"import app.{name}\n" for name in names)
    (package / "main.py").write_text(f'"""Generated."""\n{imports}')


def _source(used: list[str]) -> str:
    parts = ['"""Generated."""\n\nimport os\n', *(f"from app import {name}\n" for name in used)]
    helper = used[0] if used else "os"
    parts += [_FUNCTION.format(number=each, used=helper) for each in range(_FUNCTIONS_EACH)]
    return "".join(parts)
