"""Exports that are interrupted: killed, out of space, over a limit, by an exception.

Whatever happens, the target must afterwards be the old package or the new one, whole, and the
error must be modpack's own and name the cause. Each export runs in a forked child of its own.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from children import Child
from packages import Tally, digest_of_whole, model, write

from modpack.errors import TargetError


@dataclass
class _Scene:
    """A folder with an old package in it, and the model that is to replace it."""

    folder: Path
    made: torch.nn.Module
    digests: tuple[str, str] = ("", "")

    @property
    def target(self) -> Path:
        return self.folder / "net.modpack"

    def prepare(self) -> None:
        """Put the old package in its place; learn both digests."""
        write(self.target, self.made)
        new = digest_of_whole(self.target)
        write(self.target, model(0))
        self.digests = (digest_of_whole(self.target), new)
        shutil.copy(self.target, self._kept)

    def reset(self) -> None:
        """The old package again, if it is gone."""
        if digest_of_whole(self.target) != self.digests[0]:
            shutil.copy(self._kept, self.target)

    def leftovers(self) -> list[str]:
        """What lies beside the target."""
        return sorted(each.name for each in self.folder.iterdir() if each != self.target)

    def count(self, found: Tally, what: str) -> None:
        """Look at the target after an export was interrupted."""
        found.tries += 1
        try:
            digest = digest_of_whole(self.target)
        except (OSError, AssertionError) as failure:
            found.wrong.append(f"{what}: {failure}")
            return
        if digest in self.digests:
            found.counts["new" if self.digests.index(digest) else "old"] += 1
        else:
            found.wrong.append(f"{what}: a package that nobody wrote")

    @property
    def _kept(self) -> Path:
        return Path(tempfile.gettempdir()) / f"torture-{os.getpid()}.modpack"


def kills(times: int, seed: int = 0) -> Tally:
    """SIGKILL at random moments of an export, from its first instruction to after its last."""
    found = Tally()
    chosen = random.Random(seed)
    with _scene() as scene:
        usual = _seconds(scene)
        for _ in range(times):
            scene.reset()
            child = Child(lambda: write(scene.target, scene.made))
            time.sleep(chosen.uniform(0, usual * 1.2))
            child.kill()
            child.wait()
            scene.count(found, "SIGKILL")
        scene.reset()
        write(scene.target, scene.made)
        if left := scene.leftovers():
            found.wrong.append(f"the next export left {left} of killed ones")
    return found


def exceptions(times: int, seed: int = 0) -> Tally:
    """An exception out of a random call of an export, as from Ctrl-C."""
    found = Tally()
    chosen = random.Random(seed)
    with _scene() as scene:
        usual = _seconds(scene)
        for _ in range(times):
            scene.reset()
            after = chosen.uniform(0.001, usual)  # drawn here: children draw the same
            status = _told(lambda after=after: _with_alarm(scene, after))
            scene.count(found, "exception")
            if left := scene.leftovers():
                found.wrong.append(f"an exception left {left}")
            if status not in ("written", "KeyboardInterrupt"):
                found.wrong.append(f"an interrupt became {status}")
    return found


def file_size_limits(times: int) -> Tally:
    """A limit on the size of files (EFBIG), from nearly nothing to nearly enough."""
    found = Tally()
    with _scene() as scene:
        for limit in _sizes(scene, times):
            scene.reset()

            def limited(limit: int = limit) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                write(scene.target, scene.made)

            status = _told(limited)
            scene.count(found, "EFBIG")
            _require_cause(found, status, errno.EFBIG, scene)
    return found


def full_disks(times: int) -> Tally | None:
    """A disk that gets full (ENOSPC); None where this user may not mount a small one."""
    found = Tally()
    with _scene() as scene, tempfile.TemporaryDirectory() as place:
        old = scene.target.stat().st_size
        for room in _sizes(scene, times):
            with _mounted(Path(place), old + room + (64 << 10)) as mounted:
                if not mounted:
                    return None
                shutil.copy(scene.target, place)
                here = _Scene(Path(place), scene.made, scene.digests)
                status = _told(lambda here=here: write(here.target, here.made))
                here.count(found, "ENOSPC")
                _require_cause(found, status, errno.ENOSPC, here)
    return found


def _require_cause(found: Tally, status: str, number: int, scene: _Scene) -> None:
    cause, what = os.strerror(number), errno.errorcode[number]
    if status != "written" and not (status.startswith("TargetError") and cause in status):
        found.wrong.append(f"{what}: the error was {status!r}")
    if left := scene.leftovers():
        found.wrong.append(f"{what} left {left}")


def _with_alarm(scene: _Scene, after: float) -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, after)
    write(scene.target, scene.made)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _sizes(scene: _Scene, times: int) -> list[int]:
    whole = scene.target.stat().st_size
    return [1 + whole * step // times for step in range(times)]


def _seconds(scene: _Scene) -> float:
    start = time.perf_counter()
    Child(lambda: write(scene.target, scene.made)).wait()
    return time.perf_counter() - start


@contextmanager
def _scene() -> Iterator[_Scene]:
    with tempfile.TemporaryDirectory() as folder:
        scene = _Scene(Path(folder), model(1))
        scene.prepare()
        try:
            yield scene
        finally:
            scene._kept.unlink()


@contextmanager
def _mounted(place: Path, size: int) -> Iterator[bool]:
    """A disk of some bytes; tells whether there is one."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(place)], check=True)


def _told(work: Callable[[], None]) -> str:
    """Do something in a child; ``written``, or the error's class, and the text of modpack's own."""
    told = Child(work).wait()
    if told.has_ended_well:
        return "written"
    is_ours = told.error == TargetError.__name__
    return f"{told.error}: {told.text}" if is_ours else told.error or "killed"
