"""Where packaged code is, for people: the records, or the files, of modules."""

from __future__ import annotations

from collections.abc import Mapping

from modpack.core.imports import ImportKind
from modpack.report.auditing.facts import AuditFacts, MockFacts
from modpack.report.facts import ImporterFacts

__all__ = ["files_of", "importers_by_name", "place_in"]


def files_of(audit: AuditFacts) -> dict[str, str]:
    """The record of each module's code; for a plan its file, as far as something needs it."""
    files = {facts.module: facts.record for facts in audit.modules if facts.record is not None}
    for facts in audit.modules:
        files.update((i.importer, i.file) for i in facts.importers if i.file is not None)
    return files


def place_in(files: Mapping[str, str], module: str, line: int | None) -> str:
    """``file:line``, or what of it is known."""
    file = files.get(module, module.strip("<>"))
    return file if line is None else f"{file}:{line}"


def importers_by_name(mock: MockFacts) -> tuple[ImporterFacts, ...]:
    """Who imports a mocked module itself, not just one that it contains, in code that can run."""
    return tuple(
        each
        for each in mock.importers
        if each.kind.is_dependency and each.kind is not ImportKind.PARENT
    )
