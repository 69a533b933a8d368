"""The manifest: the size and digests of every record of a package.

``.data/modpack/manifest.json`` lists all records except itself, its digest, and its signatures:

.. code-block:: json

    {
        "digest": "sha256",
        "format": 2,
        "records": [["pkg/a.py", 1700, "...", "..."], [".data/0.storage", 8, "..."]],
        "writer": "modpack 0.1"
    }

The encoding is canonical JSON: UTF-8, keys sorted by code point, no whitespace, no final newline.
A row has the record's name, its size in bytes, the SHA-256 of its content, and, if it is deflated,
the SHA-256 of the deflated bytes. Rows are in file order. The SHA-256 of the manifest, stored in
``.data/modpack/manifest.sha256``, is the package digest. Two packages with the same digest are
identical, except for signatures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from modpack.archive import layout
from modpack.archive.base import Archive, RecordDigest
from modpack.archive.zip_format import REPACKED, REPACKED_HINT
from modpack.core.json_values import parse_json
from modpack.core.process import ProgressUnit, ThreadPool, phase
from modpack.errors import ArchiveError, RepackedError, UnsupportedVersionError, listed

_BATCH_BYTES: Final = 16 << 20
_BYTES_PER_RECORD: Final = 16 << 10
"""The cost of opening a record, as the number of bytes that could be read in that time."""

_RECOMPRESSED: Final = f"the compressed data differs from the manifest: {REPACKED}"


class Manifest(NamedTuple):
    """A decoded manifest.

    Attributes:
        format: Version of modpack's format.
        writer: Program that wrote the package (``modpack 0.1``).
        records: All records except the manifest, its digest, and signatures, in file order.
    """

    format: int
    writer: str
    records: Mapping[str, RecordDigest]

    def encoded(self) -> bytes:
        """Return the content of ``manifest.json``."""
        records = [
            [name, size, sha256, deflated] if deflated else [name, size, sha256]
            for name, (size, sha256, deflated) in self.records.items()
        ]
        return canonical_json(
            {
                "format": self.format,
                "writer": self.writer,
                "digest": "sha256",
                "records": records,
            }
        )

    def check(self, path: str, name: str, content: bytes | memoryview) -> None:
        """Check a record's content against its declared size and digest.

        Raises:
            ArchiveError: If the record is undeclared, or its size or digest differs.
        """
        if name in layout.UNLISTED:
            return
        found = RecordDigest(len(content), hashlib.sha256(content).hexdigest())
        reason = find_mismatch(self.records.get(name), found)
        if reason is not None:
            raise ArchiveError(path, reason, name)


def canonical_json(value: object) -> bytes:
    """Return a value's canonical JSON: equal values have equal bytes.

    >>> canonical_json({"b": [1, None], "a": "é"}).decode()
    '{"a":"é","b":[1,null]}'
    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def encode_manifest(records: Mapping[str, RecordDigest]) -> bytes:
    """Return the content of ``manifest.json`` for these records."""
    listed = {name: record for name, record in records.items() if name not in layout.UNLISTED}
    from modpack._version import __version__

    return Manifest(layout.FORMAT_VERSION, f"modpack {__version__}", listed).encoded()


def read_manifest(archive: Archive) -> Manifest | None:
    """Return the package's manifest, or None if torch.package wrote the package.

    The archive caches the manifest.

    Raises:
        UnsupportedVersionError: If the format is newer than this version of modpack.
        ArchiveError: If the manifest is damaged, or is missing in a package that modpack wrote.
    """
    found = archive.cached(_read)
    return found[0] if found is not None else None


def _read(archive: Archive) -> tuple[Manifest, str] | None:
    """Return the manifest and its SHA-256."""
    if not archive.has(layout.MANIFEST):
        # Without this check, whoever removes the manifest would turn off all checks against it.
        strays = [name for name in archive.names() if name.startswith(layout.MODPACK_PREFIX)]
        if strays:
            reason = f"the package contains {strays[0]!r} but not {layout.MANIFEST!r}"
            raise ArchiveError(archive.path, reason)
        return None
    content = archive.read(layout.MANIFEST)
    declared = archive.read(layout.MANIFEST_DIGEST)
    digest = hashlib.sha256(content).hexdigest()
    if declared != digest.encode("ascii"):
        reason = f"the manifest does not match the digest in {layout.MANIFEST_DIGEST!r}"
        raise ArchiveError(archive.path, reason, layout.MANIFEST)
    manifest = _decode_manifest(archive.path, content, archive.stored_bytes())
    # Digests cover the contents of records. From here on, all other bytes must follow from them.
    deflated = {name for name, record in manifest.records.items() if record.deflated}
    archive.require_canonical_zip(tuple(manifest.records), deflated)
    return manifest, digest


