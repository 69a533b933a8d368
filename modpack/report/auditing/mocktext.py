"""The mocked modules of an audit, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from modpack.core.usage import MockRisk, NameUse, TouchKind, UseKind
from modpack.report.auditing.facts import AuditFacts, MockFacts
from modpack.report.auditing.places import files_of, importers_by_name, place_in
from modpack.report.pieces import indented, relative, table, title
from modpack.report.wording import counted, printable

__all__ = ["how_used", "mocks_part", "trial_told"]

_RISK_STYLES = {
    MockRisk.REACHABLE: "bold red",
    MockRisk.IMPORT_TIME: "yellow",
    MockRisk.UNUSED: "green",
}
_SHOWN_PLACES = 8
_SHOWN_USES = 20
_HOW = {
    UseKind.BASE_CLASS: "a base class",
    UseKind.DECORATOR: "a decorator",
    UseKind.CALL: "called when its importer is imported",
    UseKind.VALUE: "a value when its importer is imported",
    UseKind.ANNOTATION: "in an annotation",
}


def mocks_part(audit: AuditFacts, folder: Path | None) -> Iterator[RenderableType]:
    """Each mocked module: who imports it, what is used of it where, what the trial did with it.

    Args:
        audit: the audit.
        folder: files below it are shown relative to it.
    """
    if not audit.mocks:
        return
    files = files_of(audit)
    yield ""
    yield title(f"mocked: {counted(len(audit.mocks), 'module')}", "yellow")
    for mock in audit.mocks:
        head = Text.assemble((printable(mock.module), "bold"), "  ")
        head.append(mock.risk.value, _RISK_STYLES[mock.risk])
        head.append(f"  {printable(mock.rule or 'rule not recorded')}", "dim")
        yield indented(head, 2)
        yield from (indented(each, 4) for each in _details(mock, files, folder))


def how_used(use: NameUse) -> str:
    """How a name is used at one place, in a few words."""
    scope = f" {use.scope}" if use.scope else ""
    if not use.kind.is_at_import:
        asked = "asked about " if use.kind is UseKind.CHECK else ""
        how = f"{asked}in the function{scope}" + ("" if use.is_live else ", which nothing calls")
    else:
        how = _HOW[use.kind] + (f", in{scope}" if scope else "")
        how += "; what is made with it can be called" if use.is_called_later else ""
    return how + (f"; through {', '.join(use.via)}" if use.via else "")


def trial_told(mock: MockFacts) -> str:
    """What the trial run did with a mocked module, in one line."""
    if not mock.is_tried:
        return "there was no trial run"
    used = [touch for touch in mock.touches if touch.kind is TouchKind.USED]
    if used:
        done = [
            f"{touch.name or mock.module} {touch.operation or 'was used'}"
            + (f" ({touch.place})" if touch.place else "")
            for touch in used
        ]
        return f"the trial run used it: {', '.join(dict.fromkeys(done))}"
    names = [touch.name for touch in mock.touches if touch.kind is TouchKind.NAMED]
    if any(names):
        return f"the trial run took names from it: {', '.join(dict.fromkeys(filter(None, names)))}"
    if mock.touches:
        return "the trial run imported it, and no more"
    return "the trial run did not touch it"


def _details(
    mock: MockFacts, files: Mapping[str, str], folder: Path | None
) -> Iterator[RenderableType]:
    importers = importers_by_name(mock)
    if importers:
        shown = importers[:_SHOWN_PLACES]
        places = [f"{relative(each.place, folder)} ({each.kind.value})" for each in shown]
        more = len(importers) - len(shown)
        text = f"imported by {', '.join(places)}" + (f" and {more} more" if more else "")
        yield Text(printable(text))
    if mock.uses:
        yield _uses(mock.uses, files, folder)
    elif importers:
        yield Text("nothing of it is used", "dim")
    yield Text(printable(trial_told(mock)), "dim")


def _uses(uses: Sequence[NameUse], files: Mapping[str, str], folder: Path | None) -> RenderableType:
    rows = table(("", "left"), ("", "left"), ("dim", "left"))
    for use in uses[:_SHOWN_USES]:
        place = relative(place_in(files, use.importer, use.line), folder)
        name = f"{use.module}.{use.name}" if use.name else use.module
        rows.add_row(printable(place), printable(name), printable(how_used(use)))
    left = len(uses) - _SHOWN_USES
    if left > 0:
        rows.add_row("", f"{left} more", "--json lists them")
    return rows
