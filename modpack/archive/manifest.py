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
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive, RecordDigest
from modpack.archive.layout import DEFAULT_LIMITS
from modpack.archive.zip_format import REPACKED
from modpack.core.json_values import parse_json
from modpack.core.process import ProgressUnit, ThreadPool, phase
from modpack.errors import ArchiveError, UnsupportedVersionError

if TYPE_CHECKING:
    pass

_SHA256: Final = r"[0-9a-f]{64}"
_BATCH_BYTES: Final = 16 << 20
_BYTES_PER_RECORD: Final = 16 << 10
"""What opening a record costs, in bytes that are read meanwhile."""


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
        if self.format < layout.CANONICAL_ZIP_FROM:
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
        if name in layout.UNLISTED:
            return
        found = RecordDigest(len(content), hashlib.sha256(content).hexdigest())
        reason = find_mismatch(self.records.get(name), found)
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
    inside = {name: record for name, record in records.items() if name not in layout.UNLISTED}
    from modpack._version import __version__

    return Manifest(layout.FORMAT_VERSION, f"modpack {__version__}", inside).encoded()


def read_manifest(archive: Archive) -> Manifest | None:
    """The package's manifest; None for packages that torch.package wrote. Read once.

    Raises:
        UnsupportedVersionError: the format is newer than this modpack.
        ArchiveError: the manifest is damaged or missing though the package is modpack's.
    """
    found = archive.cached(_read)
    return found[0] if found is not None else None


def _read(archive: Archive) -> tuple[Manifest, str] | None:
    """The manifest and its sha256."""
    if not archive.has(layout.MANIFEST):
        strays = [name for name in archive.names() if name.startswith(layout.MODPACK_PREFIX)]
        if strays:
            raise ArchiveError(archive.path, f"there is {strays[0]!r} but no {layout.MANIFEST!r}")
        return None
    content = archive.read(layout.MANIFEST)
    declared = archive.read(layout.MANIFEST_DIGEST)
    digest = hashlib.sha256(content).hexdigest()
    if declared != digest.encode("ascii"):
        reason = f"it does not have the digest in {layout.MANIFEST_DIGEST!r}"
        raise ArchiveError(archive.path, reason, layout.MANIFEST)
    manifest = _decode_manifest(archive.path, content, archive.stored_bytes())
    if manifest.format >= layout.CANONICAL_ZIP_FROM:
        deflated = {name for name, record in manifest.records.items() if record.deflated}
        archive.require_canonical_zip(tuple(manifest.records), deflated)
    return manifest, digest


def package_digest(archive: Archive) -> str:
    """A hex digest that names the package's content, whatever its file is called.

    For modpack's packages it is the manifest's sha256. For others it is the sha256 over all
    records, sorted by name: name, size and the content's sha256, but for tensor storages name,
    size and crc32, so that gigabytes need not be read.

    Raises:
        ArchiveError: the archive is damaged.
    """
    found = archive.cached(_read)
    if found is not None:
        return found[1]
    lines = []
    for name in sorted(archive.names()):
        key = f"crc32:{archive.crc32(name):08x}" if layout.is_storage(name) else None
        key = key or hashlib.sha256(archive.read(name)).hexdigest()
        lines.append([name, archive.size(name), key])
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


def find_mismatch(declared: RecordDigest | None, found: RecordDigest) -> str | None:
    """Return why a record is not what it should be; None if it is."""
    if declared is None:
        return "the manifest does not declare it"
    if declared.size != found.size:
        return f"it has {found.size} bytes instead of {declared.size}"
    if declared.sha256 != found.sha256:
        return "its sha256 is not the declared one"
    if declared.deflated and found.deflated and declared.deflated != found.deflated:
        return f"its content is deflated otherwise than it was: {REPACKED}"
    return None


def _decode_manifest(source: str, content: bytes, archive_bytes: int) -> Manifest:
    max_bytes = DEFAULT_LIMITS.max_json_bytes(archive_bytes)
    try:
        document = parse_json(content, max_bytes, unique_keys=True)
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
    if version < layout.CANONICAL_ZIP_FROM and isinstance(records, dict):
        values = ((name, v if isinstance(v, dict) else {}) for name, v in records.items())
        records = [[name, value.get("size"), value.get("sha256")] for name, value in values]
    elif version < layout.CANONICAL_ZIP_FROM or not isinstance(records, list):
        raise ArchiveError(source, "it lists no records", layout.MANIFEST)
    return Manifest(version, writer, _decode_rows(source, records))


