"""The cache: a package's code and resources as real files, written once.

A cache entry is a directory tree (``tree`` in this code), named by a digest of its contents.
Packages that differ only in tensors share an entry. An entry is created next to its final path and
renamed; if two processes create the same entry, the first rename wins and both use it. An entry
that belongs to another user, or that others can write to, is not used, because loading a package
executes its files. An entry whose files were changed, or lost in a power failure, is re-created.

A *stamp* is a digest of an entry's digest and the inodes, sizes, and times of all its files. The
kernel updates the change time of an inode (ctime) on every change, and programs cannot set it. A
stamp is valid for one boot of the machine: after a power failure, a file can lack data that was
not flushed, although its inode looks complete. If there is no valid stamp, the files themselves
are compared with the package.

A *lease* is a locked file in which a process lists the entries that it uses. The kernel releases
the lock when the process and its last forked child have ended, for any reason. Entries in a lease
are not removed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from modpack.core.cache_dir import (
    cache_folder,
    make_private,
    replace_file,
    require_trusted_folder,
    require_trusted_path,
)
from modpack.core.codec import from_json
from modpack.core.process import ProgressUnit, advance, phase
from modpack.errors import ArchiveError, CacheError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where files in use cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

FILES = "files"
"""The folder of a tree with the package's files."""
CODE = "code"
"""The folder of a tree with compiled code."""
USED = "used"
"""A file of a tree whose modification time is the time of the tree's last use."""
ENVIRONMENT = "modpack-environment.json"
"""A file of a virtual environment that is written last, and touched on each use."""
TEMPORARY = ".tmp"
"""Suffix of folders that are being created or removed."""
PARTIAL = ".part"
"""Suffix of folders with a download, which a later process continues if it was interrupted."""
_KEPT = "package.modpack"
"""The file of a tree that contains a downloaded package."""
_PARTIAL_SECONDS = 86_400.0
"""Age of interrupted downloads that are removed."""
_RECORD = "tree.json"
_STAMPS = "stamps"
_LEASES = "leases"
_LEASE = ".lease"
_BYTECODE = "__pycache__"
"""Python would run bytecode from here instead of the source, without comparing the two."""

_OTHER_FOLDER = "Set MODPACK_CACHE_DIR to a folder with enough space that only you can write to."

_log = logging.getLogger(__name__)
_Read = Callable[[str], bytes]


class TreeRecord(NamedTuple):
    """The contents of an entry when it was created.

    Attributes:
        name: Name of the package file.
        files: Size in bytes and SHA-256 of each file, by its path relative to the entry.
    """

    name: str
    files: Mapping[str, tuple[int, str]]


def read_record(tree: Path) -> TreeRecord | None:
    """Return the record of an entry, or None if the record is missing or unreadable."""
    try:
        return from_json(TreeRecord, json.loads((tree / _RECORD).read_bytes()), "the record")
    except (OSError, ValueError, TypeError, RecursionError):
        return None


