"""JSON documents of the commands that have no facts of their own, and their text.

The facts in other modules, such as ``AuditFacts`` and ``PackageDifferences``, are the documents of
their commands. The annotations of a document describe its keys, and the ``Attributes`` of its
docstring explain them. ``make schemas`` writes the JSON schemas in ``docs/reference/json`` from
both. Under one schema number, keys are only added. A change that could mislead a reader of the
present documents increments :data:`SCHEMA`.

Types of other modules are imported for type checking only, so that printing one document does not
import the modules of all others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar

from modpack.core.codec import record_to_json

if TYPE_CHECKING:
    from modpack.core.observations import Observations
    from modpack.core.selftest import SelfTestRecord
    from modpack.diagnostics import Diagnostic
    from modpack.report.facts import (
        ModuleFacts,
        PackageFacts,
        PlanFacts,
        ResourceFacts,
    )

SCHEMA: Final = 1

_T = TypeVar("_T")


def dumps(document: object) -> str:
    """Return a document as JSON text, in ASCII and with a newline at the end."""
    return json.dumps({"schema": SCHEMA, **record_to_json(document)}, indent=2) + "\n"


def pick(kind: type[_T], facts: object, **more: object) -> _T:
    """Return a record with the attributes of other facts that have the names of its fields."""
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return kind(**{name: more[name] if name in more else getattr(facts, name) for name in fields})


class ErrorFacts(NamedTuple):
    """An error that ended a command.

    Attributes:
        type: Class of the exception.
        message: The problem, its location and its fix, for people.
        hint: How to fix it. Empty if modpack knows no fix.
        traceback: Traceback of the user's own code with ``--debug``, or null.
    """

    type: str
    message: str
    hint: str = ""
    traceback: str | None = None


class ErrorDocument(NamedTuple):
    """The document of a command that could not do its work.

    Attributes:
        error: The error.
    """

    error: ErrorFacts


class PackageDocument(NamedTuple):
    """A package, or a plan of one.

    Attributes:
        package: The package. Null if none was written.
        modules: All modules that the package contains or needs, sorted by path.
        problems: Reasons why the package cannot be written. Empty for a package.
        notes: Hazards and remarks.
        files: Files that were included with the code.
    """

    package: PackageFacts | None
    modules: tuple[ModuleFacts, ...]
    problems: tuple[Diagnostic, ...]
    notes: tuple[Diagnostic, ...]
    files: tuple[ResourceFacts, ...]


def package_document(facts: PackageFacts) -> PackageDocument:
    """Return the document of a package."""
    files = tuple(each for each in facts.resources if each.kind.comes_with_code)
    return PackageDocument(facts, facts.modules, (), facts.notes, files)


def plan_document(facts: PlanFacts) -> PackageDocument:
    """Return the document of a plan."""
    return pick(PackageDocument, facts, package=None)


class NotesDocument(NamedTuple):
    """The notes of a package.

    Attributes:
        notes: Hazards and remarks.
    """

    notes: tuple[Diagnostic, ...]


class RecordSize(NamedTuple):
    """A record of a package.

    Attributes:
        record: Its name.
        size_bytes: Its size, uncompressed.
    """

    record: str
    size_bytes: int


class TreeDocument(NamedTuple):
    """The records of a package.

    Attributes:
        records: The records, in the order in which they are stored.
    """

    records: tuple[RecordSize, ...]


class SourceDocument(NamedTuple):
    """The source of a packaged module.

    Attributes:
        module: Path of the module.
        record: Record that contains the source.
        source: The source text.
    """

    module: str
    record: str
    source: str


class SelfTestDocument(NamedTuple):
    """A repeated self-test.

    Attributes:
        path: The package, as the user named it.
        passed: Whether the package loaded and computed the recorded output.
        reason: Why the self-test failed, or null.
        details: Lines with the details of the failure.
        log: End of the output to stdout and stderr, if the self-test failed.
        seconds: Duration in seconds.
        recorded: The self-test as recorded at export.
        observations: What this repetition showed.
    """

    path: str
    passed: bool
    reason: str | None
    details: tuple[str, ...]
    log: str
    seconds: float
    recorded: SelfTestRecord
    observations: Observations


class SkippedRow(NamedTuple):
    """A row that could not be run.

    Attributes:
        path: File of the row, as the user named it.
        row: Number of the row in the file, from 1.
        line: Line of a text file where the row starts, from 1; null for other files.
        reason: The problem.
    """

    path: str
    row: int
    line: int | None
    reason: str


class OutputFacts(NamedTuple):
    """One output of all rows.

    Attributes:
        name: Its name in the call signature.
        type: The dtype of a tensor, or the type of a plain value.
        shape: Dimensions of a tensor, the rows first. Null if they differ between rows, and for
            plain values.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None


