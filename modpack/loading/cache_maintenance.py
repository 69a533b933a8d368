"""Listing, verifying, and pruning the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from modpack.errors import CacheError, ModpackError
from modpack.loading.cache import (
    CODE,
    FILES,
    TEMPORARY,
    USED,
    exclusive,
    in_use,
    read_record,
    sweep,
    trees_folder,
)
from modpack.loading.package_record import remove_stale_records

_SHORTEST_PREFIX = 4
_DIGEST = re.compile(r"[0-9a-f]{4,64}")
_SCAN_FOLDERS = (re.compile(r"v\d+"), re.compile(r"[0-9a-f]{1,2}"))
_SCAN = re.compile(r"[0-9a-f]+|tmp\w*\.tmp")


@dataclass(frozen=True)
class CachedTree:
    """A cache entry: the unpacked files of one package, or of several with the same files.

    Attributes:
        digest: Digest of the contents.
        name: Name of the package file that it was unpacked from; None if unknown.
        files: Number of files, including compiled code.
        size_bytes: Total size of the files.
        used: Time of the last use, in seconds since 1970.
        folder: Its path.
    """

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
        removed: The removed trees.
        kept: Trees that were selected but are in use.
        scans: The removed scans.
        leftovers: Number of removed temporary folders of ended processes.
    """

    removed: tuple[CachedTree, ...] = ()
    kept: tuple[CachedTree, ...] = ()
    scans: Scans = Scans()
    leftovers: int = 0

    @property
    def freed_bytes(self) -> int:
        """Total size of the removed trees and scans."""
        return sum(tree.size_bytes for tree in self.removed) + self.scans.size_bytes


def list_trees(cache: Path) -> tuple[CachedTree, ...]:
    """Return all cache entries, most recently used first.

    Args:
        cache: The cache folder, which may not exist.
    """
    found = (_tree(each) for each in _tree_folders(cache))
    trees = [tree for tree in found if tree is not None]
    return tuple(sorted(trees, key=lambda tree: (-tree.used, tree.digest)))


def list_scans(cache: Path) -> Scans:
    """Return number and size of the cached scans."""
    sizes = [size for _, size, _ in _scan_files(cache)]
    return Scans(len(sizes), sum(sizes))


def damaged_files(tree: CachedTree) -> tuple[str, ...]:
    """Return the files of a tree that were modified; the record itself if it is unreadable."""
    record = read_record(tree.folder)
    if record is None:
        return ("tree.json",)
    folder = tree.folder / FILES
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
    """Remove selected trees, except those that a running process uses.

    Temporary folders of ended processes are always removed, and so are records of packages that no
    longer exist.

    Args:
        cache: The cache folder, which may not exist.
        digests: Digests of trees, or their prefixes.
        older_than: Remove trees that were not used for this many seconds.
        max_size: Then remove the least recently used trees until the rest fits, in bytes.
        everything: Whether to remove all trees.

    Raises:
        CacheError: If the cache cannot be locked, or a tree cannot be removed.
        ModpackError: If a prefix matches no tree, or several.
    """
    if not cache.is_dir():
        return Pruned()
    trees = list_trees(cache)
    named = {tree.digest for each in digests for tree in [_named(trees, each)]}
    limit = time.time() - older_than if older_than is not None else None
    with exclusive(cache):
        used = in_use(cache)
        old = {t.digest for t in trees if everything or (limit is not None and t.used < limit)}
        wanted = named | old
        wanted |= _too_many(cache, trees, wanted | used, wanted - used, max_size)
        going = [tree for tree in trees if tree.digest in wanted]
        removed = tuple(tree for tree in going if tree.digest not in used and _put_aside(tree))
        left = sweep(cache, used)
    for each in left:
        shutil.rmtree(each, ignore_errors=True)
    remove_stale_records(cache)
    kept = tuple(tree for tree in going if tree not in removed)
    scans = _prune_scans(cache, time.time() if everything else limit)
    return Pruned(removed, kept, scans, len(left) - len(removed))


def _too_many(
    cache: Path,
    trees: Iterable[CachedTree],
    settled: set[str],
    going: set[str],
    max_size: int | None,
) -> set[str]:
    """Return more trees to remove until the cache fits into ``max_size``."""
    if max_size is None:
        return set()
    trees = list(trees)
    total = sum(t.size_bytes for t in trees if t.digest not in going)
    total += list_scans(cache).size_bytes
    found: set[str] = set()
    for tree in reversed(trees):  # the least recently used is last
        if total > max_size and tree.digest not in settled:
            found.add(tree.digest)
            total -= tree.size_bytes
    return found


def _put_aside(tree: CachedTree) -> bool:
    """Rename a tree under the lock; its files are removed after the lock is released."""
    aside = tree.folder.with_name(f"{tree.digest[:12]}.{os.urandom(8).hex()}{TEMPORARY}")
    try:
        tree.folder.rename(aside)
    except OSError as failure:
        reason = failure.strerror or failure
        raise CacheError(f"{tree.folder}: cannot remove the cache entry: {reason}") from failure
    return True


def _prune_scans(cache: Path, before: float | None) -> Scans:
    removed = []
    for file, size, changed in _scan_files(cache) if before is not None else ():
        if before is not None and changed < before:
            with contextlib.suppress(OSError):
                Path(file).unlink()
                removed.append(size)
    return Scans(len(removed), sum(removed))


def _named(trees: Iterable[CachedTree], digest: str) -> CachedTree:
    found = [tree for tree in trees if tree.digest.startswith(digest)]
    if len(found) == 1 and len(digest) >= _SHORTEST_PREFIX:
        return found[0]
    if not found:
        raise ModpackError(
            f"no cached package has a digest that begins with {digest!r}",
            hint="List the digests with: modpack cache list",
        )
    digests = ", ".join(tree.digest[:16] for tree in found[:3])
    raise ModpackError(
        f"the digest {digest!r} is ambiguous or too short: it matches {digests}",
        hint=f"Pass at least {_SHORTEST_PREFIX} characters that identify one package.",
    )


def _tree(folder: Path) -> CachedTree | None:
    try:
        inside = (_files_below(folder / each) for each in (FILES, CODE))
        files = [(size, name) for name, size, _ in chain.from_iterable(inside)]
        record = read_record(folder)
        name = record.name if record is not None else None
        size = sum(size for size, _ in files)
        return CachedTree(folder.name, name or None, len(files), size, _last_use(folder), folder)
    except FileNotFoundError:  # another process removes it
        return None


def _last_use(tree: Path) -> float:
    """Return the time of the last use, in seconds since 1970; a time in the future becomes now."""
    try:
        used = (tree / USED).stat().st_mtime
    except OSError:
        used = tree.stat().st_mtime
    return max(0.0, min(used, time.time()))


def _tree_folders(cache: Path) -> list[Path]:
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