@functools.cache
def boot() -> str:
    """Return an identifier of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def put_stamp(tree: Path, digest: str, names: Iterable[str]) -> None:
    """Record that a tree's files are intact.

    Args:
        tree: The tree.
        digest: Digest of its contents. The folder may still have a temporary name.
        names: Its files.
    """
    with contextlib.suppress(OSError):  # the cache may be read-only
        folder = tree / _STAMPS
        folder.mkdir(mode=0o700, exist_ok=True)
        replace_file(folder / (boot() or "any"), _stamp(tree, digest, names).encode("ascii"))


def has_stamp(tree: Path, digest: str, names: Iterable[str]) -> bool:
    """Return whether a tree's files are unchanged since :func:`put_stamp`.

    Raises:
        FileNotFoundError: If the tree or one of its files is missing.
        NotADirectoryError: If a file is in the place of a folder.
    """
    # Outside of the try: a missing file is a defect of the tree, and not of its stamp.
    now = _stamp(tree, digest, names)
    try:
        return (tree / _STAMPS / (boot() or "any")).read_bytes() == now.encode("ascii")
    except OSError:
        return False


def _stamp(tree: Path, digest: str, names: Iterable[str]) -> str:
    folder = f"{tree}{os.sep}{FILES}"
    os.lstat(folder)  # there may be no files in it
    lines = [f"{digest}\n"]
    for name in names:
        now = os.lstat(f"{folder}{os.sep}{name}")  # a symlink's target can change without it
        facts = f"({now.st_ino}, {now.st_mode}, {now.st_size}, {now.st_mtime_ns})"
        lines.append(f"{name}\0{facts}{now.st_ctime_ns}\n")
    return hashlib.blake2b("".join(lines).encode(), digest_size=20).hexdigest()


class _Lease(NamedTuple):
    """The lease of this process in one cache.

    Attributes:
        descriptor: Descriptor of its file. A daemon closes all inherited descriptors, and the
            number can then belong to another file.
        file: Device and inode, which show whether the descriptor still belongs to the lease.
        names: The names in the lease.
    """

    descriptor: int
    file: tuple[int, int]
    names: set[str]

    def is_held(self) -> bool:
        """Return whether its file is still open and still exists."""
        try:
            status = os.fstat(self.descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.file and status.st_nlink > 0


_held: dict[Path, _Lease] = {}
"""By cache."""


def hold(cache: Path, name: str) -> None:
    """Keep an entry in the cache until this process ends.

    Does nothing if the cache is read-only or its file system has no locks, because other processes
    cannot prune such a cache either.

    Args:
        cache: The cache folder.
        name: The digest of a tree, or the name of a temporary folder.
    """
    try:
        lease = _held.get(cache)
        if lease is not None and lease.is_held() and name in lease.names:
            return
        # Many processes may add leases at once, but none while another one removes entries.
        with _locked(cache, "lock", is_shared=True):
            wanted = {name}
            if lease is None or not lease.is_held():
                wanted |= lease.names if lease is not None else set()
                lease = _held[cache] = _new_lease(cache)
            # Line breaks on both sides: a name after a partly written one stays whole, and a text
            # without one at its end is incomplete.
            text = "".join(f"\n{each}\n" for each in wanted).encode()
            if os.write(lease.descriptor, text) < len(text):
                raise OSError("the lease was only partly written")
        # Only now: a name whose write failed is written again by the next call.
        lease.names.update(wanted)
    except OSError as failure:
        _log.debug("cannot lease %s in %s: %s", name, cache, failure)


@contextlib.contextmanager
def exclusive(cache: Path) -> Iterator[None]:
    """Keep other processes from adding leases.

    Raises:
        CacheError: If the cache cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(cache, "lock"))
        except OSError as failure:
            raise CacheError(
                f"{cache}: the cache cannot be locked ({failure.strerror or failure}), so modpack "
                "cannot determine which entries are in use",
                hint="Remove the folder by hand when no program uses it.",
            ) from failure
        yield


def in_use(cache: Path) -> set[str]:
    """Return the names that running processes use; call this under :func:`exclusive`.

    Leases of processes that have ended are removed.

    Raises:
        CacheError: If a process could not write its lease, because the disk was full.
    """
    names: set[str] = set()
    for file in (cache / _LEASES).glob(f"*{_LEASE}"):
        with contextlib.suppress(OSError):
            text = _held_text(file)
            if text is not None and not text.endswith("\n"):
                raise CacheError(
                    f"{cache}: a running process uses the cache but could not record which "
                    "entries, because the disk was full",
                    hint="Free disk space elsewhere, or stop the programs that use packages. Then "
                    "try again.",
                )
            names.update((text or "").split("\n"))
    return names - {""}


def _held_text(file: Path) -> str | None:
    """Return the text of a lease. If its process has ended, remove the lease and return None."""
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


def _new_lease(cache: Path) -> _Lease:
    file = cache / _LEASES / f"{os.urandom(8).hex()}{_LEASE}"
    # No process sees it unlocked: the caller shares a lock that `in_use` needs alone.
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    status = os.fstat(descriptor)  # stays open and locked until the process ends
    return _Lease(descriptor, (status.st_dev, status.st_ino), set())


