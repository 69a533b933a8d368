"""This process: its progress, its garbage collector, its threads, helpers, callers and folder.

What takes long says how far it is: to the log, and to whoever listens.

Nothing depends on a helper process: what it has not done, this process does, only later. A helper
runs this Python, isolated, with nothing but what its work needs: it imports neither torch nor the
user's main module, and can be started from anywhere.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, TypeVar

from modpack.core.names import root_of

if TYPE_CHECKING:
    import subprocess
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

_log = logging.getLogger("modpack")


class ProgressUnit(Enum):
    """What the progress of a phase is counted in."""

    BYTES = "bytes"
    MODULES = "modules"
    RECORDS = "records"


class Phase:
    """A part of the work that may take long.

    Attributes:
        text: what is being done (``following imports``).
        unit: what is counted; None if nothing is.
        total: how much there is to do, if that is known beforehand.
        done: how much has been done by now.
    """

    __slots__ = ("done", "text", "total", "unit")

    def __init__(
        self, text: str, unit: ProgressUnit | None = None, total: int | None = None
    ) -> None:
        self.text = text
        self.unit = unit
        self.total = total
        self.done = 0

    def advance(self, by: int = 1) -> None:
        """Count what has been done."""
        self.done += by


class ProgressListener(Protocol):
    """Hears of phases; how far one is, it can ask the phase itself at any time."""

    def begin(self, phase: Phase) -> None:
        """A phase begins, within those that have not ended yet."""

    def end(self, phase: Phase) -> None:
        """A phase ends, whether its work succeeded or not."""


_listener: ContextVar[ProgressListener | None] = ContextVar("listener", default=None)
_innermost: ContextVar[Phase | None] = ContextVar("innermost", default=None)


@contextmanager
def report_progress_to(listener: ProgressListener) -> Iterator[None]:
    """Tell a listener of the phases of what runs in the block, in this thread.

    Args:
        listener: hears of them.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def has_listener() -> bool:
    """Whether a listener hears of the phases of this thread already."""
    return _listener.get() is not None


@contextmanager
def phase(
    text: str,
    unit: ProgressUnit | None = None,
    total: int | None = None,
    *,
    is_major: bool = False,
) -> Iterator[Phase]:
    """Say that the work in the block may take long.

    The logger ``modpack`` hears when it begins, and when it is done and how long it took.

    Args:
        text: what is being done.
        unit: what is counted, if anything is.
        total: how much there is to do, if that is known.
        is_major: whether it is worth level INFO when it is done, instead of DEBUG.

    Returns:
        The phase, to count what has been done.

    >>> with phase("weighing", Unit.BYTES, total=10) as weighing:
    ...     weighing.advance(4)
    ...     advance(2)
    >>> weighing.done
    6
    """
    entered, listener = Phase(text, unit, total), _listener.get()
    token, started = _innermost.set(entered), time.monotonic()
    _log.debug("%s ...", text)
    if listener is not None:
        listener.begin(entered)
    try:
        yield entered
        level = logging.INFO if is_major else logging.DEBUG
        _log.log(level, "%s: %s", text, _outcome(entered, time.monotonic() - started))
    finally:
        _innermost.reset(token)
        if listener is not None:
            listener.end(entered)


def advance(by: int = 1) -> None:
    """Count what has been done in the innermost phase, for those who do not know it."""
    current = _innermost.get()
    if current is not None:
        current.done += by


def _outcome(ended: Phase, seconds: float) -> str:
    took = f"done in {seconds:.2f} seconds"
    return took if ended.unit is None else f"{ended.done} {ended.unit.value}, {took}"


