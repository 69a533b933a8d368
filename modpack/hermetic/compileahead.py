"""Modules compiled by a helper: another process, which compiles what will be imported.

The import asks for modules in its own order, the helper takes them from the far end. It compiles
only sources that are what the package has, and what it says has the digests of its pieces: it is
believed as a file in the cache is. Whatever becomes of a helper costs time only: what it has not
compiled, the import does.

Both processes map one file, in which the import notes what it compiles itself; the answers are
another, which the import reads where it has grown. Neither file has a name: nothing stays behind.
"""

from __future__ import annotations

import hashlib
import logging
import marshal
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from modpack.core.helpers import (
    FIND_MODPACK,
    helpers_wanted,
    if_possible,
    kill_helper,
    start_helper,
    usable_cores,
)
from modpack.hermetic.compilehelper import ANSWER, PYTHON, Job, Task
from modpack.hermetic.index import ModuleIndex

if TYPE_CHECKING:
    import subprocess

__all__ = ["CompileAhead"]

_log = logging.getLogger(__name__)
_START: Final = f"{FIND_MODPACK}; from modpack.hermetic.compilehelper import main; main()"
_MISSES: Final = 8
"""Modules that one import had to compile, before more of them are expected."""
_WORTH_A_START: Final = 200
"""Modules that wait. A helper compiles its first one when the import has compiled a hundred."""

_Key = tuple[str, str]
"""A module's path, and its record."""


class CompileAhead:
    """Has a package's modules compiled before they are asked for, where that is faster.

    Args:
        tree: the folder with the package's files.
        prefix: what goes before the package's module paths, or ``""`` for real names.
        index: the package's modules.
    """

    def __init__(self, tree: Path, prefix: str, index: ModuleIndex) -> None:
        self._tree = tree
        self._prefix = prefix
        self._index = index
        self._helper: _Helper | None = None
        self._misses = 0
        self._is_off = not hasattr(os, "pread")  # Windows

    def take(self, key: _Key, waiting: Callable[[], Sequence[Task]]) -> bytes | None:
        """The marshalled code of a module; None if it is to be compiled here.

        Args:
            key: the module.
            waiting: gives all modules whose code is not kept, in the order in which they will
                probably be asked for.
        """
        if self._helper is None:
            self._misses += 1
            if self._is_off or self._misses != _MISSES:
                return None
            self._helper = self._start(waiting)
        helper = self._helper  # another thread may end it
        return None if helper is None else helper.take(key)

    def end(self) -> None:
        """An import has come to its end: so does the helper, wherever it is."""
        helper, self._helper, self._misses = self._helper, None, 0
        if helper is not None:
            helper.end()
            self._is_off = not helper.has_helped  # imports are too short for it

    def _start(self, waiting: Callable[[], Sequence[Task]]) -> _Helper | None:
        if usable_cores() < 2 or not helpers_wanted():
            return None
        tasks = list(waiting())
        if len(tasks) < _WORTH_A_START:
            return None
        roots, externs = tuple(self._index.roots), tuple(self._index.extern_roots)
        optimize = sys.flags.optimize
        job = (PYTHON, str(self._tree), self._prefix, optimize, roots, externs, tasks)
        helper = if_possible(partial(_Helper, job), "compiling")
        if helper is None:
            self._is_off = True
        return helper


class _Helper:
    """A process that compiles, and what it has said.

    Args:
        job: what it is to do.

    Attributes:
        has_helped: whether anything of it was used.

    Raises:
        OSError, RuntimeError, ValueError: it cannot be started.
    """

    def __init__(self, job: Job) -> None:
        tasks = job[-1]
        self.has_helped = False
        self._numbers = {task[:2]: number for number, task in enumerate(tasks)}
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._position = 0
        self._answers: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        try:
            self._process, self._is_ours = _started(job, self._answers)
        except BaseException:
            self._answers.close()
            raise
        self._asker = os.getpid()

    def take(self, key: _Key) -> bytes | None:
        """What it has made of a module; None if it is to be compiled here."""
        number = self._numbers.get(key)
        if number is None:
            return None
        if number not in self._pieces:
            self._listen()
        piece = self._pieces.pop(number, None)
        if piece is None:
            self._is_ours[number] = 1
        else:
            self.has_helped = True
        return piece

    def end(self) -> None:
        """End it. A forked child leaves it to its parent."""
        if os.getpid() != self._asker:
            self._process.returncode = 0
            self._answers.close()
            return
        kill_helper(self._process)
        with self._lock:
            self._answers.close()

    def _listen(self) -> None:
        """Take in what was said since the last time."""
        # Without waiting: a forked child has nobody who would free a lock that it got locked.
        if not self._lock.acquire(blocking=False):
            return
        try:
            file = self._answers.fileno()
            grown = os.fstat(file).st_size - self._position
            if grown > 0:
                self._note(os.pread(file, grown, self._position))
        except (OSError, ValueError) as failure:  # closed, or damaged
            self._position = sys.maxsize
            _log.debug("a helper is not heard any more: %s", failure)
        finally:
            self._lock.release()

    def _note(self, said: bytes) -> None:
        position = 0
        while len(said) - position >= ANSWER.size:
            number, size, digest = ANSWER.unpack_from(said, position)
            start = position + ANSWER.size
            if number >= len(self._numbers):
                raise ValueError("it speaks of something else")
            if len(said) - start < size:  # still being written
                break
            piece = said[start : start + size]
            if hashlib.sha256(piece).digest() != digest:
                raise ValueError("what it says is damaged")
            self._pieces[number] = piece
            position = start + size
        self._position += position


def _started(job: Job, answers: IO[bytes]) -> tuple[subprocess.Popen[bytes], mmap.mmap]:
    """The process, and the notes that it sees of what is compiled here."""
    count = len(job[-1])
    with tempfile.TemporaryFile() as file:
        file.write(bytes(count) + marshal.dumps(job))
        file.flush()
        file.seek(0)
        notes = mmap.mmap(file.fileno(), count)
        return start_helper(_START, [str(count), str(os.getpid())], file, answers), notes
