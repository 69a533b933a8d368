"""The manifest: what every record of a package is supposed to contain.

It stands in ``.data/modpack/manifest.json`` and lists all records but itself, its digest and
signatures of it:

.. code-block:: json

    {
        "digest": "sha256",
        "format": 2,
        "records": [["pkg/a.py", 1700, "...", "..."], [".data/0.storage", 8, "..."]],
        "writer": "modpack 0.1"
    }

in canonical JSON: UTF-8, keys sorted by code point, no blanks, no final newline. A record has its
name, its size in bytes, the sha256 of its content, and, if it is deflated, that of the deflated
bytes; they stand in the order in which they lie in the file. The sha256 of the manifest, in
``.data/modpack/manifest.sha256``, is the package's digest: two packages with the same digest are
the same bytes, signatures aside.

Format 1 had ``{"pkg/a.py": {"sha256": "...", "size": 17}}`` instead, without order, and is read.

Comparing the contents of an archive with its manifest, on as many threads as one likes.

Checksums of record contents, off the writing thread where that pays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeGuard, TypeVar, cast

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import DEFAULT_LIMITS
from modpack.archive.zip_format import OTHER_DEFLATED
from modpack.core.json_values import parse_json
from modpack.core.process import usable_cores
from modpack.core.progress import Phase, Unit, phase
from modpack.errors import ArchiveError, UnsupportedVersionError

_SHA256_LENGTH: Final = 64
_HEX: Final = r"[0-9a-f]*"
_MOST_SHOWN: Final = 80


class RecordDigest(NamedTuple):
    """What a record should contain.

    Attributes:
        size: in bytes, uncompressed.
        sha256: of the content, in hex.
        deflated: the sha256 of the deflated content; empty if it is stored as it is, or if the
            package's format does not tell.
    """

    size: int
    sha256: str
    deflated: str = ""


class Manifest(NamedTuple):
    """What a package says about itself.

    Attributes:
        format: version of modpack's format.
        writer: the program that wrote it (``modpack 0.1``).
        records: every record but the manifest, its digest and its signatures; from format 2 on
            in their order in the file.
    """

    format: int
    writer: str
    records: Mapping[str, RecordDigest]

    def encoded(self) -> bytes:
        """The content of ``manifest.json`` that says this."""
        records: object = [
            [name, size, sha256, deflated] if deflated else [name, size, sha256]
            for name, (size, sha256, deflated) in self.records.items()
        ]
        if self.format < layout.OWN_FORM_FROM:
            records = {
                name: {"size": record.size, "sha256": record.sha256}
                for name, record in self.records.items()
            }
        return canonical_json(
            {
                "format": self.format,
                "writer": self.writer,
                "digest": "sha256",
                "records": records,
            }
        )

    def check(self, source: str, name: str, content: bytes | memoryview) -> None:
        """Compares a record's content with what is declared.

        Raises:
            ArchiveError: the record is undeclared, or has another size or digest.
        """
        if name in layout.OUTSIDE:
            return
        found = RecordDigest(len(content), hashlib.sha256(content).hexdigest())
        reason = mismatch(self.records.get(name), found)
        if reason is not None:
            raise ArchiveError(source, reason, name)


def canonical_json(value: object) -> bytes:
    """JSON that is the same bytes for the same value.

    >>> canonical_json({"b": [1, None], "a": "é"}).decode()
    '{"a":"é","b":[1,null]}'
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def encode_manifest(records: Mapping[str, RecordDigest]) -> bytes:
    """The content of ``manifest.json`` for these records."""
    inside = {name: record for name, record in records.items() if name not in layout.OUTSIDE}
    from modpack._version import __version__

    return Manifest(layout.FORMAT_VERSION, f"modpack {__version__}", inside).encoded()


def read_manifest(archive: Archive) -> Manifest | None:
    """The package's manifest; None for packages that torch.package wrote. Read once.

    Raises:
        UnsupportedVersionError: the format is newer than this modpack.
        ArchiveError: the manifest is damaged or missing though the package is modpack's.
    """
    found = archive.remembered(_read)
    return found[0] if found is not None else None


