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
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeGuard, cast

from modpack._version import __version__
from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.core.jsonvalues import parse_json
from modpack.errors import ArchiveError, UnsupportedVersionError

__all__ = [
    "Manifest",
    "RecordDigest",
    "canonical_json",
    "contents_digest",
    "encode_manifest",
    "mismatch",
    "package_digest",
    "read_manifest",
]

_SHA256_LENGTH: Final = 64
_HEX: Final = re.compile(r"[0-9a-f]*")
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


@dataclass(frozen=True)
class Manifest:
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
    return set(map(len, texts)) <= {_SHA256_LENGTH} and bool(_HEX.fullmatch("".join(texts)))
