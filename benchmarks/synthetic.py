"""A generated package as large as those of big libraries.

The package has 2,500 interned modules of twenty distributions and of a project, about 10,000
imports, mocked modules with all kinds of uses, extern modules, and a model with hooks. Sources are
as long as the average source of a real library. Only the model's module is ever imported.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DISTRIBUTIONS = 20
_MODULES_EACH = 100
_OWN_MODULES = 500
_EXTERNS = 10
_MOCKS = 8
_IMPORTS_EACH = 3
_FUNCTIONS_EACH = 12
_BLOCKS = 200
_LICENSES = ("MIT", "Apache-2.0", "BSD-3-Clause", "MIT OR Apache-2.0", "LGPL-2.1-only")

_MODEL = """
import torch


def all_parts():
    {imports}


def count_calls(module, args, output):
    module.calls = getattr(module, "calls", 0) + 1


class Net(torch.nn.Module):
    def __init__(self, blocks, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(blocks)))
        for block in self.blocks:
            block.register_forward_hook(count_calls)

    def forward(self, x):
        return self.blocks(x)
"""

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
            total -= {used}(value, scale)
    return total * scale
'''

_MOCK_USES = '''
import {mock}


class Watching{number}({mock}.Callback):
    """A class with a mocked base class."""

    @{mock}.watched
    def finished(self, results):
        {mock}.log(results)
'''


@dataclass(frozen=True)
class Synthetic:
    """The files of a build.

    Attributes:
        first: Path of the package.
        second: Path of the same package with a changed source and different weights in one block.
        deepest: Interned module with many import chains.
    """

    first: Path
    second: Path
    deepest: str


def build(folder: Path) -> Synthetic:
    """Write the project to an empty folder, and package it twice.

    Args:
        folder: Empty folder.
    """
    _write_project(folder)
    result = files_in(folder)
    with _importable(folder / "site"), _importable(folder / "own"):
        _package(result.first, changed=False)
        changed = folder / "own" / "app" / "m007.py"
        changed.write_text(changed.read_text() + "\n\nADDED = True\n")
        _package(result.second, changed=True)
    return result


def files_in(folder: Path) -> Synthetic:
    """Return the files that :func:`build` writes to a folder."""
    deepest = f"branch{_DISTRIBUTIONS - 1:02}.m{_MODULES_EACH - 2:02}"
    return Synthetic(folder / "first.modpack", folder / "second.modpack", deepest)


def _package(file: Path, changed: bool) -> None:
    import torch

    from modpack import PackageExporter

    net = importlib.import_module("app.model").Net(_BLOCKS, seed=1)
    if changed:
        torch.nn.init.ones_(net.blocks[7].weight)
    with PackageExporter(file) as exporter:
        exporter.mock([f"tracker{number}.**" for number in range(_MOCKS)])
        exporter.extern([f"leaf{number}" for number in range(_EXTERNS)])
        exporter.intern(["app.**", "branch*.**"])
        exporter.save_model("model", "model.pkl", net)


def _write_project(folder: Path) -> None:
    """Write a folder of installed distributions and a folder of project code."""
    chance = random.Random(5)
    branches = [
        [f"branch{d:02}.m{m:02}" for m in range(_MODULES_EACH - 1)] for d in range(_DISTRIBUTIONS)
    ]
    own = [f"app.m{m:03}" for m in range(_OWN_MODULES - 2)]
    for number, modules in enumerate(branches):
        near = [name for step in (0, 1) for name in branches[(number + step) % _DISTRIBUTIONS]]
        _write_package(folder / "site", modules, near, chance)
        _install(folder / "site", number)
    _write_package(folder / "own", own, own + [names[0] for names in branches], chance)
    for number in range(_EXTERNS):
        _install_leaf(folder / "site", number)
    imports = [f"import {name}" for name in [own[0], *(names[0] for names in branches)]]
    model = _MODEL.format(imports="\n    ".join(imports))
    (folder / "own" / "app" / "model.py").write_text(textwrap.dedent(model))


def _write_package(
    folder: Path, modules: list[str], near: list[str], chance: random.Random
) -> None:
    """Write a Python package whose imports form a tree, plus imports across it with cycles."""
    package = folder / modules[0].partition(".")[0]
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Generated."""\n')
    for number, module in enumerate(modules):
        children = modules[2 * number + 1 : 2 * number + 3]
        others = chance.sample(near, _IMPORTS_EACH)
        source = _source(number, children, others, chance)
        (package / f"{module.partition('.')[2]}.py").write_text(source)


def _source(number: int, children: list[str], others: list[str], chance: random.Random) -> str:
    at_once, guarded, later = others
    parts = ['"""Generated."""\n\nimport os\n']
    parts += [f"import {child}\n" for child in [*children, at_once]]
    parts.append(f"try:\n    import {guarded}\nexcept ImportError:\n    pass\n")
    if number % 50 == 0:
        parts.append(f"import leaf{chance.randrange(_EXTERNS)}\n")
    if number % 40 == 0:
        parts.append(_MOCK_USES.format(mock=f"tracker{chance.randrange(_MOCKS)}", number=number))
    parts.append(f"\n\ndef late():\n    import {later}\n\n    return {later}.step_0([])\n\n")
    functions = range(_FUNCTIONS_EACH)
    parts += [_FUNCTION.format(number=each, used=f"{at_once}.step_{each}") for each in functions]
    return "\n".join(parts)


def _install(site: Path, number: int) -> None:
    name = f"branch{number:02}"
    files = sorted(file.relative_to(site).as_posix() for file in (site / name).glob("*.py"))
    other = f"branch{(number + 1) % _DISTRIBUTIONS:02}"
    _write_metadata(site, name, files, other, _LICENSES[number % len(_LICENSES)])


def _install_leaf(site: Path, number: int) -> None:
    name = f"leaf{number}"
    (site / f"{name}.py").write_text('"""Generated; extern."""\n')
    _write_metadata(site, name, [f"{name}.py"], "leaf0", "MIT")


def _write_metadata(site: Path, name: str, files: list[str], other: str, license: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nLicense-Expression: {license}\n"
    (info / "METADATA").write_text(f"{head}Requires-Dist: {other}\n\nGenerated.\n")
    everything = [*files, f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in everything))


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(folder))
