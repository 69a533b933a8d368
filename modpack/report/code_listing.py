"""The code of a package, told: which records, which names of pickles, what sources openly do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.archive.manifest import Manifest
from modpack.core.scan import ScanFailure
from modpack.pickling.allowlist import is_dangerous
from modpack.report.audit_facts import Finding
from modpack.report.finding_codes import finding
from modpack.security.code_effects import import_effects, read_effects
from modpack.security.code_listing import CodeListing
from modpack.security.pickle_names import PickledSource

_TRIALS: Final = layout.MODPACK_PREFIX + "trial/"
"""Examples: verifying holds them against the record of the trial."""


def pickle_findings(
    archive: Archive, manifest: Manifest | None, listing: CodeListing
) -> Iterator[Finding]:
    """What is wrong with the pickles of a package, whatever they do.

    Args:
        archive: an opened package.
        manifest: its manifest; None for a package of torch.package.
        listing: what of the package is code.
    """
    hooks = {hook_records(record)[1]: record for record in listing.objects}
    broken = {name for name, each in listing.pickles.items() if each.unreadable is not None}
    known = {*listing.objects, *hooks}
    for record in listing.objects:
        if not archive.has(record):
            text = f"{record} is a saved object, and is not there"
            yield finding("pickle-missing", record, text, record)
    for record, contents in listing.pickles.items():
        owner = hooks.get(record, record)
        is_own = owner == record or (archive.has(owner) and owner not in broken)
        if contents.unreadable is not None and is_own:  # hooks go on where their object ends
            place = f"{record}, byte {contents.position}"
            yield finding("pickle-malformed", record, f"{record}: {contents.unreadable}", place)
        if manifest is not None and record not in known and not record.startswith(_TRIALS):
            text = f"{record} is a pickle, and no saved object of the package"
            yield finding("pickle-undeclared", record, text, record)


def source_findings(archive: Archive, listing: CodeListing) -> Iterator[Finding]:
    """What the code of a package openly does: names that stand out, effects of sources.

    Args:
        archive: an opened package.
        listing: what of it is code.

    Raises:
        ArchiveError: a record is damaged.
    """
    for record, names in listing.names().items():
        for name in names:
            if is_dangerous(name.module, name.name):
                text = f"{record} names {name}, which no honest package needs to"
                place = f"{record}, byte {name.position}"
                yield finding("pickle-dangerous-name", str(name), text, place)
    for record, contents in listing.pickles.items():
        for source in contents.sources:
            yield from _function_effects(record, source)
    for record in listing.sources:
        yield from _module_effects(record, archive.read(record))


def _function_effects(record: str, source: PickledSource) -> Iterator[Finding]:
    """What a function that travels by its source does when it is called."""
    text = textwrap.dedent(source.text)
    is_definition = text.lstrip().startswith(("def ", "async def "))
    called = source.name.rpartition(".")[2]
    for effect in import_effects(f"{text}\n{called}()\n" if is_definition else text):
        line = source.line + effect.line - 1
        told = f"{source.name} calls {effect.call} (line {line} of its source)"
        yield finding(f"code-{effect.kind.value}", source.name, told, record)


def _module_effects(record: str, source: bytes) -> Iterator[Finding]:
    """What a module does when it is imported, as far as its source shows."""
    effects = read_effects(source)
    if isinstance(effects, ScanFailure):
        place = f"{record}:{effects.line}" if effects.line is not None else record
        text = f"what {record} does when it is imported is unknown: {effects.reason}"
        yield finding("source-unreadable", record, text, place)
        return
    for effect in effects:
        where = f" in {effect.within}" if effect.within else ""
        text = f"{record} calls {effect.call}{where} when it is imported"
        place = f"{record}:{effect.line}"
        yield finding(f"import-effect-{effect.kind.value}", effect.call, text, place)
