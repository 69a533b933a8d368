"""What runs in a process that compiles for another one: see :mod:`modpack.hermetic.compileahead`.

It runs no packaged code, and imports as little as it can: it starts in 0.03 seconds, in which its
asker compiles a hundred modules.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import marshal
import mmap
import os
import struct
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType

from modpack.hermetic.localimports import compile_module
from modpack.hermetic.reach import keeps

__all__ = ["ANSWER", "PYTHON", "Job", "Task", "compile_all", "main"]

ANSWER = struct.Struct("<II32s")
"""Before each piece of code: the number of its task, and the piece's size and sha256."""
_LINES = compile("name = 0", "", "exec").co_linetable.hex()
PYTHON = f"{sys.implementation.cache_tag} {importlib.util.MAGIC_NUMBER.hex()} {_LINES}"
"""For whom code is; it may know the columns of tracebacks or not (``-X no_debug_ranges``)."""

Task = tuple[str, str, bool, int, str]
"""A module's path, its record, whether it is a package; size and sha256 of its source."""
Job = tuple[str, str, str, int, tuple[str, ...], tuple[str, ...], list[Task]]
""":data:`PYTHON`, the tree, the namespace's prefix, the level of optimization, the first components
of the package's modules and of its extern ones, and the tasks."""


def main() -> None:
    """Do what the standard input says, and put what was compiled into the standard output.

    The input is a file that both processes map: a byte for each task, then the job. The asker sets
    the byte when it compiles the module itself.
    """
    count, asked_by = int(sys.argv[2]), int(sys.argv[3])
    gc.disable()  # syntax trees have no cycles
    # Whoever imports a module is told what the compiler warns of: such modules are left to him.
    warnings.simplefilter("error")
    shared = memoryview(mmap.mmap(0, 0, access=mmap.ACCESS_READ))
    job: Job = marshal.loads(shared[count:])
    if job[0] == PYTHON:
        compile_all(job, shared, lambda: os.getppid() == asked_by, _answer)


def compile_all(
    job: Job,
    is_done: Sequence[int],
    is_wanted: Callable[[], bool],
    answer: Callable[[int, bytes], None],
) -> None:
    """Compile what is to be compiled, the last first.

    Args:
        job: the modules, and all that their code depends on.
        is_done: for each task whether somebody else has taken it.
        is_wanted: asked before each of them.
        answer: takes the number of a task, and its marshalled code.
    """
    _, tree, prefix, optimize, roots, extern_roots, tasks = job
    stays = partial(keeps, roots=frozenset(roots), extern_roots=frozenset(extern_roots))
    for number in reversed(range(len(tasks))):
        if not is_wanted():
            return
        if not is_done[number]:
            try:
                piece = _compiled(tasks[number], tree, prefix, optimize, stays)
            except Exception:  # whoever imports it is told
                continue
            if piece is not None:
                answer(number, piece)


def _compiled(
    task: Task, tree: str, prefix: str, optimize: int, stays: Callable[[str], bool]
) -> bytes | None:
    """The marshalled code of a module; None if its source is not what the package has."""
    module, record, is_package, size, sha256 = task
    file = f"{tree}{os.sep}{record.replace('/', os.sep)}"
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123 - there are many
        source = opened.read()
    if (len(source), hashlib.sha256(source).hexdigest()) != (size, sha256):
        return None
    code: CodeType
    if prefix:
        name = prefix + module
        package = name if is_package else name.rpartition(".")[0]
        code = compile_module(source, file, package, stays, optimize)
    else:
        code = compile(source, file, "exec", dont_inherit=True, optimize=optimize)
    return marshal.dumps(code)


def _answer(number: int, piece: bytes) -> None:
    header = ANSWER.pack(number, len(piece), hashlib.sha256(piece).digest())
    left = memoryview(header + piece)
    while left:
        left = left[os.write(1, left) :]
