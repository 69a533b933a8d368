"""The cache: a package's code and resources as real files, written once.

A tree is named by a digest of its contents, so that it never changes, and packages that differ in
nothing but tensors share one. It is made beside its final place and renamed into it; of two
processes that make the same one, one wins and the other uses the winner's. A tree that belongs to
another user, or that others may write to, is not used: its code would run here. One whose files
were changed, or were lost with the machine's power, is made again.

A *stamp* sums up a tree's digest, and the inodes, sizes and times of all its files. The system
changes the time of a change of an inode (ctime) itself, whoever changes the file, and nobody sets
it back. A stamp holds for one boot of the machine: after a power failure files may lack what was
not yet on the disk, although their inodes say nothing of it. Then, and whenever the stamp is not
that of the files, the files themselves are compared.

A *lease* is a file in which a process notes the trees that it uses, and which it keeps locked. The
lock goes when the last of the process and its forked children ends, however it ends. What a lease
names is neither pruned nor swept away.
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
"""The folder of a tree that holds the package's files."""
CODE = "code"
"""The one that holds what they were compiled into."""
USED = "used"
"""A file of a tree: the time of its last change is that of the tree's last use."""
TEMPORARY = ".tmp"
"""The suffix of folders that are being made, or removed."""
_RECORD = "tree.json"
_STAMPS = "stamps"
_LEASES = "leases"
_LEASE = ".lease"
_BYTECODE = "__pycache__"
"""Where Python looks for what it takes for a source, and may not compare with it."""

_log = logging.getLogger(__name__)
_Read = Callable[[str], bytes]


class TreeRecord(NamedTuple):
    """What a tree was made of.

    Attributes:
        name: the package file's name.
        files: size in bytes and sha256 of each file, by its name below the tree.
    """

    name: str
    files: Mapping[str, tuple[int, str]]


def read_record(tree: Path) -> TreeRecord | None:
    """What a tree was made of; None if that cannot be told any more."""
    try:
        return from_json(TreeRecord, json.loads((tree / _RECORD).read_bytes()), "the record")
    except (OSError, ValueError, TypeError, RecursionError):
        return None


@functools.cache
def boot() -> str:
    """Which boot of the machine this is; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def put_stamp(tree: Path, digest: str, names: Iterable[str]) -> None:
    """Note that a tree's files are right as they are, if the cache can be written to.

    Args:
        tree: the tree.
        digest: of what it was made of, whatever it is called now.
        names: its files.
    """
    with contextlib.suppress(OSError):
        folder = tree / _STAMPS
        folder.mkdir(mode=0o700, exist_ok=True)
        making = folder / f"{os.urandom(4).hex()}.tmp"
        try:
            making.write_text(_stamp(tree, digest, names), encoding="ascii")
            making.replace(folder / (boot() or "any"))
        finally:
            making.unlink(missing_ok=True)


def has_stamp(tree: Path, digest: str, names: Iterable[str]) -> bool:
    """Whether a tree's files are those that were found right for a package.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such tree, or it lacks files.
    """
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
        now = os.lstat(f"{folder}{os.sep}{name}")  # what a link leads to may change without it
        facts = f"({now.st_ino}, {now.st_mode}, {now.st_size}, {now.st_mtime_ns})"
        lines.append(f"{name}\0{facts}{now.st_ctime_ns}\n")
    return hashlib.blake2b("".join(lines).encode(), digest_size=20).hexdigest()


class _Lease(NamedTuple):
    """The lease of this process in one cache.

    Attributes:
        descriptor: of its file. Daemons close all that they inherit, and the number may then be of
            anything else.
        file: device and inode, which tell whether it still is of that.
        names: what the lease names.
    """

    descriptor: int
    file: tuple[int, int]
    names: set[str]

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
            text = "".join(f"\n{each}\n" for each in wanted).encode()
            if os.write(lease.descriptor, text) < len(text):
                raise OSError("only a part of it could be written")
        lease.names.update(wanted)
    except OSError as failure:
        _log.debug("the use of %s is not noted in %s: %s", name, cache, failure)


@contextlib.contextmanager
def exclusive(cache: Path) -> Iterator[None]:
    """Keep all others from taking something into use.

    Raises:
        CacheError: there are no locks where the cache is.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(cache, shared=False))
        except OSError as failure:
            raise CacheError(
                f"the cache {cache} cannot be locked ({failure.strerror or failure}), so that "
                "nobody can tell what of it is in use. When no program uses it, remove the folder "
                "by hand"
            ) from failure
        yield