class RunDocument(NamedTuple):
    """A run of a package on files.

    Attributes:
        path: The package, as the user named it.
        output_path: The file of outputs. Null if none was written.
        device: Device of the inputs.
        rows: Number of rows that were run.
        skipped: Rows that were skipped.
        outputs: The outputs.
        seconds: Duration in seconds.
    """

    path: str
    output_path: str | None
    device: str
    rows: int
    skipped: tuple[SkippedRow, ...]
    outputs: tuple[OutputFacts, ...]
    seconds: float


class KeygenDocument(NamedTuple):
    """A key for signing packages.

    Attributes:
        key_id: SHA-256 of the public key, in hex.
        private_key: File of the private key.
        public_key: File of the public key.
        encrypted: Whether the private key is encrypted.
    """

    key_id: str
    private_key: str
    public_key: str
    encrypted: bool


class SignDocument(NamedTuple):
    """A signed package.

    Attributes:
        path: The package, as the user named it.
        digest: Digest of the package, which the signature covers.
        key_id: Key of the new signature.
        placement: Whether the signature is in the package or in a separate file.
        signature_path: File that contains the signature: the package itself if embedded.
        key_ids: Keys of all signatures, in order.
    """

    path: str
    digest: str
    key_id: str
    placement: Literal["embedded", "detached"]
    signature_path: str
    key_ids: tuple[str, ...]


class SeverityCounts(NamedTuple):
    """Numbers of findings.

    Attributes:
        error: Number of errors.
        warning: Number of warnings.
        info: Number of remarks.
    """

    error: int
    warning: int
    info: int


class ReportDocument(NamedTuple):
    """The HTML report of a package.

    Attributes:
        path: The package, as the user named it.
        report_path: The HTML file.
        size_bytes: Size of the HTML file.
        modules: Number of modules that the package contains or needs.
        findings: Number of findings by severity.
    """

    path: str
    report_path: str
    size_bytes: int
    modules: int
    findings: SeverityCounts


@dataclass(frozen=True)
class CachedEntry:
    """An unpacked package in the cache, or a virtual environment of ``--isolated``.

    Attributes:
        kind: Its kind.
        digest: Digest of the unpacked files, or of the requirements of an environment.
        name: Name of the package file, or null if unknown.
        files: Number of files, including bytecode.
        size_bytes: Size of the files.
        last_used: Time of the last use, in UTC (ISO 8601).
    """

    kind: Literal["package", "environment"]
    digest: str
    name: str | None
    files: int
    size_bytes: int
    last_used: str


class CachedScans(NamedTuple):
    """Cached scans of sources, which exports reuse.

    Attributes:
        files: Number of scans.
        size_bytes: Size of the scans.
    """

    files: int
    size_bytes: int


class CacheListDocument(NamedTuple):
    """The contents of the cache.

    Attributes:
        folder: The cache folder.
        entries: The unpacked packages and the environments, most recently used first.
        scans: The cached scans.
    """

    folder: str
    entries: tuple[CachedEntry, ...]
    scans: CachedScans


class CacheClearDocument(NamedTuple):
    """What was removed from the cache.

    Attributes:
        folder: The cache folder.
        removed: The removed entries.
        in_use: Entries that were not removed because a process uses them.
        scans: The removed scans.
        leftovers: Number of incomplete entries of ended processes that were removed.
        freed_bytes: Size of everything that was removed.
    """

    folder: str
    removed: tuple[CachedEntry, ...]
    in_use: tuple[CachedEntry, ...]
    scans: CachedScans
    leftovers: int
    freed_bytes: int


InspectDocument: TypeAlias = PackageDocument | NotesDocument | TreeDocument | SourceDocument
"""What ``modpack inspect`` prints: by default, with ``--notes``, ``--tree`` and ``--source``."""
