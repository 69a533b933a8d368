"""Process-wide services: progress, garbage collection, threads, helpers, signals, current folder.

Long operations report progress to the log and to a listener.

A helper process is an optimization: without it, this process does the work itself.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from modpack.core.names import is_within, namespace_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

_log = logging.getLogger("modpack")


class ProgressUnit(Enum):
    """Unit of a phase's progress."""

    BYTES = "bytes"
    MODULES = "modules"
    RECORDS = "records"
    ROWS = "rows"


class Phase:
    """A long-running part of the work.

    Attributes:
        text: Description, such as ``following imports``.
        unit: Unit of the progress; None if it is not counted.
        total: Amount of work, if known beforehand.
        done: Amount of finished work.
        started: Start on the clock of :func:`time.monotonic`.
    """

    __slots__ = ("done", "started", "text", "total", "unit")

    def __init__(
        self, text: str, unit: ProgressUnit | None = None, total: int | None = None
    ) -> None:
        self.text = text
        self.unit = unit
        self.total = total
        self.done = 0
        self.started = time.monotonic()

    def advance(self, by: int = 1) -> None:
        """Add to the amount of finished work."""
        self.done += by


class ProgressListener(Protocol):
    """A listener for phases; it can read a phase's progress at any time."""

    def begin(self, phase: Phase) -> None:
        """Handle the start of a phase, nested in those that have not ended."""

    def end(self, phase: Phase) -> None:
        """Handle the end of a phase, whether its work succeeded or not."""


_listener: ContextVar[ProgressListener | None] = ContextVar("listener", default=None)
_innermost: ContextVar[Phase | None] = ContextVar("innermost", default=None)


@contextmanager
def report_progress_to(listener: ProgressListener) -> Iterator[None]:
    """Report the phases of this thread to a listener while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def has_listener() -> bool:
    """Return whether this thread's phases are reported to a listener."""
    return _listener.get() is not None


def may_show_progress(progress: bool | None) -> bool:
    """Return whether progress may have to be shown; a cheap check before the display is imported.

    Args:
        progress: The option of :func:`modpack.save` and :func:`modpack.load`.
    """
    if progress is None:
        is_open = sys.stderr is not None and not getattr(sys.stderr, "closed", False)
        return is_open and ("IPython" in sys.modules or sys.stderr.isatty())
    return progress


@contextmanager
def phase(
    text: str,
    unit: ProgressUnit | None = None,
    total: int | None = None,
    *,
    is_major: bool = False,
) -> Iterator[Phase]:
    """Report the block as a phase to the listener, and its duration to the ``modpack`` logger.

    Args:
        text: Description of the work.
        unit: Unit of the progress, if it is counted.
        total: Amount of work, if known.
        is_major: Whether to log the end at level INFO instead of DEBUG.

    Returns:
        The phase, which counts the progress.

    >>> with phase("hashing", ProgressUnit.BYTES, total=10) as hashing:
    ...     hashing.advance(4)
    ...     advance(2)
    >>> hashing.done
    6
    """
    entered, listener = Phase(text, unit, total), _listener.get()
    token, started = _innermost.set(entered), time.monotonic()
    _log.debug("%s ...", text)
    if listener is not None:
        listener.begin(entered)
    try:
        yield entered
        # Not in `finally`: a phase that fails is not done.
        level = logging.INFO if is_major else logging.DEBUG
        _log.log(level, "%s: %s", text, _summarize(entered, time.monotonic() - started))
    finally:
        _innermost.reset(token)
        if listener is not None:
            listener.end(entered)


def advance(by: int = 1) -> None:
    """Add to the finished work of the innermost phase, if there is one."""
    current = _innermost.get()
    if current is not None:
        current.done += by


def _summarize(ended: Phase, seconds: float) -> str:
    took = f"done in {seconds:.2f} seconds"
    return took if ended.unit is None else f"{ended.done} {ended.unit.value}, {took}"


_lock = threading.Lock()
_paused_threads: list[int] = []
"""Threads with an active pause, one entry for each pause."""
_was_enabled = False
"""Whether the collector was enabled before the first pause, and is enabled after the last."""