def _read(archive: Archive) -> tuple[Manifest, str] | None:
    """The manifest and its sha256."""
    if not archive.has(layout.MANIFEST):
        strays = [name for name in archive.names() if name.startswith(layout.MODPACK_PREFIX)]
        if strays:
            raise ArchiveError(archive.source, f"there is {strays[0]!r} but no {layout.MANIFEST!r}")
        return None
    content = archive.read(layout.MANIFEST)
    declared = archive.read(layout.MANIFEST_DIGEST)
    digest = hashlib.sha256(content).hexdigest()
    if declared != digest.encode("ascii"):
        reason = f"it does not have the digest in {layout.MANIFEST_DIGEST!r}"
        raise ArchiveError(archive.source, reason, layout.MANIFEST)
    manifest = _decode_manifest(archive.source, content, archive.stored_bytes())
    if manifest.format >= layout.OWN_FORM_FROM:
        deflated = {name for name, record in manifest.records.items() if record.deflated}
        archive.require_own_form(tuple(manifest.records), deflated)
    return manifest, digest


def package_digest(archive: Archive) -> str:
    """A hex digest that names the package's content, whatever its file is called.

    For modpack's packages it is the manifest's sha256. For others it is the sha256 over all
    records, sorted by name: name, size and the content's sha256, but for tensor storages name,
    size and crc32, so that gigabytes need not be read.

    Raises:
        ArchiveError: the archive is damaged.
    """
    found = archive.remembered(_read)
    if found is not None:
        return found[1]
    lines = [
        [name, archive.size(name), _content_key(archive, name)] for name in sorted(archive.names())
    ]
    return hashlib.sha256(canonical_json(lines)).hexdigest()