def package_digest(archive: Archive) -> str:
    """Return a hex digest of the package's content, independent of its file name.

    For modpack's packages this is the SHA-256 of the manifest. For others it is a SHA-256 over
    name, size, and SHA-256 of all records, sorted by name. For tensor storages, the CRC-32
    replaces the SHA-256, which avoids reading gigabytes.

    Raises:
        ArchiveError: If the archive is damaged.
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
    """Return a hex digest of the names and contents of some records.

    For modpack's packages it derives from the manifest. For others it is the package digest.

    Args:
        archive: A package whose contents were verified.
        names: The records.

    Raises:
        ArchiveError: If the archive is damaged.
    """
    manifest = read_manifest(archive)
    if manifest is None:
        return package_digest(archive)
    records = manifest.records
    # The lengths keep lists of different names from having the same text.
    lines = [f"{records[name].sha256}{len(name)}:{name}" for name in sorted(names)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def find_mismatch(declared: RecordDigest | None, found: RecordDigest) -> str | None:
    """Return how a record differs from its manifest entry, or None if it matches."""
    if declared is None:
        return "the manifest does not list the record"
    if declared.size != found.size:
        return f"the record has {found.size} bytes instead of {declared.size}"
    if declared.sha256 != found.sha256:
        return "the SHA-256 does not match the manifest"
    if declared.deflated and found.deflated and declared.deflated != found.deflated:
        return _RECOMPRESSED
    return None


def _decode_manifest(path: str, content: bytes, archive_bytes: int) -> Manifest:
    max_bytes = layout.max_json_bytes(archive_bytes)
    try:
        # Parsers differ in which of two equal keys counts, and the signature covers only the bytes.
        document = parse_json(content, max_bytes, unique_keys=True)
    except ValueError as error:
        reason = f"the record cannot be read as JSON: {error}"
        raise ArchiveError(path, reason, layout.MANIFEST) from error
    if not isinstance(document, dict):
        raise ArchiveError(path, "the record is not a JSON object", layout.MANIFEST)
    version = document.get("format")
    # First, because a newer format may have changed the meaning of everything else.
    if type(version) is int and version > layout.FORMAT_VERSION:
        raise UnsupportedVersionError(
            path,
            f"the package has format {version}, and this version of modpack supports format "
            f"{layout.FORMAT_VERSION}",
            hint="Install a newer version of modpack.",
        )
    writer, records = document.get("writer"), document.get("records")
    if type(version) is not int or version != layout.FORMAT_VERSION:
        raise ArchiveError(path, "the manifest has no valid format", layout.MANIFEST)
    if not isinstance(writer, str):
        raise ArchiveError(path, "the manifest has no valid writer", layout.MANIFEST)
    if document.get("digest") != "sha256":
        raise ArchiveError(path, "the digest algorithm is not sha256", layout.MANIFEST)
    if not isinstance(records, list):
        raise ArchiveError(path, "the manifest has no list of records", layout.MANIFEST)
    return Manifest(version, writer, _decode_rows(path, records))


def _is_sha256(text: str) -> bool:
    # Without a regular expression, which each process would compile for its first load.
    return len(text) == 64 and not text.strip("0123456789abcdef")


def _decode_rows(path: str, rows: Sequence[object]) -> dict[str, RecordDigest]:
    listed: dict[str, RecordDigest] = {}
    for row in rows:
        if not (isinstance(row, list) and len(row) in (3, 4) and isinstance(row[0], str)):
            reason = f"the manifest has an invalid row: {str(row)[:80]}"
            raise ArchiveError(path, reason, layout.MANIFEST)
        name, size, *digests = row
        if type(size) is not int or size < 0:
            raise ArchiveError(path, f"the size of {name!r} is not valid", layout.MANIFEST)
        for digest in digests:
            if not (type(digest) is str and _is_sha256(digest)):
                reason = f"a SHA-256 digest of {name!r} is not valid"
                raise ArchiveError(path, reason, layout.MANIFEST)
        # A second row would replace the digests of the first.
        if name in listed:
            raise ArchiveError(path, f"the manifest lists {name!r} twice", layout.MANIFEST)
        if name in layout.UNLISTED:
            raise ArchiveError(path, f"the manifest must not list {name!r}", layout.MANIFEST)
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
    """Check an archive against its manifest; see :func:`find_damage`.

    Raises:
        ArchiveError: If the archive differs. The reason lists every difference.
    """
    problems = find_damage(archive, manifest, names, workers, with_crc=with_crc)
    # Repacking changes many records at once. One error about the file is clearer than a list.
    if any(map(is_repacked, problems.values())):
        raise RepackedError(archive.path, REPACKED, hint=REPACKED_HINT)
    if problems:
        differences = listed((f"{name!r}: {why}" for name, why in problems.items()), between="; ")
        verb = "records do" if len(problems) > 1 else "record does"
        reason = f"{len(problems)} {verb} not match the manifest: {differences}"
        raise ArchiveError(archive.path, reason)


def is_repacked(reason: str) -> bool:
    """Return whether a reason of :func:`find_damage` only tells that a file was repacked."""
    return reason.endswith(REPACKED)


def find_damage(
    archive: Archive,
    manifest: Manifest,
    names: Iterable[str],
    workers: int = 1,
    *,
    with_crc: bool = True,
) -> dict[str, str]:
    """Return how records differ from the manifest, by record.

    Missing records, undeclared records, and different sizes are always found.

    Args:
        archive: The archive.
        manifest: Its manifest.
        names: The records whose contents are read and compared.
        workers: Number of threads. Hashing releases the GIL.
        with_crc: Whether to check the CRC-32 of storages, which other readers do.
    """
    present = archive.sizes()
    problems = _structural_problems(present, manifest)
    # A missing record, or one of another size, is known to be damaged without reading it.
    todo = [name for name in names if name not in problems and name not in layout.UNLISTED]
    if not todo:
        return problems
    amount = sum(present.get(name, 0) for name in dict.fromkeys(todo))
    with phase("checking digests", ProgressUnit.BYTES, amount) as checking:

        def problem(name: str) -> str | None:
            if not archive.has(name):
                return "no such record"
            has_crc = with_crc or not layout.is_storage(name)
            found = archive.digest(name, checking.advance, with_crc=has_crc)
            return find_mismatch(manifest.records.get(name), found)

        return {**problems, **_find_problems(present, todo, workers, problem)}


def find_unreadable(archive: Archive, names: Sequence[str], workers: int = 1) -> dict[str, str]:
    """Return why records cannot be read, by record. This check needs no manifest.

    Reading a record of a zip checks its headers and its CRC-32.

    Args:
        archive: The archive.
        names: The records to read.
        workers: Number of threads.
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
    find_problem: Callable[[str], str | None],
) -> dict[str, str]:
    """Return the problems that ``find_problem`` returns or raises, by record."""

    def check_batch(batch: Sequence[str]) -> dict[str, str]:
        found = {}
        for name in batch:
            try:
                reason = find_problem(name)
            except ArchiveError as error:
                reason = error.reason
            if reason is not None:
                found[name] = reason
        return found

    batches = _batches(sizes, names) if workers > 1 else []
    if len(batches) < 2:
        return check_batch(names)
    threads = ThreadPool(min(workers, len(batches)))
    try:
        found = [threads.run(check_batch, batch) for batch in batches]
        reasons = {name: reason for each in found for name, reason in each.result().items()}
    finally:
        threads.close()
    # In the order of the names, whatever the number of threads and the sizes.
    return {name: reasons[name] for name in names if name in reasons}


def _batches(sizes: Mapping[str, int], names: Sequence[str]) -> list[list[str]]:
    """Group records, largest first: handing over a small one costs more than reading it."""
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
    """Return which records are missing, undeclared, or of the wrong size."""
    problems = {}
    for name in sorted((present.keys() | manifest.records.keys()) - set(layout.UNLISTED)):
        size, declared = present.get(name), manifest.records.get(name)
        if size is None:
            problems[name] = "the record is missing"
        elif declared is None or declared.size != size:
            problems[name] = find_mismatch(declared, RecordDigest(size, "")) or ""
    return problems