def in_use(cache: Path) -> set[str]:
    """What living processes use; to be called under :func:`exclusive`.

    Leases of processes that have ended are removed.

    Raises:
        CacheError: a process uses something, and could not say what, because the disk was full.
    """
    names: set[str] = set()
    for file in (cache / _LEASES).glob(f"*{_LEASE}"):
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


def _new_lease(cache: Path) -> _Lease:
    file = cache / _LEASES / f"{os.urandom(8).hex()}{_LEASE}"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    status = os.fstat(descriptor)  # stays open, and locked, as long as the process lives
    return _Lease(descriptor, (status.st_dev, status.st_ino), set())


@contextlib.contextmanager
def _locked(cache: Path, shared: bool) -> Iterator[None]:
    if fcntl is None:
        raise OSError("this platform has no flock")
    folder = cache / _LEASES
    if not folder.is_dir():
        make_private(folder)
    require_trusted_folder(folder)  # who could keep everybody waiting
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_lock = threading.Lock()
_temporary: dict[str, Path] = {}
"""The trees of this process alone, by digest."""


def trees_folder(cache: Path) -> Path:
    """Where trees are in a cache folder."""
    return cache / "trees" / "v2"


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
    records = {r: size for r, size in records.items() if _BYTECODE not in r.casefold().split("/")}
    try:
        return _in_cache(cache_folder(), digest, records, read, name) / FILES
    except ArchiveError:  # the package's fault, not the cache's, and a RuntimeError as well
        raise
    except (OSError, RuntimeError) as failure:
        _log.warning(
            "the cache cannot be used (%s); unpacking into a temporary folder for this "
            "process. Set MODPACK_CACHE_DIR to a folder that you alone can write to, to avoid that",
            failure,
        )
        return _for_this_process(digest, records, read, failure)


def _in_cache(cache: Path, digest: str, records: Mapping[str, int], read: _Read, name: str) -> Path:
    folder = trees_folder(cache)
    tree = folder / digest
    if folder.is_dir():
        _refuse_strangers_above(folder)
        hold(cache, digest)  # before looking: from here on nobody prunes it
        was_there = tree.exists()  # if not, another process may finish it any moment
        if _is_right(tree, records, read):
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(tree / USED)
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
    require_trusted_path(folder.parent)
    require_trusted_folder(folder)


def _temporary_place(cache: Path, digest: str) -> Path:
    """A place beside the trees that nobody sweeps away while this process lives."""
    place = trees_folder(cache) / f"{digest[:12]}.{os.urandom(8).hex()}{TEMPORARY}"
    hold(cache, place.name)
    return place


def _is_right(tree: Path, records: Mapping[str, int], read: _Read) -> bool:
    """Whether a tree holds what the package does; cleaners of caches may have taken files from it.

    Raises:
        OSError: it is not safe to use.
    """
    try:
        require_trusted_folder(tree)
        if has_stamp(tree, tree.name, records):
            return True
        changed = [n for n in records if not _has_content(tree / FILES / n, read(n))]
    except (FileNotFoundError, NotADirectoryError):
        return False
    if changed:
        _log.debug("%s in %s was changed", changed[0], tree)
        return False
    put_stamp(tree, tree.name, records)
    return True


def _has_content(file: Path, content: bytes) -> bool:
    # What a link leads to may change without the link.
    return stat.S_ISREG(file.lstat().st_mode) and file.read_bytes() == content


def _make(making: Path, digest: str, records: Mapping[str, int], read: _Read, name: str) -> None:
    files = making / FILES
    files.mkdir(mode=0o700)
    with phase("unpacking code", ProgressUnit.RECORDS, len(records), is_major=True):
        written = _write(files, records, read)
    document = {"version": 1, "name": name, "made": time.time(), "files": written}
    (making / _RECORD).write_text(json.dumps(document), encoding="utf-8")
    (making / USED).touch()
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
                    f"nor into a temporary folder ({failure}). Set MODPACK_CACHE_DIR to a "
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
        with open(f"{folder}{os.sep}{record}", "wb") as file:  # noqa: PTH123 - there are many
            file.write(content)
            if is_flushed:
                file.flush()
                os.fsync(file.fileno())
        written[record] = (len(content), hashlib.sha256(content).hexdigest())
        advance()
    return written
