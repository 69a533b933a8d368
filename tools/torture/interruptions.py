"""Interrupted exports: killed, on a full disk, over a file size limit, by an exception.

Afterwards the target must be the complete old or new package, and the error must be one of
modpack's that names the cause. Each export runs in a forked child.
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
from packages import Tally, model, verified_digest, write

from modpack.errors import TargetError


@dataclass
class _Scene:
    """A folder with an old package, and the model of the new one."""

    folder: Path
    model: torch.nn.Module
    digests: tuple[str, str] = ("", "")

    @property
    def target(self) -> Path:
        return self.folder / "net.modpack"

    def prepare(self) -> None:
        """Write the old package, and record the digests of both."""
        write(self.target, self.model)
        new = verified_digest(self.target)
        write(self.target, model(0))
        self.digests = (verified_digest(self.target), new)
        shutil.copy(self.target, self._backup)

    def reset(self) -> None:
        """Restore the old package if it was replaced."""
        if verified_digest(self.target) != self.digests[0]:
            shutil.copy(self._backup, self.target)

    def leftovers(self) -> list[str]:
        """Return the names of all files next to the target."""
        return sorted(each.name for each in self.folder.iterdir() if each != self.target)

    def check(self, tally: Tally, attack: str) -> None:
        """Check the target after an interrupted export."""
        tally.tries += 1
        try:
            digest = verified_digest(self.target)
        except (OSError, AssertionError) as error:
            tally.wrong.append(f"{attack}: {error}")
            return
        if digest in self.digests:
            tally.counts["new" if self.digests.index(digest) else "old"] += 1
        else:
            tally.wrong.append(f"{attack}: neither the old nor the new package")

    @property
    def _backup(self) -> Path:
        return Path(tempfile.gettempdir()) / f"torture-{os.getpid()}.modpack"


def kill_exports(times: int, seed: int = 0) -> Tally:
    """Send SIGKILL at a random moment, up to shortly after the end of an export."""
    tally = Tally()
    chosen = random.Random(seed)
    with _scene() as scene:
        usual = _seconds(scene)
        for _ in range(times):
            scene.reset()
            child = Child(lambda: write(scene.target, scene.model))
            time.sleep(chosen.uniform(0, usual * 1.2))
            child.kill()
            child.wait()
            scene.check(tally, "SIGKILL")
        scene.reset()
        write(scene.target, scene.model)
        if files := scene.leftovers():
            tally.wrong.append(f"the next export does not remove {files} of killed exports")
    return tally


def interrupt_exports(times: int, seed: int = 0) -> Tally:
    """Raise a KeyboardInterrupt at a random moment of an export."""
    tally = Tally()
    chosen = random.Random(seed)
    with _scene() as scene:
        usual = _seconds(scene)
        for _ in range(times):
            scene.reset()
            after = chosen.uniform(0.001, usual)  # not in the child: all would draw the same number
            status = _export_status(lambda after=after: _write_with_alarm(scene, after))
            scene.check(tally, "exception")
            if files := scene.leftovers():
                tally.wrong.append(f"an exception leaves {files}")
            if status not in ("written", "KeyboardInterrupt"):
                tally.wrong.append(f"an interrupt raises {status}")
    return tally


def limit_file_sizes(times: int) -> Tally:
    """Export with a limit on file sizes (EFBIG), from one byte to almost the whole package."""
    tally = Tally()
    with _scene() as scene:
        for limit in _sizes(scene, times):
            scene.reset()

            def limited(limit: int = limit) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                write(scene.target, scene.model)

            status = _export_status(limited)
            scene.check(tally, "EFBIG")
            _check_cause(tally, status, errno.EFBIG, scene)
    return tally


def fill_disks(times: int) -> Tally | None:
    """Export to small disks (ENOSPC). Returns None if this user cannot mount one."""
    tally = Tally()
    with _scene() as scene, tempfile.TemporaryDirectory() as folder:
        old = scene.target.stat().st_size
        for free in _sizes(scene, times):
            with _mounted(Path(folder), old + free + (64 << 10)) as is_mounted:
                if not is_mounted:
                    return None
                shutil.copy(scene.target, folder)
                on_disk = _Scene(Path(folder), scene.model, scene.digests)
                status = _export_status(lambda s=on_disk: write(s.target, s.model))
                on_disk.check(tally, "ENOSPC")
                _check_cause(tally, status, errno.ENOSPC, on_disk)
    return tally


def _check_cause(tally: Tally, status: str, number: int, scene: _Scene) -> None:
    cause, name = os.strerror(number), errno.errorcode[number]
    if status != "written" and not (status.startswith("TargetError") and cause in status):
        tally.wrong.append(f"{name}: the error is {status!r}")
    if files := scene.leftovers():
        tally.wrong.append(f"{name} leaves {files}")


def _write_with_alarm(scene: _Scene, after: float) -> None:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, after)
    write(scene.target, scene.model)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _sizes(scene: _Scene, times: int) -> list[int]:
    size = scene.target.stat().st_size
    return [1 + size * step // times for step in range(times)]


def _seconds(scene: _Scene) -> float:
    start = time.perf_counter()
    Child(lambda: write(scene.target, scene.model)).wait()
    return time.perf_counter() - start


@contextmanager
def _scene() -> Iterator[_Scene]:
    with tempfile.TemporaryDirectory() as folder:
        scene = _Scene(Path(folder), model(1))
        scene.prepare()
        try:
            yield scene
        finally:
            scene._backup.unlink()


@contextmanager
def _mounted(folder: Path, size: int) -> Iterator[bool]:
    """Mount a disk of some bytes, and yield whether that succeeded."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)


def _export_status(work: Callable[[], None]) -> str:
    """Run an export in a child; return ``"written"`` or its error."""
    result = Child(work).wait()
    if result.is_success:
        return "written"
    is_ours = result.error == TargetError.__name__
    return f"{result.error}: {result.text}" if is_ours else result.error or "killed"