_lock = threading.Lock()
_pausing: list[int] = []
"""The threads that want a pause right now, each as often as it does."""
_is_due = False
"""Whether the end of the last pause starts the search again; somebody else may have stopped it."""


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause Python's search for cyclic garbage in this process.

    A syntax tree, or a model that is loaded, is a hundred thousand objects without a cycle. While
    it grows, the collector goes through it, and through all that torch has made, again and again:
    one search of everything takes 80 ms once torch is imported, and parsing takes twice as long.
    For work that leaves few cycles behind. Pauses may lie within each other, and in many threads.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    """
    _pause(1)
    try:
        yield
    finally:
        _pay_debt(1)
        _resume(1)


@contextmanager
def gc_resumed() -> Iterator[None]:
    """Lift the pauses of this thread for a while: for code that may run long, or set it itself."""
    own = _pausing.count(threading.get_ident())
    _pay_debt(own)
    _resume(own)
    try:
        yield
    finally:
        _pause(own)


def _pause(times: int) -> None:
    global _is_due
    with _lock:
        if times and not _pausing:
            _is_due = gc.isenabled()
            gc.disable()
        _pausing.extend([threading.get_ident()] * times)


def _pay_debt(ending: int) -> None:
    """Search what is new before the last pause ends.

    Otherwise the next object that anybody makes starts a search, and often one of far more than
    what is new here: 1 ms of the 3 ms in which a small package is loaded.
    """
    is_last = 0 < ending == len(_pausing)
    if is_last and _is_due and gc.get_count()[0] > gc.get_threshold()[0] > 0:
        gc.collect(0)  # not under the lock: finalizers run, and may do anything


def _resume(times: int) -> None:
    with _lock:
        for _ in range(times):
            _pausing.remove(threading.get_ident())
        if times and not _pausing and _is_due:
            gc.enable()


def _keep_own_pauses() -> None:
    """A forked child has none of the other threads: nobody would end their pauses."""
    global _lock
    _lock = threading.Lock()
    others = [thread for thread in _pausing if thread != threading.get_ident()]
    for thread in others:
        _pausing.remove(thread)
    if others and not _pausing and _is_due:
        gc.enable()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_keep_own_pauses)


_FACTOR = 10
"""Without it, a search of all that torch has made falls into the import of 1,000 compiled modules,
which then takes 0.18 s instead of 0.11 (benchmark rows import-1000 and import-3000)."""

_importing: set[int] = set()
_usual = (0, 0, 0)


def raise_gc_threshold(importing: object) -> None:
    """Have Python look for cyclic garbage after ten times as many new objects, until the end.

    Nearly all that an import makes stays: looking for garbage in it takes a fifth of the time in
    which 2,000 compiled modules are imported. The search is not stopped, for modules may do
    anything while they are imported.

    Args:
        importing: whatever imports; of several, the last to end ends it.
    """
    global _usual
    with _lock:
        if not _importing:
            _usual = gc.get_threshold()
            gc.set_threshold(_usual[0] * _FACTOR, *_usual[1:])
        _importing.add(id(importing))


def restore_gc_threshold(importing: object) -> None:
    """Search as often as before, unless somebody has said how often since."""
    with _lock:
        _importing.discard(id(importing))
        if not _importing and gc.get_threshold() == (_usual[0] * _FACTOR, *_usual[1:]):
            gc.set_threshold(*_usual)


_CLOSED = (
    ModuleType,
    FrameType,
    TracebackType,
    GeneratorType,
    CoroutineType,
    AsyncGeneratorType,
    FunctionType,
    type,
)
"""Through these one gets to everything in the process; of the last two, a part is looked at."""


def find_instances(root: object, wanted: tuple[type[T], ...]) -> Iterator[T]:
    """Every object of some types that an object holds at any depth, each once.

    Python's collector knows what objects hold. It is asked for a whole level at once: that runs
    none of their code, and takes 0.2 microseconds an object: a model may have 20,000 parameters.
    """
    seen: dict[int, Any] = {}
    reached: list[Any] = [root]
    while reached:
        fresh = {id(each): each for each in reached}
        for known in fresh.keys() & seen.keys():
            del fresh[known]
        seen.update(fresh)
        kinds = {type(each) for each in fresh.values()}
        found = {kind for kind in kinds if issubclass(kind, wanted)}
        if found:
            yield from (each for each in fresh.values() if type(each) in found)
        closed = {kind for kind in kinds if issubclass(kind, _CLOSED)}
        reached = gc.get_referents(*(each for each in fresh.values() if type(each) not in closed))
        if closed:
            ajar = (each for each in fresh.values() if type(each) in closed)
            reached += (part for each in ajar for part in _parts(each))


def _parts(closed: object) -> tuple[object, ...]:
    """The parts of a function, and of a class that is packaged because it has no module."""
    if isinstance(closed, FunctionType):
        return (closed.__closure__, closed.__defaults__, closed.__kwdefaults__, closed.__dict__)
    if isinstance(closed, type) and "<locals>" in closed.__qualname__:
        return (*vars(closed).values(), *closed.__bases__)
    return ()


_SWITCH: Final = "MODPACK_WORKERS"
_PATIENCE: Final = 5.0
"""Seconds that a killed helper has to end; its disk may not answer."""
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use, in microseconds out of so many."""
_HOME: Final = str(Path(__file__).absolute().parents[2])
"""Where modpack is, wherever the current folder will be when a helper is started."""
FIND_MODPACK: Final = "import sys; sys.path.append(sys.argv[1])"
"""What a helper runs first, if it is to import modpack."""