@contextmanager
def gc_paused(*, keeps_all: bool = False) -> Iterator[None]:
    """Pause cyclic garbage collection in this process.

    A syntax tree or a loading model has a hundred thousand objects and no cycles. Without a pause,
    the collector traverses them and all of torch's objects repeatedly: a full collection takes
    80 ms once torch is imported, and parsing takes twice as long. Use it for work that leaves few
    cycles. Pauses can be nested and can overlap in several threads.

    Args:
        keeps_all: Whether all objects that the block creates live long, as those of imports do.
            The collector then takes them for old ones, without traversing them.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    """
    _pause(1)
    try:
        yield
    finally:
        # Only the user's own gc.freeze() excludes objects from collections, which must last. For
        # the imports of a first load, a collection takes 1 of 20 ms (benchmark row first-load).
        if keeps_all and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        _collect_young(1)
        _resume(1)


@contextmanager
def gc_resumed() -> Iterator[None]:
    """Suspend this thread's pauses, for user code that may run long or use :mod:`gc` itself."""
    own = _paused_threads.count(threading.get_ident())
    _collect_young(own)
    _resume(own)
    try:
        yield
    finally:
        _pause(own)


def _pause(times: int) -> None:
    global _was_enabled
    with _lock:
        if times and not _paused_threads:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused_threads.extend([threading.get_ident()] * times)


def _collect_young(ending: int) -> None:
    """Collect the youngest generation before the last pause ends.

    Otherwise the next allocation starts a collection, often of older generations too: 1 ms of the
    3 ms in which a small package is loaded.
    """
    is_last = 0 < ending == len(_paused_threads)
    if is_last and _was_enabled and gc.get_count()[0] > gc.get_threshold()[0] > 0:
        gc.collect(0)  # not under the lock: finalizers may run any code


def _resume(times: int) -> None:
    with _lock:
        for _ in range(times):
            _paused_threads.remove(threading.get_ident())
        if times and not _paused_threads and _was_enabled:
            gc.enable()


def _drop_pauses_of_other_threads() -> None:
    """End the pauses of other threads in a forked child, where these threads do not exist."""
    global _lock
    _lock = threading.Lock()
    others = [thread for thread in _paused_threads if thread != threading.get_ident()]
    for thread in others:
        _paused_threads.remove(thread)
    if others and not _paused_threads and _was_enabled:
        gc.enable()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_drop_pauses_of_other_threads)


_THRESHOLD_FACTOR = 10
"""Without it, a full collection happens while 1,000 modules are imported from a package's bytecode,
which then takes 0.18 s instead of 0.11 (benchmark rows import-1000 and import-3000)."""

_importing: set[int] = set()
_saved_threshold = (0, 0, 0)


def raise_gc_threshold(importing: object) -> None:
    """Raise the collector's first threshold tenfold until :func:`restore_gc_threshold`.

    Nearly all objects that an import creates stay alive, and collections take a fifth of the time
    in which 2,000 modules are imported. The collector is not paused, because module code may do
    anything.

    Args:
        importing: Object that imports. The threshold is restored when the last one has finished.
    """
    global _saved_threshold
    with _lock:
        if not _importing:
            _saved_threshold = gc.get_threshold()
            gc.set_threshold(_saved_threshold[0] * _THRESHOLD_FACTOR, *_saved_threshold[1:])
        _importing.add(id(importing))


def restore_gc_threshold(importing: object) -> None:
    """End an import, and restore the collector's threshold after the last one.

    A threshold that other code has changed in the meantime stays as it is.

    Args:
        importing: Object that was passed to :func:`raise_gc_threshold`.
    """
    with _lock:
        _importing.discard(id(importing))
        raised = (_saved_threshold[0] * _THRESHOLD_FACTOR, *_saved_threshold[1:])
        if not _importing and gc.get_threshold() == raised:
            gc.set_threshold(*_saved_threshold)


_OPAQUE_TYPES = (
    ModuleType,
    FrameType,
    TracebackType,
    GeneratorType,
    CoroutineType,
    AsyncGeneratorType,
    FunctionType,
    type,
)
"""Types whose referents lead to everything in the process. Functions and classes are entered only
in part."""