def contents_digest(archive: Archive, names: Iterable[str]) -> str:
    """A hex digest that names the contents of some records, with their names.

    For modpack's packages it is made of what the manifest says. For others it is the package's.

    Args:
        archive: a package whose contents were checked.
        names: the records.

    Raises:
        ArchiveError: the archive is damaged.
    """
    manifest = read_manifest(archive)
    if manifest is None:
        return package_digest(archive)
    records = manifest.records
    lines = [f"{records[name].sha256}{len(name)}:{name}" for name in sorted(names)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def mismatch(declared: RecordDigest | None, found: RecordDigest) -> str | None:
    """Why a record is not what it should be; None if it is."""
    if declared is None:
        return "the manifest does not declare it"
    if declared.size != found.size:
        return f"it has {found.size} bytes instead of {declared.size}"
    if declared.sha256 != found.sha256:
        return "its sha256 is not the declared one"
    return None


def _content_key(archive: Archive, name: str) -> str:
    if layout.is_storage(name):
        return f"crc32:{archive.crc32(name):08x}"
    return hashlib.sha256(archive.read(name)).hexdigest()


def _decode_manifest(source: str, content: bytes, archive_bytes: int) -> Manifest:
    most_bytes = DEFAULT_LIMITS.json_bytes(archive_bytes)
    try:
        document = parse_json(content, most_bytes, unique_keys=True)
    except ValueError as error:
        raise ArchiveError(source, f"it is no valid JSON: {error}", layout.MANIFEST) from error
    if not isinstance(document, dict):
        raise ArchiveError(source, "it is no JSON object", layout.MANIFEST)
    version = document.get("format")
    if type(version) is int and version > layout.FORMAT_VERSION:
        raise UnsupportedVersionError(
            source,
            f"it is written in format {version}, and this modpack knows formats up to "
            f"{layout.FORMAT_VERSION}. Remedy: install a newer modpack",
        )
    writer, records = document.get("writer"), document.get("records")
    if not (type(version) is int and version >= 1):
        raise ArchiveError(source, "it states no format", layout.MANIFEST)
    if not isinstance(writer, str):
        raise ArchiveError(source, "it states no writer", layout.MANIFEST)
    if document.get("digest") != "sha256":
        raise ArchiveError(source, "its digests are not sha256", layout.MANIFEST)
    if version >= layout.OWN_FORM_FROM:
        rows = _rows(source, records)
    elif isinstance(records, dict):
        rows = _rows_of_format_1(records)
    else:
        raise ArchiveError(source, "it lists no records", layout.MANIFEST)
    listed = _decode_rows(source, rows)
    for name in sorted(listed.keys() & set(layout.OUTSIDE)):
        raise ArchiveError(source, f"it lists {name!r}, which no manifest can", layout.MANIFEST)
    return Manifest(version, writer, listed)


def _rows(source: str, records: object) -> list[list[object]]:
    """The rows of a manifest: name, size, sha256, and perhaps the sha256 of what is deflated."""
    if not isinstance(records, list):
        raise ArchiveError(source, "it lists no records", layout.MANIFEST)
    for row in records:
        if not (isinstance(row, list) and len(row) in (3, 4) and isinstance(row[0], str)):
            reason = f"it has a row that is none of a record: {str(row)[:_MOST_SHOWN]}"
            raise ArchiveError(source, reason, layout.MANIFEST)
    return records


def _rows_of_format_1(records: Mapping[str, object]) -> list[list[object]]:
    entries = [(name, value if isinstance(value, dict) else {}) for name, value in records.items()]
    return [[name, entry.get("size"), entry.get("sha256")] for name, entry in entries]


def _decode_rows(source: str, rows: list[list[object]]) -> dict[str, RecordDigest]:
    """Each record's size and digests; all are checked at once, since there are very many."""
    names = [cast(str, row[0]) for row in rows]
    sizes, digests = [row[1] for row in rows], [row[2] for row in rows]
    if not _are_sizes(sizes):
        name = next(n for n, size in zip(names, sizes, strict=True) if not _are_sizes([size]))
        raise ArchiveError(source, f"it states no size for {name!r}", layout.MANIFEST)
    if not (_are_digests(digests) and _are_digests([row[3] for row in rows if len(row) > 3])):
        name = next(
            name for name, row in zip(names, rows, strict=True) if not _are_digests(row[2:])
        )
        raise ArchiveError(source, f"it states no sha256 for {name!r}", layout.MANIFEST)
    of_deflated = cast(list[str], [row[3] if len(row) > 3 else "" for row in rows])
    made = dict(zip(names, map(RecordDigest, sizes, digests, of_deflated), strict=True))
    if len(made) < len(rows):
        name = next(name for name, count in Counter(names).items() if count > 1)
        raise ArchiveError(source, f"it lists {name!r} twice", layout.MANIFEST)
    return made


def _are_sizes(values: list[object]) -> TypeGuard[list[int]]:
    return set(map(type, values)) <= {int} and min(cast(list[int], values), default=0) >= 0


def _are_digests(values: list[object]) -> TypeGuard[list[str]]:
    if not set(map(type, values)) <= {str}:
        return False
    texts = cast(list[str], values)
    return set(map(len, texts)) <= {_SHA256_LENGTH} and bool(re.fullmatch(_HEX, "".join(texts)))


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


BACKGROUND_FROM: Final = 1 << 20
"""Bytes from which handing the data to other threads costs less than it saves."""

_READ_BYTES: Final = 1 << 20


class Digest(NamedTuple):
    """Checksums of one record's content.

    Attributes:
        crc: crc32, which zip wants.
        sha256: hex digest, which the manifest wants.
    """

    crc: int
    sha256: str


class Threads:
    """Two threads, made when there is work: zlib and hashlib release the GIL while they read.

    Where none can be started, as at the limit of a container or while Python ends, what they were
    to do is done at once.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._can_start = True

    def run(self, function: Callable[[_Argument], _Result], argument: _Argument) -> Future[_Result]:
        """Calls a function on one of them.

        Args:
            function: leaves nothing behind but its result: it may be called twice.
            argument: what it is called with.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, thread_name_prefix="modpack-digest")
        if self._can_start:
            try:
                return self._pool.submit(function, argument)
            except RuntimeError:  # the other thread may do it none the less
                self._can_start = False
        return _done(function, argument)

    def digest_of_written(self, descriptor: int, offset: int, size: int) -> Future[Digest]:
        """Begins to compute the checksums of what is in a file; that must stay as it is."""
        return self.run(_digest_of_written, (descriptor, offset, size))

    def close(self) -> None:
        """Ends the threads; what they have not begun is not done any more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def digest_of(data: bytes | memoryview) -> Digest:
    """The checksums of ``data``, computed here and now."""
    return Digest(zlib.crc32(data), _sha256(data))


def _digest_of_written(place: tuple[int, int, int]) -> Digest:
    descriptor, offset, remaining = place
    crc, sha256, buffer = 0, hashlib.sha256(), memoryview(bytearray(min(_READ_BYTES, remaining)))
    while remaining:
        count = os.preadv(descriptor, [buffer[:remaining]], offset)
        if not count:
            raise OSError("what was written is not there any more")
        read = buffer[:count]
        crc = zlib.crc32(read, crc)
        sha256.update(read)
        offset, remaining = offset + count, remaining - count
    return Digest(crc, sha256.hexdigest())


def _done(function: Callable[[_Argument], _Result], argument: _Argument) -> Future[_Result]:
    future: Future[_Result] = Future()
    try:
        future.set_result(function(argument))
    except Exception as error:
        future.set_exception(error)
    return future


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()
