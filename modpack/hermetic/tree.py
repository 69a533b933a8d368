"""The cache: a package's code and resources as real files, written once.

A tree is named by a digest of what is in it, so it never changes once it is there, and packages
that differ in nothing but tensors have one in common. It is made beside its final place and renamed
into it; of two processes that make the same one, one wins and the other uses the winner's. A tree
that belongs to another user, or that others may write to, is not used: its code would run here. One
whose files were changed, or were lost with the machine's power, is made again.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from modpack.core.cachefolder import cache_folder, make_private, refuse_others, refuse_strangers
from modpack.core.progress import Unit, advance, phase
from modpack.errors import ArchiveError, CacheError
from modpack.hermetic.leases import exclusive, hold, in_use
from modpack.hermetic.treerecord import (
    FILES,
    boot,
    has_content,
    has_stamp,
    note_use,
    put_stamp,
    write_record,
)

__all__ = ["TEMPORARY", "sweep", "trees_folder", "unpack"]

_log = logging.getLogger(__name__)
_TREE_LAYOUT = "v2"
TEMPORARY = ".tmp"
"""The suffix of folders that are being made, or removed."""
_BYTECODE = "__pycache__"
"""Where Python looks for what it takes for a source, and may not compare with it."""
_lock = threading.Lock()
_temporary: dict[str, Path] = {}

_Read = Callable[[str], bytes]


@functools.lru_cache(maxsize=8)
def trees_folder(cache: Path) -> Path:
    """Where trees are in a cache folder."""
    return cache / "trees" / _TREE_LAYOUT


def unpack(digest: str, records: Mapping[str, int], read: _Read, name: str = "") -> Path:
    """Make sure that a package's tree exists, and return the folder with its files.

    Args:
        digest: of the records: names the tree.
        records: the package's records, with their sizes in bytes; names are relative and checked.
            Bytecode stays out: Python would run it in place of the source that everybody reads.
        read: returns a record's verified contents.
        name: the package file's name, for people who look into the cache.

    Raises:
        CacheError: neither the cache nor a temporary folder can be written.
    """
    if _BYTECODE in "\n".join(records).casefold():
        records = {each: size for each, size in records.items() if not _is_bytecode(each)}
    try:
        return _in_cache(cache_folder(), digest, records, read, name) / FILES
    except ArchiveError:  # the package's fault, not the cache's, and a RuntimeError as well
        raise
    except (OSError, RuntimeError) as failure:
        _log.warning(
            "the cache cannot be used (%s); unpacking into a temporary folder for this "
            "process. Set MODPACK_CACHE to a folder that you alone can write to, to avoid that",
            failure,
        )
        return _for_this_process(digest, records, read, failure)


def _is_bytecode(record: str) -> bool:
    return _BYTECODE in record.casefold().split("/")


def _in_cache(cache: Path, digest: str, records: Mapping[str, int], read: _Read, name: str) -> Path:
    folder = trees_folder(cache)
    tree = folder / digest
    if folder.is_dir():
        _refuse_strangers_above(folder)
        hold(cache, digest)  # before looking: from here on nobody prunes it
        was_there = tree.exists()  # if not, another process may finish it any moment
        if _is_right(tree, records, read):
            note_use(tree)
            return tree
        if was_there:
            _log.warning("files in %s were changed since they were unpacked: made again", tree)
    make_private(folder)
    _refuse_strangers_above(folder)
    hold(cache, digest)
    making = _temporary_place(cache, digest)
    making.mkdir(mode=0o700)
    try:
        _make(making, digest, records, read, name)
        _put(cache, making, tree, records, read)
        return tree
    finally:
        shutil.rmtree(making, ignore_errors=True)
        _sweep_if_possible(cache)


def _refuse_strangers_above(folder: Path) -> None:
    """Refuse trees that somebody else could have put there, or exchanged.

    Raises:
        OSError: it is not safe to use them.
    """
    refuse_strangers(folder.parent)
    refuse_others(folder)


def _temporary_place(cache: Path, digest: str) -> Path:
    """A place beside the trees that nobody sweeps away while this process lives."""
    place = trees_folder(cache) / f"{digest[:12]}.{secrets.token_hex(8)}{TEMPORARY}"
    hold(cache, place.name)
    return place


def _is_right(tree: Path, records: Mapping[str, int], read: _Read) -> bool:
    """Whether a tree holds what the package does; cleaners of caches may have taken files from it.

    Raises:
        OSError: it is not safe to use.
    """
    try:
        refuse_others(tree)
        if has_stamp(tree, tree.name, records):
            return True
        changed = [n for n in records if not has_content(tree / FILES / n, read(n))]
    except (FileNotFoundError, NotADirectoryError):
        return False
    if changed:
        _log.debug("%s in %s was changed", changed[0], tree)
        return False
    put_stamp(tree, tree.name, records)
    return True


def _make(making: Path, digest: str, records: Mapping[str, int], read: _Read, name: str) -> None:
    files = making / FILES
    files.mkdir(mode=0o700)
    with phase("unpacking code", Unit.RECORDS, len(records), is_major=True):
        write_record(making, name, _write(files, records, read))
    put_stamp(making, digest, records)


def _put(cache: Path, making: Path, tree: Path, records: Mapping[str, int], read: _Read) -> None:
    """Rename a finished tree into its place, unless another process was first."""
    try:
        making.rename(tree)
        return
    except OSError:
        if _is_right(tree, records, read):
            return
    aside = _temporary_place(cache, tree.name)
    with exclusive(cache):
        if tree.exists() and not _is_right(tree, records, read):
            tree.rename(aside)
        if not tree.exists():
            making.rename(tree)
    shutil.rmtree(aside, ignore_errors=True)


def sweep(cache: Path, used: set[str]) -> list[Path]:
    """What processes that have ended left half made; it is renamed by nobody and can be removed.

    To be called under :func:`.exclusive`.
    """
    left = trees_folder(cache).glob(f"*{TEMPORARY}")
    return [each for each in left if each.name not in used and not each.is_symlink()]


def _sweep_if_possible(cache: Path) -> None:
    try:
        with exclusive(cache):
            left = sweep(cache, in_use(cache))
    except CacheError as failure:
        _log.debug("leftovers stay: %s", failure)
        return
    for each in left:
        shutil.rmtree(each, ignore_errors=True)


def _for_this_process(digest: str, records: Mapping[str, int], read: _Read, why: Exception) -> Path:
    with _lock:
        known = _temporary.get(digest)
        if known is None or not _is_complete(known, records):
            try:
                _temporary[digest] = _temporary_tree(records, read)
            except OSError as failure:
                raise CacheError(
                    f"the package's code can be unpacked neither into the cache ({why}) "
                    f"nor into a temporary folder ({failure}). Set MODPACK_CACHE to a "
                    "folder with enough space that you alone can write to"
                ) from failure
        return _temporary[digest]


def _is_complete(tree: Path, records: Mapping[str, int]) -> bool:
    """Whether cleaners of temporary folders have left this process's tree alone."""
    try:
        return all((tree / name).stat().st_size == size for name, size in records.items())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _temporary_tree(records: Mapping[str, int], read: _Read) -> Path:
    tree = Path(tempfile.mkdtemp(prefix="modpack-"))
    try:
        _write(tree, records, read)
    except BaseException:
        shutil.rmtree(tree, ignore_errors=True)
        raise
    atexit.register(_remove, tree, os.getpid())
    return tree


def _remove(tree: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must leave its parent's files alone
        shutil.rmtree(tree, ignore_errors=True)


def _write(folder: Path, records: Mapping[str, int], read: _Read) -> dict[str, tuple[int, str]]:
    """Write the files; returns size and sha256 of what was written."""
    is_flushed = not boot()  # no later boot could be told from this one
    written = dict[str, tuple[int, str]]()
    for place in {record.rpartition("/")[0] for record in records}:
        (folder / place).mkdir(parents=True, exist_ok=True)
    for record in records:
        content = read(record)
        _write_file(f"{folder}{os.sep}{record}", content, is_flushed)
        written[record] = (len(content), hashlib.sha256(content).hexdigest())
        advance()
    return written


def _write_file(file: str, content: bytes, is_flushed: bool) -> None:
    """Write a new file, without the layers of :func:`open`: packages have thousands."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    descriptor = os.open(file, flags, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        if is_flushed:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
