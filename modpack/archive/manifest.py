"""The manifest: what every record of a package is supposed to contain.

It stands in ``.data/modpack/manifest.json`` and lists all records but itself and its digest:

.. code-block:: json

    {
        "digest": "sha256",
        "format": 1,
        "records": {"pkg/a.py": {"sha256": "...", "size": 17}},
        "writer": "modpack 0.1"
    }

in canonical JSON: UTF-8, keys sorted by code point, no blanks, no final newline. The sha256 of
those bytes, in ``.data/modpack/manifest.sha256``, is the package's digest: two packages with
the same digest have the same contents, whatever their files are called.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.core.progress import Phase, Unit, phase
from modpack.errors import ArchiveError, UnsupportedVersionError

__all__ = [
    "Manifest",
    "RecordDigest",
    "canonical_json",
    "encode_manifest",
    "find_damage",
    "package_digest",
    "read_manifest",
    "verify_records",
]

_OUTSIDE: Final = frozenset((layout.MANIFEST, layout.MANIFEST_DIGEST))
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RecordDigest:
    """What a record should contain.

    Attributes:
        size: in bytes, uncompressed.
        sha256: of the content, in hex.
    """

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a package says about itself.

    Attributes:
        format: version of modpack's format.
        writer: the program that wrote it (``modpack 0.1``).
        records: every record but the manifest and its digest.
    """

    format: int
    writer: str
    records: Mapping[str, RecordDigest]

    def check(self, source: str, name: str, content: bytes | memoryview) -> None:
        """Compares a record's content with what is declared.

        Raises:
            ArchiveError: the record is undeclared, or has another size or digest.
        """
        if name in _OUTSIDE:
            return
        found = RecordDigest(len(content), hashlib.sha256(content).hexdigest())
        reason = _mismatch(self.records.get(name), found)
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
    listed = {
        name: {"size": record.size, "sha256": record.sha256}
        for name, record in records.items()
        if name not in _OUTSIDE
    }
    return canonical_json(
        {
            "format": layout.FORMAT_VERSION,
            "writer": f"modpack {_own_version()}",
            "digest": "sha256",
            "records": listed,
        }
    )


def read_manifest(archive: Archive) -> Manifest | None:
    """The package's manifest; None for packages that torch.package wrote.

    Raises:
        UnsupportedVersionError: the format is newer than this modpack.
        ArchiveError: the manifest is damaged or missing though the package is modpack's.
    """
    if not archive.has(layout.MANIFEST):
        strays = [name for name in archive.names() if name.startswith(layout.MODPACK_PREFIX)]
        if strays:
            raise ArchiveError(archive.source, f"there is {strays[0]!r} but no {layout.MANIFEST!r}")
        return None
    content = archive.read(layout.MANIFEST)
    declared = archive.read(layout.MANIFEST_DIGEST)
    if declared != hashlib.sha256(content).hexdigest().encode("ascii"):
        reason = f"it does not have the digest in {layout.MANIFEST_DIGEST!r}"
        raise ArchiveError(archive.source, reason, layout.MANIFEST)
    return _decode_manifest(archive.source, content)


def package_digest(archive: Archive) -> str:
    """A hex digest that names the package's content, whatever its file is called.

    For modpack's packages it is the manifest's sha256. For others it is the sha256 over all
    records, sorted by name: name, size and the content's sha256, but for tensor storages name,
    size and crc32, so that gigabytes need not be read.

    Raises:
        ArchiveError: the archive is damaged.
    """
    if read_manifest(archive) is not None:
        return hashlib.sha256(archive.read(layout.MANIFEST)).hexdigest()
    lines = [
        [name, archive.size(name), _content_key(archive, name)] for name in sorted(archive.names())
    ]
    return hashlib.sha256(canonical_json(lines)).hexdigest()