def helpers_enabled() -> bool:
    """Whether helpers may be started: ``MODPACK_WORKERS=0`` forbids it."""
    return os.environ.get(_SWITCH) != "0"


def usable_cores() -> int:
    """How many processes of this user's can run at a time, as far as that is known."""
    cores = os.cpu_count() or 1
    with contextlib.suppress(AttributeError, OSError):  # not every system tells
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no container, or none with a limit
        quota, period = _QUOTA.read_text().split()
        cores = min(cores, max(int(quota) // int(period), 1))
    return cores


def start_helper(
    code: str, arguments: Sequence[str], stdin: IO[Any], stdout: IO[Any] | None = None
) -> subprocess.Popen[bytes]:
    """Start a helper. Its work is a file: a pipe would have to be fed.

    Args:
        code: what it runs; it has modpack's folder, then its arguments, in ``sys.argv``.
        arguments: the arguments.
        stdin: its work.
        stdout: a file for what it says, if it says anything.

    Raises:
        OSError, RuntimeError, ValueError: no process can be started.
    """
    import subprocess  # what most loads do without

    python = sys.executable or ""
    if not Path(python).name.lower().startswith(("python", "pypy")):
        raise OSError(f"sys.executable is {python!r}, which may not be Python")
    # -S: what is installed is no concern of a helper's, and looking at it takes its time.
    return subprocess.Popen(
        [python, "-I", "-S", "-c", code, _HOME, *arguments],
        stdin=stdin,
        stdout=subprocess.DEVNULL if stdout is None else stdout,
        stderr=subprocess.DEVNULL,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def start_if_possible(start: Callable[[], T], work: str) -> T | None:
    """What starts a helper, or None where that is not possible; the log tells why.

    Args:
        start: starts it, and makes the files that it needs.
        work: what it would help with (``"scanning"``).
    """
    try:
        return start()
    except Exception as failure:  # audit hooks may raise anything
        _log.info("no process can be started to help %s (%s)", work, failure)
        return None


def kill_helper(helper: subprocess.Popen[bytes]) -> None:
    """End a helper that can leave nothing half made, wherever it is."""
    import subprocess

    helper.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # Python waits for it when it can
        helper.wait(_PATIENCE)


class ThreadPool:
    """Some threads, made when there is work: zlib and hashlib release the GIL while they read.

    Where none can be started, as at the limit of a container or while Python ends, what they were
    to do is done at once.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None
        self._can_start = True

    def run(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Call a function on one of them.

        Args:
            function: leaves nothing behind but its result: it may be called twice.
            arguments: what it is called with.
        """
        from concurrent.futures import Future

        if self._can_start:
            try:
                if self._pool is None:
                    from concurrent.futures import (
                        ThreadPoolExecutor as Pool,  # not while Python ends
                    )

                    self._pool = Pool(self._count, thread_name_prefix="modpack-digest")
                return self._pool.submit(function, *arguments)
            except RuntimeError:  # the other thread may do it none the less
                self._can_start = False
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """End the threads; what they have not begun is not done any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def stacklevel_outside_package() -> int:
    """How many frames above its caller the user's code is, for warnings that point there."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and root_of(frame.f_globals.get("__name__", "")) == "modpack":
        depth, frame = depth + 1, frame.f_back
    return depth


def current_folder() -> Path | None:
    """The current folder; None if it is not there any more, as the import system takes it too."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def normalize_path(path: str) -> str:
    """A path as :mod:`pathlib` writes it, which nearly all are.

    >>> normalize_path("lab/./models/")
    'lab/models'
    """
    return path if os.path.normpath(path) == path else str(Path(path))
