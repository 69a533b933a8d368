"""Listing, verifying, and pruning the cache.

An *entry* is a folder that is used and removed as a whole: the unpacked files of a package, or a
virtual environment with a package's requirements.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

from modpack.errors import CacheError, ModpackError
from modpack.loading.cache import (
    CODE,
    ENVIRONMENT,
    FILES,
    TEMPORARY,
    USED,
    environments_folder,
    exclusive,
    in_use,
    read_record,
    sweep,
    trees_folder,
)
from modpack.loading.package_record import remove_stale_records

EntryKind: TypeAlias = Literal["package", "environment"]

_SHORTEST_PREFIX = 4
_DIGEST = re.compile(r"[0-9a-f]{4,64}")
_SCAN_FOLDERS = (re.compile(r"v\d+"), re.compile(r"[0-9a-f]{1,2}"))
_SCAN = re.compile(r"[0-9a-f]+|tmp\w*\.tmp")


@dataclass(frozen=True)
class CacheEntry:
    """The unpacked files of one package, or of several with the same files, or an environment.

    Attributes:
        kind: Its kind.
        digest: Digest of the files, or of the requirements of an environment.
        name: Name of the package file that it was unpacked from; None if unknown.
        files: Number of files, including compiled code.
        size_bytes: Total size of the files.
        used: Time of the last use, in seconds since 1970.
        folder: Its path.
    """

    kind: EntryKind
    digest: str
    name: str | None
    files: int
    size_bytes: int
    used: float
    folder: Path


@dataclass(frozen=True)
class Scans:
    """Cached results of scanning sources for imports, reused by later exports.

    Attributes:
        files: Number of files.
        size_bytes: Total size of the files.
    """

    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class Pruned:
    """The result of :func:`prune`.

    Attributes:
        removed: The removed entries.
        kept: Entries that were selected but are in use.
        scans: The removed scans.
        leftovers: Number of removed temporary folders and environments of ended processes.
    """

    removed: tuple[CacheEntry, ...] = ()
    kept: tuple[CacheEntry, ...] = ()
    scans: Scans = Scans()
    leftovers: int = 0

    @property
    def freed_bytes(self) -> int:
        """Total size of the removed entries and scans."""
        return sum(entry.size_bytes for entry in self.removed) + self.scans.size_bytes


def list_entries(cache: Path) -> tuple[CacheEntry, ...]:
    """Return the packages and environments in the cache, most recently used first.

    Args:
        cache: The cache folder, which may not exist.
    """
    return _latest_first((*_packages(cache), *map(_environment, _environments(cache))))


def list_packages(cache: Path) -> tuple[CacheEntry, ...]:
    """Return the packages in the cache, most recently used first.

    The files of environments, which are many, are not listed.

    Args:
        cache: The cache folder, which may not exist.
    """
    return _latest_first(_packages(cache))


def _latest_first(found: Iterable[CacheEntry | None]) -> tuple[CacheEntry, ...]:
    entries = [entry for entry in found if entry is not None]
    return tuple(sorted(entries, key=lambda entry: (-entry.used, entry.digest)))


def _packages(cache: Path) -> Iterator[CacheEntry | None]:
    return map(_package, _package_folders(cache))


def list_scans(cache: Path) -> Scans:
    """Return number and size of the cached scans."""
    sizes = [size for _, size, _ in _scan_files(cache)]
    return Scans(len(sizes), sum(sizes))


def damaged_files(package: CacheEntry) -> tuple[str, ...]:
    """Return the files of a package that were modified; the record itself if it is unreadable."""
    record = read_record(package.folder)
    if record is None:
        return ("tree.json",)
    folder = package.folder / FILES
    return tuple(n for n, (size, sha) in record.files.items() if not _is(folder / n, size, sha))


def _is(file: Path, size: int, sha256: str) -> bool:
    try:
        content = file.read_bytes()
    except OSError:
        return False
    return len(content) == size and hashlib.sha256(content).hexdigest() == sha256


def prune(
    cache: Path,
    *,
    digests: Iterable[str] = (),
    older_than: float | None = None,
    max_size: int | None = None,
    everything: bool = False,
) -> Pruned:
    """Remove selected entries, except those that a running process uses.

    Incomplete entries of ended processes are always removed, and so are records of packages that no
    longer exist.

    Args:
        cache: The cache folder, which may not exist.
        digests: Digests of entries, or their prefixes.
        older_than: Remove entries that were not used for this many seconds.
        max_size: Then remove the least recently used entries until the rest fits, in bytes.
        everything: Whether to remove all entries.

    Raises:
        CacheError: If the cache cannot be locked, or an entry cannot be removed.
        ModpackError: If a prefix matches no entry, or several.
    """
    if not cache.is_dir():
        return Pruned()
    entries = list_entries(cache)
    named = {_named(entries, each).digest for each in digests}
    limit = time.time() - older_than if older_than is not None else None
    with exclusive(cache):
        used = in_use(cache)
        old = {e.digest for e in entries if everything or (limit is not None and e.used < limit)}
        wanted = named | old
        wanted |= _too_many(cache, entries, wanted | used, wanted - used, max_size)
        going = [entry for entry in entries if entry.digest in wanted]
        removed = tuple(entry for entry in going if entry.digest not in used and _put_aside(entry))
        left = sweep(cache, used)
    for each in left:
        shutil.rmtree(each, ignore_errors=True)
    remove_stale_records(cache)
    kept = tuple(entry for entry in going if entry not in removed)
    scans = _prune_scans(cache, time.time() if everything else limit)
    return Pruned(removed, kept, scans, len(left) - len(removed))


def _too_many(
    cache: Path,
    entries: Sequence[CacheEntry],
    settled: set[str],
    going: set[str],
    max_size: int | None,
) -> set[str]:
    """Return more entries to remove until the cache fits into ``max_size``."""
    if max_size is None:
        return set()
    total = sum(entry.size_bytes for entry in entries if entry.digest not in going)
    total += list_scans(cache).size_bytes
    found: set[str] = set()
    for entry in reversed(entries):  # the least recently used is last
        if total > max_size and entry.digest not in settled:
            found.add(entry.digest)
            total -= entry.size_bytes
    return found


def _put_aside(entry: CacheEntry) -> bool:
    """Rename an entry under the lock; its files are removed after the lock is released."""
    aside = entry.folder.with_name(f"{entry.digest[:12]}.{os.urandom(8).hex()}{TEMPORARY}")
    try:
        entry.folder.rename(aside)
    except OSError as failure:
        reason = failure.strerror or failure
        raise CacheError(f"{entry.folder}: cannot remove the cache entry: {reason}") from failure
    return True


def _prune_scans(cache: Path, before: float | None) -> Scans:
    removed = []
    for file, size, changed in _scan_files(cache) if before is not None else ():
        if before is not None and changed < before:
            with contextlib.suppress(OSError):
                Path(file).unlink()
                removed.append(size)
    return Scans(len(removed), sum(removed))


def _named(entries: Iterable[CacheEntry], digest: str) -> CacheEntry:
    found = [entry for entry in entries if entry.digest.startswith(digest)]
    if len(found) == 1 and len(digest) >= _SHORTEST_PREFIX:
        return found[0]
    if not found:
        raise ModpackError(
            f"no cache entry has a digest that begins with {digest!r}",
            hint="List the digests with: modpack cache list",
        )
    digests = ", ".join(entry.digest[:16] for entry in found[:3])
    raise ModpackError(
        f"the digest {digest!r} is ambiguous or too short: it matches {digests}",
        hint=f"Pass at least {_SHORTEST_PREFIX} characters that identify one entry.",
    )


def _package(folder: Path) -> CacheEntry | None:
    record = read_record(folder)
    name = record.name if record is not None else None
    files = chain.from_iterable(_files_below(folder / each) for each in (FILES, CODE))
    return _entry("package", folder, name or None, files, USED)


def _environment(folder: Path) -> CacheEntry | None:
    return _entry("environment", folder, None, _files_below(folder), ENVIRONMENT)


def _entry(
    kind: EntryKind,
    folder: Path,
    name: str | None,
    files: Iterable[tuple[str, int, float]],
    marker: str,
) -> CacheEntry | None:
    """Return an entry, or None if another process removes it.

    Args:
        kind: Its kind.
        folder: Its folder.
        name: Name of its package.
        files: Its files.
        marker: The file whose modification time is the time of the last use.
    """
    sizes = [size for _, size, _ in files]
    try:
        used = _last_use(folder, marker)
    except FileNotFoundError:
        return None
    return CacheEntry(kind, folder.name, name, len(sizes), sum(sizes), used, folder)


def _last_use(folder: Path, marker: str) -> float:
    """Return the time of the last use, in seconds since 1970; a time in the future becomes now."""
    try:
        used = (folder / marker).stat().st_mtime
    except OSError:
        used = folder.stat().st_mtime
    return max(0.0, min(used, time.time()))


def _environments(cache: Path) -> list[Path]:
    """Return the folders of complete environments."""
    found = _entries(environments_folder(cache))
    return [e for e in found if _DIGEST.fullmatch(e.name) and (e / ENVIRONMENT).is_file()]


def _package_folders(cache: Path) -> list[Path]:
    folder = trees_folder(cache)
    if folder.parent.is_symlink():
        return []
    return [each for each in _entries(folder) if _DIGEST.fullmatch(each.name)]


def _scan_files(cache: Path) -> Iterator[tuple[str, int, float]]:
    """Yield path, size in bytes, and modification time of each scan; ignore other files."""
    folders = [cache / "scans"]
    for pattern in _SCAN_FOLDERS:
        inner = (each for folder in folders for each in _entries(folder))
        folders = [each for each in inner if pattern.fullmatch(each.name)]
    for folder in folders:
        for file, size, changed in _files_below(folder):
            if _SCAN.fullmatch(os.path.basename(file)):  # noqa: PTH119 - there are many
                yield file, size, changed


def _entries(folder: Path) -> list[Path]:
    """Return the folders in a folder, without symlinks, which could lead out of the cache."""
    if folder.is_symlink():
        return []
    try:
        return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files_below(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Yield path, size in bytes, and modification time of each file."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - there are many
                yield os.path.join(parent, name), status.st_size, status.st_mtime  # noqa: PTH118