def verify_records(archive: Archive, manifest: Manifest, names: Iterable[str]) -> None:
    """Compares an archive with its manifest.

    That every declared record is there in its size, and nothing else, is always checked; the
    contents of ``names`` are read and compared as well.

    Raises:
        ArchiveError: the archive differs; the reason lists every difference.
    """
    problems = find_damage(archive, manifest, names)
    if problems:
        listed = "; ".join(f"{name!r}: {reason}" for name, reason in problems.items())
        count = f"{len(problems)} record{'s' if len(problems) > 1 else ''}"
        raise ArchiveError(archive.source, f"{count} not as the manifest says: {listed}")


def find_damage(
    archive: Archive, manifest: Manifest, names: Iterable[str], workers: int = 1
) -> dict[str, str]:
    """What of an archive is not as its manifest says, by record.

    Args:
        archive: the archive.
        manifest: its manifest.
        names: the records whose contents are read and compared.
        workers: threads that do so at the same time; digests let go of Python's lock.
    """
    present = set(archive.names()) - _OUTSIDE
    problems = {
        name: reason
        for name in sorted(present | set(manifest.records))
        if (reason := _structural_problem(archive, manifest, name, name in present))
    }
    todo = [name for name in names if name not in problems and name not in _OUTSIDE]
    sizes = {name: archive.size(name) for name in todo if archive.has(name)}
    if todo:
        with phase("checking digests", Unit.BYTES, sum(sizes.values())) as checking:
            problems.update(_read_all(archive, manifest, todo, workers, checking))
    return problems


def _read_all(
    archive: Archive, manifest: Manifest, names: Sequence[str], workers: int, checking: Phase
) -> Iterator[tuple[str, str]]:
    """What is wrong with the contents of records."""

    def problem(name: str) -> str | None:
        found = _content_problem(archive, manifest, name)
        checking.advance(archive.size(name) if archive.has(name) else 0)
        return found

    if workers == 1:
        reasons = list(map(problem, names))
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers) as pool:
            reasons = list(pool.map(problem, names))
    yield from ((name, reason) for name, reason in zip(names, reasons, strict=True) if reason)


def _structural_problem(
    archive: Archive, manifest: Manifest, name: str, is_present: bool
) -> str | None:
    declared = manifest.records.get(name)
    if not is_present:
        return "it is missing"
    if declared is not None and archive.size(name) == declared.size:
        return None
    return _mismatch(declared, RecordDigest(archive.size(name), ""))


def _content_problem(archive: Archive, manifest: Manifest, name: str) -> str | None:
    if not archive.has(name):
        return "there is no such record"
    size, sha256 = 0, hashlib.sha256()
    try:
        for chunk in archive.chunks(name):
            size += len(chunk)
            sha256.update(chunk)
    except ArchiveError as error:
        return error.reason
    return _mismatch(manifest.records.get(name), RecordDigest(size, sha256.hexdigest()))


def _mismatch(declared: RecordDigest | None, found: RecordDigest) -> str | None:
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


def _decode_manifest(source: str, content: bytes) -> Manifest:
    try:
        document: object = json.loads(content, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
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
    if not (type(version) is int and version >= 1 and isinstance(writer, str)):
        raise ArchiveError(source, "it states no format or no writer", layout.MANIFEST)
    if document.get("digest") != "sha256" or not isinstance(records, dict):
        raise ArchiveError(source, "it states no sha256 records", layout.MANIFEST)
    decoded = {str(name): _decode_record(source, name, value) for name, value in records.items()}
    return Manifest(version, writer, decoded)


def _decode_record(source: str, name: str, value: object) -> RecordDigest:
    if isinstance(value, dict):
        size, sha256 = value.get("size"), value.get("sha256")
        if type(size) is int and isinstance(sha256, str) and _SHA256.fullmatch(sha256):
            return RecordDigest(size, sha256)
    raise ArchiveError(source, f"it states no size or no sha256 for {name!r}", layout.MANIFEST)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is there twice")
    return document


def _own_version() -> str:
    import importlib.metadata  # not cheap, and readers do without

    try:
        return importlib.metadata.version("modpack")
    except importlib.metadata.PackageNotFoundError:  # used from a source tree
        return "unknown"
