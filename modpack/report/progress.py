"""Progress of work that takes longer than a second: the current phase and its completion.

Progress is printed to stderr. In a terminal or a notebook it is one line that disappears at the
end. Commands, :func:`modpack.save` and :func:`modpack.load` show it.
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

from modpack.core.process import Phase, ProgressUnit, has_listener, report_progress_to
from modpack.core.text import human_size, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

PATIENCE_SECONDS: Final = 1.0
"""Delay before the first output. Most work is done by then."""
_BAR_WIDTH: Final = 24
_SHORT_BAR_WIDTH: Final = 8
"""Width next to a speed and the time left, so that the line fits into 80 columns."""
_PER_SECOND: Final = 8
"""Refresh rate in a terminal."""


class ProgressOutput(Enum):
    """Output of progress. The value is the interval between lines, in seconds."""

    TERMINAL = 1 / _PER_SECOND
    NOTEBOOK = 0.5
    LOG = 10.0
    """A file or a pipe, where each line stays."""


@contextlib.contextmanager
def working(task: str, progress: bool | None = None) -> Iterator[None]:
    """Show the progress of the block, if it takes long.

    Nested blocks show no progress of their own.

    Args:
        task: The task, such as ``Packaging train.py:make``.
        progress: Whether to show it; None for where somebody sees it, a terminal or a notebook.
    """
    output = _output() if progress is not False and not has_listener() else None
    if output is None or (output is ProgressOutput.LOG and not progress):
        yield
        return
    # Several bars on one terminal overwrite each other.
    if progress is None and _is_worker():
        yield
        return
    display = _Display(task, output)
    try:
        with report_progress_to(display):
            yield
    finally:
        display.close()


def _output() -> ProgressOutput | None:
    """Return the kind of stderr, or None without stderr."""
    if sys.stderr is None or getattr(sys.stderr, "closed", False):
        return None
    if sys.stderr.isatty():
        return ProgressOutput.TERMINAL
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return ProgressOutput.LOG if getattr(shell, "kernel", None) is None else ProgressOutput.NOTEBOOK


def _is_worker() -> bool:
    """Return whether another process shows progress on the same stderr: the parent or rank 0."""
    workers = sys.modules.get("multiprocessing.process")  # every worker has imported it
    is_worker = workers is not None and workers.parent_process() is not None
    return is_worker or os.environ.get("LOCAL_RANK", "0") != "0"


class _Display:
    """Shows the progress of phases.

    Args:
        task: The task.
        output: Output of the progress.
    """

    def __init__(self, task: str, output: ProgressOutput) -> None:
        self._task = task
        self._output = output
        self._phases: list[Phase] = []
        self._started = time.monotonic()
        self._live: Live | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        # A daemon: an exiting interpreter does not wait for it.
        self._thread = threading.Thread(target=self._run, name="modpack-progress", daemon=True)
        self._thread.start()

    def begin(self, phase: Phase) -> None:
        """Show a phase instead of the enclosing one."""
        self._phases.append(phase)

    def end(self, phase: Phase) -> None:
        """Show the enclosing phase again."""
        self._phases.remove(phase)

    def close(self) -> None:
        """Remove the line."""
        self._closed.set()
        with self._lock:
            if self._live is not None:
                self._live.stop()
        # A thread that writes to a blocked terminal must not keep the work from ending.
        self._thread.join(timeout=1.0)

    def text(self) -> str:
        """Return the line as plain text."""
        phase = self._phases[-1] if self._phases else None
        task = printable(self._task)
        parts = (task, *(_parts(phase) if phase is not None else ()), self._elapsed())
        return "  ".join(filter(None, parts))

    def line(self) -> RenderableType:
        """Return the line with a spinner, and a bar if the total is known."""
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        phase = self._phases[-1] if self._phases else None
        line = Table.grid(padding=(0, 1))
        parts: list[RenderableType] = [Spinner("dots"), Text(printable(self._task))]
        if phase is not None:
            text, amount = _parts(phase)
            parts.append(Text(text, "dim"))
            if phase.total:
                width = _SHORT_BAR_WIDTH if phase.unit is ProgressUnit.ROWS else _BAR_WIDTH
                parts.append(ProgressBar(phase.total, phase.done, width=width))
            parts.append(Text(amount))
        parts.append(Text(self._elapsed(), "dim"))
        line.add_row(*parts)
        return line

    def _elapsed(self) -> str:
        return _duration(time.monotonic() - self._started)

    def _run(self) -> None:
        if self._closed.wait(PATIENCE_SECONDS):
            return
        if self._output is ProgressOutput.TERMINAL:
            self._show_live()
        else:
            self._write_lines()

    def _show_live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        with self._lock:
            # The work may have ended between the end of the patience and here.
            if self._closed.is_set():
                return
            self._live = Live(
                console=Console(stderr=True, highlight=False),
                get_renderable=self.line,
                refresh_per_second=1 / self._output.value,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # a pipe must receive all output
            )
            self._live.start()

    def _write_lines(self) -> None:
        """Overwrite one line in a notebook, or append lines to a log."""
        stream, width = sys.stderr, 0
        is_overwritten = self._output is ProgressOutput.NOTEBOOK
        while True:
            text = self.text()
            stream.write(f"\r{text.ljust(width)}" if is_overwritten else f"{text}\n")
            stream.flush()
            width = len(text)
            if self._closed.wait(self._output.value):
                break
        # The next output of the cell must not continue the line.
        if is_overwritten:
            stream.write(f"\r{' ' * width}\r")
            stream.flush()


def _parts(phase: Phase) -> tuple[str, str]:
    """Return the text of a phase, and its completion."""
    text = printable(phase.text)
    if phase.unit is None or not phase.done:
        return text, ""
    if phase.unit is ProgressUnit.ROWS:
        total = f" of {phase.total:,}" if phase.total else ""
        return text, f"{phase.done:,}{total}  {_rate(phase)}"
    if phase.unit is ProgressUnit.BYTES:
        done, total = human_size(phase.done), human_size(phase.total or 0)
    else:
        done, total = f"{phase.done:,}", f"{phase.total or 0:,} {phase.unit.value}"
    if phase.total:
        return text, f"{done} of {total}"
    return text, done if phase.unit is ProgressUnit.BYTES else f"{done} {phase.unit.value}"


def _rate(phase: Phase) -> str:
    """Return the speed of a phase, and the time left if its end is known."""
    seconds = time.monotonic() - phase.started
    speed = phase.done / max(seconds, 0.001)
    text = f"{speed:,.{0 if speed >= 10 else 1}f} rows/s"
    if phase.total and speed:
        text += f"  {_duration(max(phase.total - phase.done, 0) / speed)} left"
    return text


def _duration(seconds: float) -> str:
    """Return minutes and seconds.

    >>> _duration(83.9)
    '1:23'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
