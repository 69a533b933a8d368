"""Comparing the contents of an archive with its manifest, on as many threads as one likes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest, RecordDigest, mismatch
from modpack.archive.repacked import OTHER_DEFLATED
from modpack.core.helpers import usable_cores
from modpack.core.progress import Phase, Unit, phase
from modpack.errors import ArchiveError

__all__ = ["default_workers", "find_damage", "find_unreadable", "verify_records"]

_BATCH_BYTES: Final = 16 << 20
_BYTES_PER_RECORD: Final = 16 << 10
"""What opening a record costs, in bytes that are read meanwhile."""

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def default_workers() -> int:
    """How many threads read unless somebody says: one for each core that this process may use."""
    return usable_cores()


def verify_records(
    archive: Archive,
    manifest: Manifest,
    names: Iterable[str],
    workers: int = 1,
    *,
    with_crc: bool = True,
) -> None:
    """Compares an archive with its manifest.

    That every declared record is there in its size, and nothing else, is always checked; the
    contents of ``names`` are read and compared as well.

    Args:
        archive: the archive.
        manifest: its manifest.
        names: the records whose contents are compared.
        workers: threads that do so at the same time.
        with_crc: whether the zip's crc32 of storages has to be right as well.

    Raises:
        ArchiveError: the archive differs; the reason lists every difference.
    """
    problems = find_damage(archive, manifest, names, workers, with_crc=with_crc)
    if problems:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in problems.items())
        count = f"{len(problems)} record{'s' if len(problems) > 1 else ''}"
        raise ArchiveError(archive.source, f"{count} not as the manifest says: {listed}")


def find_damage(
    archive: Archive,
    manifest: Manifest,
    names: Iterable[str],
    workers: int = 1,
    *,
    with_crc: bool = True,
) -> dict[str, str]:
    """What of an archive is not as its manifest says, by record.

    Args:
        archive: the archive.
        manifest: its manifest.
        names: the records whose contents are read and compared.
        workers: threads that do so at the same time; digests let go of Python's lock.
        with_crc: whether the zip's crc32 has to be right as well, which other readers check, of
            storages too.
    """
    present = archive.sizes()
    problems = _structural_problems(present, manifest)
    todo = [name for name in names if name not in problems and name not in layout.OUTSIDE]
    if todo:
        amount = sum(present.get(name, 0) for name in dict.fromkeys(todo))
        with phase("checking digests", Unit.BYTES, amount) as checking:
            problem = partial(_content_problem, archive, manifest, with_crc, checking)
            problems.update(_problems(present, todo, workers, problem))
    return problems


def find_unreadable(archive: Archive, names: Sequence[str], workers: int = 1) -> dict[str, str]:
    """What of an archive cannot be read, by record: all that can be told without a manifest.

    Reading a record of a zip checks its headers and its crc32.

    Args:
        archive: the archive.
        names: the records that are read.
        workers: threads that do so at the same time.
    """
    with phase("reading records", Unit.BYTES, sum(map(archive.size, names))) as reading:

        def problem(name: str) -> str | None:
            try:
                for chunk in archive.chunks(name):
                    reading.advance(len(chunk))
            except ArchiveError as error:
                return error.reason
            return None

        return _problems(archive.sizes(), names, workers, problem)


def _problems(
    sizes: Mapping[str, int],
    names: Sequence[str],
    workers: int,
    problem_of: Callable[[str], str | None],
) -> dict[str, str]:
    """What is wrong with records, by record, looked for on several threads, the largest first."""
    if workers == 1:
        return {name: reason for name in names if (reason := problem_of(name)) is not None}
    batches = _batched(sizes, names)

    def of_batch(batch: Sequence[str]) -> dict[str, str]:
        return {name: reason for name in batch if (reason := problem_of(name)) is not None}

    found = _on_threads(of_batch, batches, min(workers, len(batches)))
    reasons = {name: reason for each in found for name, reason in each.items()}
    return {name: reasons[name] for name in names if name in reasons}


def _on_threads(
    function: Callable[[_Argument], _Result], arguments: Sequence[_Argument], workers: int
) -> list[_Result]:
    if workers > 1:
        from concurrent.futures import ThreadPoolExecutor

        try:
            with ThreadPoolExecutor(workers) as pool:
                return list(pool.map(function, arguments))
        except ArchiveError:
            raise
        except RuntimeError:  # at the limit of a container, or while Python ends: none can start
            pass
    return list(map(function, arguments))


def _batched(sizes: Mapping[str, int], names: Sequence[str]) -> list[list[str]]:
    """Records in portions: handing a small one to a thread costs more than to read it."""
    known = {name: sizes.get(name, 0) for name in names}
    batches: list[list[str]] = []
    room = 0
    for name in sorted(names, key=known.__getitem__, reverse=True):
        if room <= 0:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append(name)
        room -= known[name] + _BYTES_PER_RECORD
    return batches


def _structural_problems(present: Mapping[str, int], manifest: Manifest) -> dict[str, str]:
    """Which records are missing, undeclared, or of another size than is declared.

    Args:
        present: the size of each record that is there.
        manifest: the manifest.
    """
    found = {name: size for name, size in present.items() if name not in layout.OUTSIDE}
    declared = manifest.records
    if found == {name: record.size for name, record in declared.items()}:
        return {}
    return {
        name: reason
        for name in sorted(found.keys() | declared.keys())
        if (reason := _structural_problem(found.get(name), declared.get(name))) is not None
    }


def _structural_problem(size: int | None, declared: RecordDigest | None) -> str | None:
    if size is None:
        return "it is missing"
    if declared is not None and declared.size == size:
        return None
    return mismatch(declared, RecordDigest(size, ""))


def _content_problem(
    archive: Archive, manifest: Manifest, with_crc: bool, checking: Phase, name: str
) -> str | None:
    if not archive.has(name):
        return "there is no such record"
    has_crc = with_crc or not layout.is_storage(name)
    declared = manifest.records.get(name)
    try:
        whole = archive.whole(name, with_crc=has_crc)
        if whole is None:
            found = _digest_in_pieces(archive, name, has_crc, checking)
            return mismatch(declared, found) or _otherwise_deflated(archive, name, declared, None)
    except ArchiveError as error:
        return error.reason
    content, _, sha256, deflated = whole
    size = len(content)
    checking.done += size
    problem = mismatch(declared, RecordDigest(size, sha256))
    problem = problem or _otherwise_deflated(archive, name, declared, deflated)
    if problem is None:
        archive.keep(name, content, deflated)
    return problem


def _otherwise_deflated(
    archive: Archive, name: str, declared: RecordDigest | None, deflated: bytes | None
) -> str | None:
    """Why the deflated bytes of a record are not what is declared, if that is known."""
    if declared is None or not declared.deflated:
        return None
    if deflated is not None:
        found: str | None = hashlib.sha256(deflated).hexdigest()
    else:
        found = archive.deflated_sha256(name)
    return OTHER_DEFLATED if found not in (None, declared.deflated) else None


def _digest_in_pieces(archive: Archive, name: str, with_crc: bool, checking: Phase) -> RecordDigest:
    size, sha256 = 0, hashlib.sha256()
    for chunk in archive.chunks(name, with_crc=with_crc):
        size += len(chunk)
        checking.advance(len(chunk))
        sha256.update(chunk)
    return RecordDigest(size, sha256.hexdigest())