@contextlib.contextmanager
def _locked(cache: Path, name: str, *, is_shared: bool = False) -> Iterator[None]:
    if fcntl is None:
        raise OSError("this platform has no flock")
    folder = cache / _LEASES
    if not folder.is_dir():
        make_private(folder)
    require_trusted_folder(folder)  # another user could hold the lock forever
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_lock = threading.Lock()
_temporary: dict[str, Path] = {}
"""Trees outside the cache that only this process uses, by digest."""


def trees_folder(cache: Path) -> Path:
    """Return the folder of a cache that contains the trees."""
    return cache / "trees" / "v2"


def environments_folder(cache: Path) -> Path:
    """Return the folder of a cache that contains the virtual environments of packages."""
    return cache / "environments"


def unpack(digest: str, records: Mapping[str, int], read: _Read, name: str = "") -> Path:
    """Create a package's tree if it does not exist, and return the folder with its files.

    Args:
        digest: Digest of the records, which names the tree.
        records: The package's records with their sizes in bytes. Names are relative and checked.
            Bytecode is not unpacked: Python would run it instead of the source.
        read: Returns a record's verified contents.
        name: Name of the package file, shown by ``modpack cache``.

    Raises:
        CacheError: If neither the cache nor a temporary folder is writable.
    """
    # Some file systems ignore case: there, ``__PYCACHE__`` is the same folder.
    records = {r: size for r, size in records.items() if _BYTECODE not in r.casefold().split("/")}
    try:
        return _in_cache(cache_folder(), digest, records, read, name) / FILES
    except ArchiveError:  # also a RuntimeError, but not a problem of the cache
        raise
    except (OSError, RuntimeError) as failure:
        _log.warning(
            "the cache cannot be used (%s); the package is unpacked into a temporary folder for "
            "this process. To avoid this, set MODPACK_CACHE_DIR to a folder that only you can "
            "write to.",
            failure,
        )
        return _for_this_process(digest, records, read, failure)


def _in_cache(cache: Path, digest: str, records: Mapping[str, int], read: _Read, name: str) -> Path:
    folder = trees_folder(cache)
    tree = folder / digest
    if folder.is_dir():
        _refuse_strangers_above(folder)
        hold(cache, digest)  # first, so that no process prunes the tree while it is checked
        existed = tree.exists()  # if False, another process can create it at any moment
        if _is_right(tree, records, read):
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(tree / USED)
            return tree
        if existed:
            _log.warning("%s: files were modified in the cache; the entry is re-created", tree)
    make_private(folder)
    _refuse_strangers_above(folder)
    hold(cache, digest)
    # Next to its final path, because a rename cannot cross file systems.
    making = _temporary_path(cache, digest)
    making.mkdir(mode=0o700)
    try:
        (making / FILES).mkdir(mode=0o700)
        with phase("unpacking code", ProgressUnit.RECORDS, len(records), is_major=True):
            written = _write(making / FILES, records, read)
        _complete(making, digest, name, written)
        _put(cache, making, tree, records, read)
        return tree
    finally:
        shutil.rmtree(making, ignore_errors=True)
        _sweep_if_possible(cache)


def _refuse_strangers_above(folder: Path) -> None:
    """Refuse a folder of trees in which another user could create or replace entries.

    Raises:
        OSError: If it is not safe to use.
    """
    require_trusted_path(folder.parent)
    require_trusted_folder(folder)


def _temporary_path(cache: Path, digest: str) -> Path:
    """Return a leased path next to the trees for a temporary folder."""
    path = trees_folder(cache) / f"{digest[:12]}.{os.urandom(8).hex()}{TEMPORARY}"
    hold(cache, path.name)
    return path


def _is_right(tree: Path, records: Mapping[str, int], read: _Read) -> bool:
    """Return whether a tree's files are those of the package.

    Raises:
        OSError: If the tree is not safe to use.
    """
    try:
        require_trusted_folder(tree)
        if has_stamp(tree, tree.name, records):
            return True
        changed = [n for n in records if not _has_content(tree / FILES / n, read(n))]
    except (FileNotFoundError, NotADirectoryError):
        return False
    if changed:
        _log.debug("%s: %s was modified", tree, changed[0])
        return False
    # Now the next load in this boot need not compare the files.
    put_stamp(tree, tree.name, records)
    return True


