"""Files that go along with the code, and the list of what the package holds of a distribution."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import replace

from modpack.archive import layout
from modpack.archive.recordnames import NameRegistry, why_unsafe
from modpack.archive.writer import ArchiveWriter
from modpack.core.plan import Note, NoteKind, Plan, PlannedDistribution, PlannedFile
from modpack.discovery.walk import Walker
from modpack.errors import ModpackError
from modpack.packing.records import interned_records, mocked_records

__all__ = ["with_room", "write_files"]


def with_room(plan: Plan, walker: Walker, taken: Iterable[str]) -> Plan:
    """The plan without files whose records are taken: what the user saved comes first.

    Args:
        plan: what will be written.
        walker: knows the sources.
        taken: the records that are there already: the saved resources.
    """
    registry = NameRegistry()
    saved = frozenset(taken)
    for name in (*saved, *interned_records(plan, walker).values(), *mocked_records(plan).values()):
        registry.add(name)
    files, notes = [], []
    for file in plan.files:
        if file.record in saved:
            continue
        reason = _why_impossible(file.record) or registry.add(file.record)
        if reason is None:
            files.append(file)
        else:
            text = f"{file.source} is left out: its record would be {file.record}, but {reason}"
            notes.append(Note(NoteKind.FILES_LEFT_OUT, file.owner, text))
    return replace(plan, files=tuple(files), notes=(*plan.notes, *notes))


def _why_impossible(record: str) -> str | None:
    if layout.is_internal(record):
        return "that is a name which the archive format needs itself"
    return why_unsafe(record)


def write_files(plan: Plan, walker: Walker, writer: ArchiveWriter) -> None:
    """Write the files of a plan, and a RECORD (PEP 376) of each distribution's part.

    Raises:
        ModpackError: a file cannot be read any more.
    """
    sources = interned_records(plan, walker)
    sums: dict[str, tuple[str, int]] = {}
    for file in plan.files:
        content = _read(file)
        sums[file.record] = _sum(content)
        writer.write(file.record, content, compress=True)
    for distribution in (each for each in plan.distributions if each.modules):
        for module in distribution.modules:
            if module in sources:
                sums[sources[module]] = _sum(walker.source(module))
        mine = {sources[m] for m in distribution.modules if m in sources}
        mine |= {file.record for file in plan.files if _is_of(file, distribution)}
        record = f"{distribution.folder}/RECORD"
        if not writer.has(record):
            writer.write(record, _listing(record, {r: sums[r] for r in mine}), compress=True)


def _read(file: PlannedFile) -> bytes:
    try:
        with open(file.source, "rb") as opened:  # noqa: PTH123 - there may be many
            return opened.read()
    except OSError as failure:
        raise ModpackError(f"{file.source} was to go along, but {failure.strerror}") from failure


def _is_of(file: PlannedFile, distribution: PlannedDistribution) -> bool:
    return file.owner == distribution.name or file.owner in distribution.modules


def _sum(content: bytes) -> tuple[str, int]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}", len(content)


def _listing(own_record: str, sums: dict[str, tuple[str, int]]) -> bytes:
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerows((record, *sums[record]) for record in sorted(sums))
    table.writerow((own_record, "", ""))
    return lines.getvalue().encode()