def _decode_rows(source: str, rows: Sequence[object]) -> dict[str, RecordDigest]:
    listed: dict[str, RecordDigest] = {}
    is_sha256 = re.compile(_SHA256).fullmatch
    for row in rows:
        if not (isinstance(row, list) and len(row) in (3, 4) and isinstance(row[0], str)):
            reason = f"it has a row that is none of a record: {str(row)[:80]}"
            raise ArchiveError(source, reason, layout.MANIFEST)
        name, size, *digests = row
        if type(size) is not int or size < 0:
            raise ArchiveError(source, f"it states no size for {name!r}", layout.MANIFEST)
        for digest in digests:
            if not (type(digest) is str and is_sha256(digest)):
                raise ArchiveError(source, f"it states no sha256 for {name!r}", layout.MANIFEST)
        if name in listed:
            raise ArchiveError(source, f"it lists {name!r} twice", layout.MANIFEST)
        if name in layout.UNLISTED:
            raise ArchiveError(source, f"it lists {name!r}, which no manifest can", layout.MANIFEST)
        listed[name] = RecordDigest(size, *digests)
    return listed


def verify_records(
    archive: Archive,
    manifest: Manifest,
    names: Iterable[str],
    workers: int = 1,
    *,
    with_crc: bool = True,
) -> None:
    """Compare an archive with its manifest; see :func:`find_damage`.

    Raises:
        ArchiveError: the archive differs; the reason lists every difference.
    """
    problems = find_damage(archive, manifest, names, workers, with_crc=with_crc)
    if problems:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in problems.items())
        count = f"{len(problems)} record{'s' if len(problems) > 1 else ''}"
        raise ArchiveError(archive.path, f"{count} not as the manifest says: {listed}")


def find_damage(
    archive: Archive,
    manifest: Manifest,
    names: Iterable[str],
    workers: int = 1,
    *,
    with_crc: bool = True,
) -> dict[str, str]:
    """Return what of an archive is not as its manifest says, by record.

    That every declared record is there in its size, and nothing else, is always checked.

    Args:
        archive: the archive.
        manifest: its manifest.
        names: the records whose contents are read and compared.
        workers: threads that do so at the same time; digests let go of Python's lock.
        with_crc: whether the crc32 of storages, too, has to be right: other readers check it.
    """
    present = archive.sizes()
    problems = _structural_problems(present, manifest)
    todo = [name for name in names if name not in problems and name not in layout.UNLISTED]
    if not todo:
        return problems
    amount = sum(present.get(name, 0) for name in dict.fromkeys(todo))
    with phase("checking digests", ProgressUnit.BYTES, amount) as checking:

        def problem(name: str) -> str | None:
            if not archive.has(name):
                return "there is no such record"
            has_crc = with_crc or not layout.is_storage(name)
            found = archive.digest(name, checking.advance, with_crc=has_crc)
            return find_mismatch(manifest.records.get(name), found)

        return {**problems, **_find_problems(present, todo, workers, problem)}


def find_unreadable(archive: Archive, names: Sequence[str], workers: int = 1) -> dict[str, str]:
    """Return what of an archive cannot be read, by record: all that shows without a manifest.

    Reading a record of a zip checks its headers and its crc32.

    Args:
        archive: the archive.
        names: the records that are read.
        workers: threads that do so at the same time.
    """
    with phase("reading records", ProgressUnit.BYTES, sum(map(archive.size, names))) as reading:

        def problem(name: str) -> None:
            for chunk in archive.chunks(name):
                reading.advance(len(chunk))

        return _find_problems(archive.sizes(), names, workers, problem)


def _find_problems(
    sizes: Mapping[str, int],
    names: Sequence[str],
    workers: int,
    problem_of: Callable[[str], str | None],
) -> dict[str, str]:
    """Return what is wrong with records, or cannot be read, by record."""

    def of_batch(batch: Sequence[str]) -> dict[str, str]:
        found = {}
        for name in batch:
            try:
                reason = problem_of(name)
            except ArchiveError as error:
                reason = error.reason
            if reason is not None:
                found[name] = reason
        return found

    batches = _batches(sizes, names) if workers > 1 else []
    if len(batches) < 2:
        return of_batch(names)
    threads = ThreadPool(min(workers, len(batches)))
    try:
        found = [threads.run(of_batch, batch) for batch in batches]
        reasons = {name: reason for each in found for name, reason in each.result().items()}
    finally:
        threads.close()
    return {name: reasons[name] for name in names if name in reasons}


def _batches(sizes: Mapping[str, int], names: Sequence[str]) -> list[list[str]]:
    """Portion records, the largest first: handing a small one over costs more than reading it."""
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
    """Return which records are missing, undeclared, or of another size than is declared."""
    problems = {}
    for name in sorted((present.keys() | manifest.records.keys()) - set(layout.UNLISTED)):
        size, declared = present.get(name), manifest.records.get(name)
        if size is None:
            problems[name] = "it is missing"
        elif declared is None or declared.size != size:
            problems[name] = find_mismatch(declared, RecordDigest(size, "")) or ""
    return problems
