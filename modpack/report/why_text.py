"""Why a module is there, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from modpack.core.rules import UNRECORDED
from modpack.core.scan import ImportKind
from modpack.core.text import counted, printable
from modpack.report.format import elided, indented, table, title
from modpack.report.text import STYLES
from modpack.report.why import MAX_COUNTED, FoundChains, ImportLink, ModuleStatus, Why

_STANDINGS: Final = {
    ModuleStatus.DECIDED: "",
    ModuleStatus.LEFT_OUT: "left out: it is absent for the packaged code",
    ModuleStatus.NEVER_RUN: "not needed: only code that never runs imports it, such as what stands "
    "under `if TYPE_CHECKING`",
    ModuleStatus.UNDECIDED: "neither in the package nor extern, although code in it imports it",
}
_MAX_NAMES: Final = 6
_MAX_PLACES: Final = 8


def why_report(found: Why, every_chain: bool) -> RenderableType:
    """Everything about why a module is there.

    Args:
        found: what is known.
        every_chain: whether all chains were looked for, or the shortest ones.
    """
    return Group(
        _head(found),
        *_facts(found),
        *_after_a_blank(_chains(found, every_chain)),
        *(() if every_chain else _after_a_blank(_importers(found))),
    )


def _after_a_blank(part: Iterable[RenderableType]) -> list[RenderableType]:
    lines = list(part)
    return ["", *lines] if lines else []


def _head(found: Why) -> RenderableType:
    name = printable(found.module)
    if found.decision is None:
        return Text.assemble((name, "bold"), "  ", (_STANDINGS[found.standing], "yellow"))
    action = found.decision.action
    return Text.assemble((name, "bold"), "  ", (action.past, f"bold {STYLES[action]}"))


def _facts(found: Why) -> Iterator[RenderableType]:
    rows = list(_rows(found))
    if rows:
        columns = table(("dim", "left"), ("", "left"))
        for label, value in rows:
            columns.add_row(label, printable(value))
        yield indented(columns, 2)


def _rows(found: Why) -> Iterator[tuple[str, str]]:
    decision = found.decision
    if decision is not None:
        yield "rule", str(decision.rule)
        if decision.overridden_by is not None:
            yield "overridden", f"by the hook {decision.overridden_by}"
        others = [hook for hook in decision.hooks if hook != decision.overridden_by]
        if others:
            yield "hooks asked", ", ".join(others)
    if found.provider is not None:
        yield "provided by", found.provider
    for note in found.notes:
        yield "note", str(note)


def _chains(found: Why, every_chain: bool) -> Iterator[RenderableType]:
    chains = found.chains
    if not chains.chains and (chains.more or not chains.is_complete):
        yield Text("imports lead to it, in chains that are too long to show")
        return
    if not chains.chains:
        if found.standing is not ModuleStatus.NEVER_RUN:
            is_ruled = found.decision is not None and found.decision.rule.label != UNRECORDED
            why = "; its rule says why it is there" if is_ruled else ", as far as can be read"
            yield Text(f"no import in the package leads to it{why}")
        return
    yield title(_title(found, every_chain), "blue")
    for chain in chains.chains:
        told = "" if chain.steps else "  saved by name"
        yield indented(Text.assemble(printable(chain.start), (told, "dim")), 2)
        rows = table(("", "left"), ("", "left"), ("dim", "left"))
        for step in chain.steps:
            rows.add_row(f"-> {printable(step.imported)}", step.kind.value, _evidence(step))
        yield indented(rows, 4)
    yield from (indented(Text(text, "dim"), 2) for text in _rest(chains, every_chain))


def _title(found: Why, every_chain: bool) -> str:
    number = len(found.chains.chains)
    if every_chain:
        return f"{counted(number, 'chain')} of imports, the shortest first"
    starts = len({chain.start for chain in found.chains.chains})
    if starts > 1:
        return f"the shortest chains from each of {starts} saved things"
    return f"the shortest {'chain' if number == 1 else 'chains'} of imports"


def _evidence(step: ImportLink) -> str:
    """Where a step shows, and what it takes."""
    if step.kind is ImportKind.PICKLE:
        # Functions that cannot be imported travel by their source, and name their home only.
        return printable(f"holds {elided(step.names, _MAX_NAMES) or 'something of it'}")
    if step.kind is ImportKind.PARENT:
        return printable(f"contains {step.importer}")
    names = f"  {elided(step.names, _MAX_NAMES)}" if step.names else ""
    others = f"  (and {counted(step.others, 'more place')})" if step.others else ""
    return printable(f"{step.place or ''}{names}{others}")


def _rest(chains: FoundChains, every_chain: bool) -> Iterator[str]:
    more = f"{chains.more:,}"
    if not every_chain:
        if chains.as_short:
            at_least = "at least " if chains.as_short == MAX_COUNTED else ""
            yield f"and {at_least}{chains.as_short:,} more that are as short"
        if chains.more:
            yield f"and from {more} more"
    elif chains.is_complete:
        if chains.more:
            yield f"and {more} more"
    elif chains.more:
        yield f"and at least {more} more: there are too many to count"
    else:
        yield "there may be more: the search was given up"


def _importers(found: Why) -> Iterator[RenderableType]:
    """Who imports the module itself, where a chain does not tell already."""
    told = {chain.steps[-1].place for chain in found.chains.chains if chain.steps}
    places = [
        f"{step.place or step.importer} ({step.kind.value})"
        for step in found.importers
        if step.kind is not ImportKind.PARENT and (step.place is None or step.place not in told)
        if step.kind is not ImportKind.PICKLE
    ]
    places = list(dict.fromkeys(places))
    if not places:
        return
    noun = "place" if found.standing is ModuleStatus.NEVER_RUN else "more place"
    verb = "imports" if len(places) == 1 else "import"
    yield title(f"{counted(len(places), noun)} {verb} it", "blue")
    for place in places[:_MAX_PLACES]:
        yield indented(Text(printable(place)), 2)
    if (more := len(places) - _MAX_PLACES) > 0:
        yield indented(Text(f"and {more:,} more; --json lists them", "dim"), 2)
