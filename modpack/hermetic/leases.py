"""Who uses what of the cache: each process says so in a file of its own that it keeps locked.

The lock goes when the last of the process and its forked children ends, however it ends; nobody has
to tidy up for that. What a lease names is neither pruned nor swept away.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from modpack.core.cachefolder import make_private, refuse_others
from modpack.errors import CacheError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where files in use cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

__all__ = ["exclusive", "hold", "in_use"]

_log = logging.getLogger(__name__)
_FOLDER = "leases"
_LOCK = "lock"
_SUFFIX = ".lease"


@dataclass(frozen=True)
class _Lease:
    """The lease of this process in one cache.

    Attributes:
        descriptor: of its file. Daemons close all that they inherit, and the number may then be of
            anything else.
        file: device and inode, which tell whether it still is of that.
        names: what the lease names.
    """

    descriptor: int
    file: tuple[int, int]
    names: set[str] = field(default_factory=set)

    def is_held(self) -> bool:
        """Whether its file is open, and still in its folder."""
        try:
            status = os.fstat(self.descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.file and status.st_nlink > 0


_held: dict[Path, _Lease] = {}
"""By cache."""


def hold(cache: Path, name: str) -> None:
    """Keep something in the cache for as long as this process lives.

    Where the cache cannot be written to, or has no locks, nothing happens: others cannot prune it
    there either.

    Args:
        cache: the cache folder.
        name: what is used: the digest of a tree, or the name of a folder in the making.
    """
    try:
        lease = _held.get(cache)
        if lease is not None and lease.is_held() and name in lease.names:
            return
        with _locked(cache, shared=True):
            wanted = {name}
            if lease is None or not lease.is_held():
                wanted |= lease.names if lease is not None else set()
                lease = _held[cache] = _new_lease(cache)
            _write(lease.descriptor, "".join(f"\n{each}\n" for each in wanted).encode())
        lease.names.update(wanted)
    except OSError as failure:
        _log.debug("the use of %s is not noted in %s: %s", name, cache, failure)


@contextlib.contextmanager
def exclusive(cache: Path) -> Iterator[None]:
    """Keep all others from taking something into use.

    Raises:
        CacheError: there are no locks where the cache is.
    """
    try:
        lock = _locked(cache, shared=False)
        lock.__enter__()
    except OSError as failure:
        raise CacheError(
            f"the cache {cache} cannot be locked ({failure.strerror or failure}), so that nobody "
            "can tell what of it is in use. When no program uses it, remove the folder by hand"
        ) from failure
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def in_use(cache: Path) -> set[str]:
    """What living processes use; to be called under :func:`exclusive`.

    Leases of processes that have ended are removed.

    Raises:
        CacheError: a process uses something, and could not say what, because the disk was full.
    """
    names: set[str] = set()
    for file in (cache / _FOLDER).glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            text = _held_text(file)
            if text is not None and not text.endswith("\n"):
                raise CacheError(
                    f"a process uses the cache {cache}, whose disk was too full to note what of it."
                    " Make room elsewhere, or end the programs that use packages, and try again"
                )
            names.update((text or "").split("\n"))
    return names - {""}


def _held_text(file: Path) -> str | None:
    """What a lease says; None if its process has ended, and it with it."""
    descriptor = os.open(file, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return file.read_text(encoding="utf-8", errors="replace")
    else:
        file.unlink()
        return None
    finally:
        os.close(descriptor)


def _write(descriptor: int, text: bytes) -> None:
    if os.write(descriptor, text) < len(text):
        raise OSError("only a part of it could be written")


def _new_lease(cache: Path) -> _Lease:
    file = cache / _FOLDER / f"{secrets.token_hex(8)}{_SUFFIX}"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    status = os.fstat(descriptor)  # stays open, and locked, as long as the process lives
    return _Lease(descriptor, (status.st_dev, status.st_ino))


@contextlib.contextmanager
def _locked(cache: Path, shared: bool) -> Iterator[None]:
    if fcntl is None:
        raise OSError("this platform has no flock")
    folder = cache / _FOLDER
    if not folder.is_dir():
        make_private(folder)
    refuse_others(folder)  # who could keep everybody waiting
    descriptor = os.open(f"{folder}{os.sep}{_LOCK}", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