def find_instances(root: object, wanted: tuple[type[T], ...]) -> Iterator[T]:
    """Yield each object of some types that is reachable from an object, once.

    The types are those of objects that the collector tracks, as it does those of Python classes.
    The search uses the collector's referents, one level at a time. That runs no code of the objects
    and takes 0.2 microseconds per object; a model may have 20,000 parameters.
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
        opaque = {kind for kind in kinds if issubclass(kind, _OPAQUE_TYPES)}
        referents = gc.get_referents(*(each for each in fresh.values() if type(each) not in opaque))
        # Of a million strings, none refers to anything, and none is of a type that has attributes.
        reached = list(filter(gc.is_tracked, referents))
        if opaque:
            partial = (each for each in fresh.values() if type(each) in opaque)
            reached += (part for each in partial for part in _referents_of(each))


def _referents_of(opaque: object) -> tuple[object, ...]:
    """Return the parts of a function, or of a local class, which is packaged with its object."""
    if isinstance(opaque, FunctionType):
        return (opaque.__closure__, opaque.__defaults__, opaque.__kwdefaults__, opaque.__dict__)
    if isinstance(opaque, type) and "<locals>" in opaque.__qualname__:
        return (*vars(opaque).values(), *opaque.__bases__)
    return ()


_WORKERS_VARIABLE: Final = "MODPACK_WORKERS"
_CPU_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""A container's CPU limit (cgroup v2): quota and period in microseconds."""


def helpers_enabled() -> bool:
    """Return whether helpers may be started; ``MODPACK_WORKERS=0`` disables them."""
    return os.environ.get(_WORKERS_VARIABLE) != "0"


def usable_cores() -> int:
    """Return the number of CPU cores available to this process, as far as it is known."""
    cores = os.cpu_count() or 1
    with contextlib.suppress(AttributeError, OSError):  # not available on every system
        cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit ("max")
        quota, period = _CPU_QUOTA.read_text().split()
        cores = min(cores, max(int(quota) // int(period), 1))
    return cores


def start_if_possible(start: Callable[[], T], work: str) -> T | None:
    """Start a helper; return None and log the reason if that is not possible.

    Args:
        start: Function that starts the helper and creates its files.
        work: Description of the helper's work, such as ``"self-tests"``.
    """
    try:
        return start()
    except Exception as failure:  # audit hooks may raise anything
        _log.info("no helper process for %s (%s)", work, failure)
        return None


_PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """Let Linux end this forked process with its parent process, even in an endless loop.

    Args:
        parent: Process id of the parent, which may have ended already.
    """
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def handle_sigterm(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call a handler on SIGTERM during the block. Has no effect outside the main thread.

    Args:
        handler: Function that receives the number of the signal and the current frame.
    """
    import signal  # not needed by most loads

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, handler)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        if before is not None:  # C code installed the previous handler, which cannot be restored
            signal.signal(signal.SIGTERM, before)


class ThreadPool:
    """A lazily started thread pool for zlib and hashlib, which release the GIL.

    If no thread can be started (at a container's limit, or during interpreter shutdown), calls run
    immediately in the calling thread.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None
        self._can_start = True

    def run(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Call a function in a thread of the pool.

        Args:
            function: Function without side effects, because it may be called twice.
            arguments: Positional arguments of the function.
        """
        from concurrent.futures import Future

        if self._can_start:
            try:
                if self._pool is None:
                    from concurrent.futures import (
                        ThreadPoolExecutor as Pool,  # fails during interpreter shutdown
                    )

                    self._pool = Pool(self._count, thread_name_prefix="modpack-digest")
                return self._pool.submit(function, *arguments)
            except RuntimeError:  # a thread may still run the function
                self._can_start = False
        future: Future[T] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """End the threads and cancel calls that have not started."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def calling_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def stacklevel_outside_package() -> int:
    """Return the ``stacklevel`` for a warning that points to the code that called modpack."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_of_modpack(frame.f_globals.get("__name__", "")):
        depth, frame = depth + 1, frame.f_back
    return depth


def _is_of_modpack(module: str) -> bool:
    return is_within(module, "modpack") and not namespace_of(module)


def current_folder() -> Path | None:
    """Return the current folder; None if it was deleted, as the import system treats it."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def normalize_path(path: str) -> str:
    """Return a path as :mod:`pathlib` writes it. Fast for paths that already have that form.

    >>> normalize_path("lab/./models/")
    'lab/models'
    """
    return path if os.path.normpath(path) == path else str(Path(path))
