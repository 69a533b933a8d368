"""What jobs measure with: seconds, memory, and where the time went, if somebody asks."""

from __future__ import annotations

import contextlib
import cProfile
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_INTERPRETER = os.path.realpath(sys.executable)
_profile: cProfile.Profile | None = None
_profile_of_commands = ""


@contextlib.contextmanager
def profile_clocks(target: str) -> Iterator[None]:
    """Write a profile of what is clocked meanwhile, of this thread, or of commands.

    Args:
        target: the file to write.
    """
    global _profile, _profile_of_commands
    _profile, _profile_of_commands = cProfile.Profile(), target
    yield
    if not Path(target).exists():  # else a command has written its own
        _profile.dump_stats(target)


@contextlib.contextmanager
def clock(*, warming_up: bool = False) -> Iterator[Callable[[], float]]:
    """Yields what gives the seconds that the block took.

    Args:
        warming_up: it is no part of what is measured, and none of a profile.
    """
    taken = [0.0]
    watching = contextlib.nullcontext() if warming_up or _profile is None else _profile
    with watching:
        started = time.perf_counter()
        yield lambda: taken[0]
        taken[0] = time.perf_counter() - started


def run_python(*arguments: str) -> None:
    """An interpreter, from start to end; what it prints is lost."""
    profiling = ["-m", "cProfile", "-o", _profile_of_commands] if _profile_of_commands else []
    command = [sys.executable, *profiling, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cpu_of(code: str) -> float:
    """User and system seconds of an interpreter."""
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def seconds_of(code: str, after: str) -> float:
    """Seconds that code takes in an interpreter of its own, with its bytecode kept for the next.

    Args:
        code: what is measured.
        after: what runs before, and is not.
    """
    measured = f"{after}; from time import perf_counter; started = perf_counter(); {code}"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path("bytecode").absolute())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-W", "ignore", "-c", f"{measured}; print(perf_counter() - started)"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return float(done.stdout)


def read_through(file: str | Path) -> None:
    """Make sure that a file is in the page cache."""
    with Path(file).open("rb", buffering=0) as opened:
        buffer = bytearray(1 << 20)
        while opened.readinto(buffer):
            pass


def private_bytes() -> int:
    """What this process alone holds of the memory, and would if others ran the same libraries.

    What it has read of a library's file is private only until another process loads it.
    """
    with Path("/proc/self/smaps").open() as lines:  # line by line: a list would be memory as well
        return private_in(lines)


def private_in(lines: Iterable[str]) -> int:
    """The same, of what the kernel says about a process's mappings."""
    total, is_library = 0, False
    for line in lines:
        field, *rest = line.split()
        if not field.endswith(":"):
            is_library = rest[-1] == _INTERPRETER or ".so" in rest[-1]
        elif field == "Private_Dirty:" or (field == "Private_Clean:" and not is_library):
            total += int(rest[0]) * 1024
    return total


def peak_bytes_from_now() -> int:
    """Forgets the peak; returns what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most that was resident since :func:`peak_bytes_from_now`."""
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