def _has_content(file: Path, content: bytes) -> bool:
    # A symlink's target can change without the symlink.
    return stat.S_ISREG(file.lstat().st_mode) and file.read_bytes() == content


def _complete(folder: Path, digest: str, name: str, files: Mapping[str, tuple[int, str]]) -> None:
    """Write the record and the stamp of an entry, before its folder gets the final name."""
    document = json.dumps({"name": name, "files": files})
    (folder / _RECORD).write_text(document, encoding="utf-8")
    (folder / USED).touch()
    put_stamp(folder, digest, files)


def _put(cache: Path, making: Path, tree: Path, records: Mapping[str, int], read: _Read) -> None:
    """Rename a finished tree to its final path, unless another process was faster."""
    try:
        making.rename(tree)
        return
    except OSError:
        # Another process was faster, or the entry was damaged before.
        if _is_right(tree, records, read):
            return
    aside = _temporary_path(cache, tree.name)
    with exclusive(cache):
        # Once more, under the lock: a third process may have put an intact entry there since.
        if tree.exists() and not _is_right(tree, records, read):
            tree.rename(aside)
        if not tree.exists():
            making.rename(tree)
    shutil.rmtree(aside, ignore_errors=True)


def sweep(cache: Path, used: set[str], partial_age: float = _PARTIAL_SECONDS) -> list[Path]:
    """Return the temporary folders, downloads, and incomplete environments of ended processes.

    They can be removed. Call this under :func:`.exclusive`.

    Args:
        cache: The cache folder.
        used: The names that running processes use.
        partial_age: Age in seconds from which on an interrupted download is not continued.
    """
    folders = [trees_folder(cache), environments_folder(cache)]
    left = [each for folder in folders for each in folder.glob(f"*{TEMPORARY}")]
    started = time.time() - partial_age
    parts = folders[0].glob(f"*{PARTIAL}")
    left += [each for each in parts if each.lstat().st_mtime <= started]
    left += [
        each
        for each in folders[1].glob("[0-9a-f]" * 32)
        if each.is_dir() and not (each / ENVIRONMENT).exists()
    ]
    return [each for each in left if each.name not in used and not each.is_symlink()]


def _sweep_if_possible(cache: Path) -> None:
    try:
        with exclusive(cache):
            left = sweep(cache, in_use(cache))
    except CacheError as failure:
        _log.debug("temporary folders are not removed: %s", failure)
        return
    for each in left:
        shutil.rmtree(each, ignore_errors=True)


def keep_file(
    digest: str,
    name: str,
    size: int,
    fill: Callable[[Path], None],
    check: Callable[[Path], None],
) -> Path:
    """Return a file in the cache. If it does not exist, one process creates it and others wait.

    Args:
        digest: Digest that names its entry.
        name: Name of the package file, shown by ``modpack cache``.
        size: Size in bytes.
        fill: Appends the missing bytes to a file, of which an interrupted call may have left some.
        check: Raises ArchiveError if a file does not have the content that the digest names.

    Raises:
        ArchiveError: If ``fill`` or ``check`` raises it. A file that ``check`` refuses is removed.
        CacheError: If the cache is not safe to use, or cannot be written or locked.
    """
    try:
        cache = cache_folder()
        folder = trees_folder(cache)
        tree, part = folder / digest, folder / f"{digest}{PARTIAL}"
        make_private(folder)
        _refuse_strangers_above(folder)
        hold(cache, digest)
        # Clearing the cache removes all downloads that no process uses.
        hold(cache, part.name)
        # The file of this lock stays: who removed it could remove the one that another process has.
        with _locked(cache, f"{digest}.lock"):
            if not (tree.exists() and _is_kept(cache, tree, check)):
                file = part / FILES / _KEPT
                make_private(file.parent)
                require_trusted_folder(part)
                fill(file)
                with file.open("rb") as filled:
                    # The new name of the folder must not reach the disk before the bytes.
                    os.fsync(filled.fileno())
                try:
                    check(file)
                except ArchiveError:
                    file.unlink()  # continuing it would end here again
                    raise
                _complete(part, digest, name, {_KEPT: (size, "")})
                part.rename(tree)
        os.utime(tree / USED)
        return tree / FILES / _KEPT
    except ArchiveError:  # also a RuntimeError, but not a problem of the cache
        raise
    except (OSError, RuntimeError) as failure:
        raise CacheError(
            f"the package cannot be downloaded into the cache: {failure}",
            hint=_OTHER_FOLDER,
        ) from failure


