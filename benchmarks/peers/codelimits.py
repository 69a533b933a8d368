"""What cannot be avoided: code, by programs that do nothing but read, parse or import it.

Nobody could use these. They have no archive, check nothing, and find no dependencies; but what
they take is the least that a package written and read in Python can take on this machine.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib.abc
import importlib.util
import marshal
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import CodeType
from typing import Any

import project
from clocks import clock

__all__ = ["compile_library", "files_below", "import_code", "read_library", "write_code"]

Figures = dict[str, float]

_CODE = ".code"


def read_library(below: str) -> Figures:
    """Read the sources of an installed library, and hash each."""
    files = files_below(below)[1]
    with clock() as seconds:
        for file in files:
            hashlib.sha256(file.read_bytes()).hexdigest()
    return {"per module": seconds() / len(files), "modules": len(files)}


def compile_library(below: str) -> Figures:
    """Read the sources of an installed library, and make a syntax tree of each."""
    files = files_below(below)[1]
    gc.disable()
    with clock() as seconds:
        for file in files:
            ast.parse(file.read_bytes())
    return {"per module": seconds() / len(files), "modules": len(files)}


def files_below(library: str) -> tuple[Path, list[Path]]:
    """Where an installed library is, and the sources of a part of it; none is imported."""
    found = importlib.util.find_spec(library.partition(".")[0])
    assert found is not None and found.origin is not None
    site = Path(found.origin).parents[1]
    return site, sorted((site / library.replace(".", "/")).rglob("*.py"))


def write_code(folder: str) -> Figures:
    """All code of a project as one file: its sources, and what they compile to."""
    files = sorted((Path(folder) / "app").glob("*.py"))
    named = {_module_of(file): file.read_bytes() for file in files}
    Path(f"{folder}.sources").write_bytes(marshal.dumps(named))
    compiled = {name: compile(source, name, "exec") for name, source in named.items()}
    Path(f"{folder}{_CODE}").write_bytes(marshal.dumps(compiled))
    return {}


def import_code(file: str) -> Figures:
    """Import a project from one file of sources, or of what they compile to."""
    import torch  # noqa: F401 - what else runs in this process is the same for all

    gc.disable()
    is_compiled = file.endswith(_CODE)
    with clock() as seconds:
        code = marshal.loads(Path(file).read_bytes()) if is_compiled else _compiled(file)
        sys.meta_path.insert(0, _CodeFinder(code))
        importlib.import_module(project.MAIN)
    return {"importing": seconds()}


def _compiled(file: str) -> dict[str, CodeType]:
    """What a file of sources compiles to; each core does its share."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, get_context("fork")) as pool:
        shares = pool.map(_compiled_share, [file] * cores, range(cores), [cores] * cores)
        return {name: code for share in shares for name, code in marshal.loads(share).items()}


def _compiled_share(file: str, first: int, step: int) -> bytes:
    sources = list(marshal.loads(Path(file).read_bytes()).items())[first::step]
    return marshal.dumps({name: compile(source, name, "exec") for name, source in sources})


class _CodeFinder(importlib.abc.Loader):
    """Imports what it has the code of."""

    def __init__(self, code: Mapping[str, CodeType]) -> None:
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name in self._code:
            return importlib.util.spec_from_loader(name, self, is_package=name == "app")
        return None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._code[module.__name__], module.__dict__)


def _module_of(file: Path) -> str:
    return "app" if file.stem == "__init__" else f"app.{file.stem}"
