"""Text of ``modpack why``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.core.rules import UNRECORDED, Owner
from modpack.core.scan import ImportKind
from modpack.core.text import counted, printable
from modpack.report.format import elided, indented, table, title
from modpack.report.text import STYLES
from modpack.report.why import ImportLink, ModuleStatus, Why

_STATUSES: Final = {
    ModuleStatus.DECIDED: "",
    ModuleStatus.EXCLUDED: "excluded: packaged code finds it absent",
    ModuleStatus.TYPE_CHECKING_ONLY: "not needed: only code that never runs imports it, such as "
    "code under `if TYPE_CHECKING`",
    ModuleStatus.UNDECIDED: "imported by packaged code, but neither in the package nor extern",
}
_MAX_NAMES: Final = 6
_MAX_LOCATIONS: Final = 8


def why_report(found: Why) -> RenderableType:
    """Return the report of ``modpack why``."""
    return Group(
        _head(found),
        *_facts(found),
        *_with_blank_line(_chains(found)),
        *_with_blank_line(_importers(found)),
    )


def _with_blank_line(part: Iterable[RenderableType]) -> list[RenderableType]:
    lines = list(part)
    return ["", *lines] if lines else []


def _head(found: Why) -> RenderableType:
    name = printable(found.module)
    if found.action is None:
        return Text.assemble((name, "bold"), "  ", (_STATUSES[found.status], "yellow"))
    style = f"bold {STYLES[found.action]}"
    return Text.assemble((name, "bold"), "  ", (found.action.past, style))


def _facts(found: Why) -> Iterator[RenderableType]:
    rows = list(_rows(found))
    if rows:
        columns = table(("dim", "left"), ("", "left"))
        for label, value in rows:
            columns.add_row(label, printable(value))
        yield indented(columns, 2)


def _rows(found: Why) -> Iterator[tuple[str, str]]:
    if found.action is not None:
        yield "rule", found.rule or UNRECORDED
    if found.overridden_by is not None:
        yield "overridden", f"by the hook {found.overridden_by}"
    if others := [hook for hook in found.hooks if hook != found.overridden_by]:
        yield "hooks called", ", ".join(others)
    if found.provided_by is Owner.STDLIB:
        yield "provided by", "the standard library"
    elif found.distribution is not None:
        editable = ", an editable install" if found.provided_by is Owner.LOCAL else ""
        name = " ".join(filter(None, (found.distribution, found.version)))
        yield "provided by", name + editable
    if found.observed is not None:
        yield "self-test", f"{found.observed} (recorded by the package)"
    if found.imported is not None:
        yield "imported", found.imported
    for note in found.notes:
        yield "note", str(note)


def _chains(found: Why) -> Iterator[RenderableType]:
    if not found.chains and found.omitted:
        yield Text("The import chains that lead to it are too long to show.")
        return
    if not found.chains:
        if found.status is not ModuleStatus.TYPE_CHECKING_ONLY:
            why = "; the rule gives the reason" if found.rule else ""
            if found.action is not None and not found.rule:
                why = ": torch.package does not record imports"
            yield Text(f"No import in the package leads to it{why}.")
        return
    number = len(found.chains)
    several = f"chains from each of {number} saved objects" if number > 1 else "chain"
    yield title(f"the shortest import {several}", "blue")
    for chain in found.chains:
        # A chain without links starts at the module itself.
        remark = "" if chain.links else "  saved by name"
        yield indented(Text.assemble(printable(chain.start), (remark, "dim")), 2)
        rows = table(("", "left"), ("", "left"), ("dim", "left"))
        for link in chain.links:
            rows.add_row(f"-> {printable(link.imported)}", link.kind.value, _evidence(link))
        yield indented(rows, 4)
    if found.omitted:
        text = f"and chains from {counted(found.omitted, 'more saved object')}"
        yield indented(Text(text, "dim"), 2)


def _evidence(link: ImportLink) -> str:
    """Return the location of a link, and the imported names."""
    if link.kind is ImportKind.PICKLE:
        # A function that is saved as source names only its module.
        return printable(f"contains {elided(link.names, _MAX_NAMES) or 'objects of it'}")
    if link.kind is ImportKind.PARENT:
        return printable(f"contains {link.importer}")
    names = f"  {elided(link.names, _MAX_NAMES)}" if link.names else ""
    others = f"  (and {counted(link.others, 'more location')})" if link.others else ""
    return printable(f"{link.location}{names}{others}")


def _importers(found: Why) -> Iterator[RenderableType]:
    """Yield the direct importers of the module that no chain shows."""
    shown = {chain.links[-1].location for chain in found.chains if chain.links}
    locations = [
        f"{each.location} ({each.kind.value})"
        for each in found.importers
        if each.kind not in (ImportKind.PARENT, ImportKind.PICKLE) and each.location not in shown
    ]
    # One line may import several names of the module.
    locations = list(dict.fromkeys(locations))
    if not locations:
        return
    # Nothing was listed before, so nothing is more.
    is_first = found.status is ModuleStatus.TYPE_CHECKING_ONLY
    noun = "location" if is_first else "more location"
    verb = "imports" if len(locations) == 1 else "import"
    yield title(f"{counted(len(locations), noun)} {verb} it", "blue")
    for location in locations[:_MAX_LOCATIONS]:
        yield indented(Text(printable(location)), 2)
    if (more := len(locations) - _MAX_LOCATIONS) > 0:
        yield indented(Text(f"and {more:,} more; --json lists them", "dim"), 2)