def link_kept(kept: Path, place: Path) -> None:
    """Link to a file in the cache from another entry, whose package needs it next to it.

    Args:
        kept: A file that :func:`keep_file` returned.
        place: Path of the link.
    """
    if not (place.exists() and place.samefile(kept)):
        # The cache replaces a modified file, and an old link would keep the modified one.
        place.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # another process has just created it
            os.link(kept, place)


def _is_kept(cache: Path, tree: Path, check: Callable[[Path], None]) -> bool:
    """Return whether the file of a tree is intact; otherwise remove the tree."""
    require_trusted_folder(tree)
    with contextlib.suppress(ArchiveError, FileNotFoundError, NotADirectoryError):
        if not has_stamp(tree, tree.name, (_KEPT,)):
            check(tree / FILES / _KEPT)
            put_stamp(tree, tree.name, (_KEPT,))
        return True
    _log.warning("%s: files were modified in the cache; the package is downloaded again", tree)
    aside = _temporary_path(cache, tree.name)
    tree.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    return False


def _for_this_process(digest: str, records: Mapping[str, int], read: _Read, why: Exception) -> Path:
    with _lock:
        known = _temporary.get(digest)
        if known is None or not _is_complete(known, records):
            try:
                _temporary[digest] = _temporary_tree(records, read)
            except OSError as failure:
                raise CacheError(
                    f"the package can be unpacked neither into the cache ({why}) nor into a "
                    f"temporary folder ({failure})",
                    hint=_OTHER_FOLDER,
                ) from failure
        return _temporary[digest]


def require_cached() -> None:
    """Check that no package of this process is in a temporary folder.

    Raises:
        CacheError: If one is. A warning has shown the reason.
    """
    if _temporary:
        raise CacheError("the cache cannot be used; see the warning above", hint=_OTHER_FOLDER)


def _is_complete(tree: Path, records: Mapping[str, int]) -> bool:
    """Return whether no cleaner of temporary folders has removed files of this process's tree."""
    try:
        return all((tree / name).stat().st_size == size for name, size in records.items())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _temporary_tree(records: Mapping[str, int], read: _Read) -> Path:
    tree = Path(tempfile.mkdtemp(prefix="modpack-"))
    try:
        _write(tree, records, read)
    # Also after Ctrl-C: nothing else removes the folder yet.
    except BaseException:
        shutil.rmtree(tree, ignore_errors=True)
        raise
    atexit.register(_remove, tree, os.getpid())
    return tree


def _remove(tree: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must leave its parent's files alone
        shutil.rmtree(tree, ignore_errors=True)


def _write(folder: Path, records: Mapping[str, int], read: _Read) -> dict[str, tuple[int, str]]:
    """Write the files; return size and SHA-256 of each."""
    is_flushed = not boot()  # without a boot id, a stamp would be valid after a power failure
    written = dict[str, tuple[int, str]]()
    for parent in {record.rpartition("/")[0] for record in records}:
        (folder / parent).mkdir(parents=True, exist_ok=True)
    for record in records:
        content = read(record)
        with open(f"{folder}{os.sep}{record}", "wb") as file:  # noqa: PTH123 - there are many
            file.write(content)
            if is_flushed:
                file.flush()
                os.fsync(file.fileno())
        written[record] = (len(content), hashlib.sha256(content).hexdigest())
        advance()
    return written
