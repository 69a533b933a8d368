"""Progress of long work: what is being done and how far it is, once that has taken a second.

It appears on stderr. At a terminal and in a notebook it is one line that is gone when the work is
done. Commands show it, and so do :func:`modpack.save` and :func:`modpack.load`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final

from modpack.core.process import ProgressUnit, has_listener, report_progress_to

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from modpack.core.process import Phase

PATIENCE_SECONDS: Final = 1.0
"""How long nothing appears: most work is done by then."""
_BAR_WIDTH: Final = 24
_PER_SECOND: Final = 8
"""How often it is drawn at a terminal."""


class ProgressOutput(Enum):
    """Where progress appears; the value is the time in seconds from one line to the next."""

    TERMINAL = 1 / _PER_SECOND
    NOTEBOOK = 0.5
    LOG = 10.0
    """A file or a pipe: each line stays."""


@contextlib.contextmanager
def working(what: str, progress: bool | None = None) -> Iterator[None]:
    """Show what the block does, if it takes long.

    Nested blocks show nothing of their own.

    Args:
        what: what is done on the whole (``Packaging train.py:make``).
        progress: Whether to show it; None for where somebody sees it, a terminal or a notebook.
    """
    place = _place() if progress is not False and not has_listener() else None
    if place is None or (place is ProgressOutput.LOG and not progress):
        yield
        return
    if progress is None and _is_one_of_many():
        yield
        return
    display = _Display(what, place)
    try:
        with report_progress_to(display):
            yield
    finally:
        display.close()


def _place() -> ProgressOutput | None:
    """Where stderr leads; None if there is no stderr."""
    if sys.stderr is None or getattr(sys.stderr, "closed", False):
        return None
    if sys.stderr.isatty():
        return ProgressOutput.TERMINAL
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return ProgressOutput.LOG if getattr(shell, "kernel", None) is None else ProgressOutput.NOTEBOOK


def _is_one_of_many() -> bool:
    """Whether another process shows progress on the same stderr: this one's parent, or rank 0."""
    workers = sys.modules.get("multiprocessing.process")  # which every worker has imported
    is_worker = workers is not None and workers.parent_process() is not None
    return is_worker or os.environ.get("LOCAL_RANK", "0") != "0"


class _Display:
    """It hears of phases, and asks them how far they are.

    Args:
        what: what is done on the whole.
        place: where it appears.
    """

    def __init__(self, what: str, place: ProgressOutput) -> None:
        self._what = what
        self._place = place
        self._phases: list[Phase] = []
        self._started = time.monotonic()
        self._live: Live | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="modpack-progress", daemon=True)
        self._thread.start()

    def begin(self, phase: Phase) -> None:
        """A phase to show, instead of the one that it is a part of."""
        self._phases.append(phase)

    def end(self, phase: Phase) -> None:
        """The phase before it is shown again."""
        self._phases.remove(phase)

    def close(self) -> None:
        """Take the line away, and do not show it any more."""
        self._closed.set()
        with self._lock:
            if self._live is not None:
                self._live.stop()
        self._thread.join(timeout=1.0)

    def text(self) -> str:
        """The line as plain text."""
        from modpack.core.text import printable

        phase = self._phases[-1] if self._phases else None
        what = printable(self._what)
        told = (what, *(_parts(phase) if phase is not None else ()), self._elapsed())
        return "  ".join(filter(None, told))

    def line(self) -> RenderableType:
        """The line with a spinner, and a bar where the end is known."""
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        from modpack.core.text import printable

        phase = self._phases[-1] if self._phases else None
        line = Table.grid(padding=(0, 1))
        parts: list[RenderableType] = [Spinner("dots"), Text(printable(self._what))]
        if phase is not None:
            text, amount = _parts(phase)
            parts.append(Text(text, "dim"))
            if phase.total:
                parts.append(ProgressBar(phase.total, phase.done, width=_BAR_WIDTH))
            parts.append(Text(amount))
        parts.append(Text(self._elapsed(), "dim"))
        line.add_row(*parts)
        return line

    def _elapsed(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60}:{seconds % 60:02}"

    def _run(self) -> None:
        if self._closed.wait(PATIENCE_SECONDS):
            return
        if self._place is ProgressOutput.TERMINAL:
            self._show_live()
        else:
            self._write_lines()

    def _show_live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        with self._lock:
            if self._closed.is_set():
                return
            self._live = Live(
                console=Console(stderr=True, highlight=False),
                get_renderable=self.line,
                refresh_per_second=1 / self._place.value,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # what goes into a pipe must get there
            )
            self._live.start()

    def _write_lines(self) -> None:
        """Overwrite one line in a notebook; in a log, let each stay."""
        stream, width = sys.stderr, 0
        is_overwritten = self._place is ProgressOutput.NOTEBOOK
        while True:
            text = self.text()
            stream.write(f"\r{text.ljust(width)}" if is_overwritten else f"{text}\n")
            stream.flush()
            width = len(text)
            if self._closed.wait(self._place.value):
                break
        if is_overwritten:
            stream.write(f"\r{' ' * width}\r")
            stream.flush()


def _parts(phase: Phase) -> tuple[str, str]:
    """What is done in a phase, and how far it is, in its unit."""
    from modpack.core.text import human_size, printable

    text = printable(phase.text)
    if phase.unit is None or not phase.done:
        return text, ""
    if phase.unit is ProgressUnit.BYTES:
        done, total = human_size(phase.done), human_size(phase.total or 0)
    else:
        done, total = f"{phase.done:,}", f"{phase.total or 0:,} {phase.unit.value}"
    if phase.total:
        return text, f"{done} of {total}"
    return text, done if phase.unit is ProgressUnit.BYTES else f"{done} {phase.unit.value}"
