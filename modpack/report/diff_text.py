"""Text of ``modpack diff``: lines with a style, which are never wrapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from modpack.core.names import root_of
from modpack.core.text import counted, human_size, printable
from modpack.errors import listed
from modpack.report.diff_facts import (
    Change,
    DistributionDifference,
    FieldChange,
    HookDifference,
    ImportDifference,
    ModuleDifference,
    PackageDifferences,
    RecordDifference,
    ResourceDifference,
    SharingDifference,
    TensorDifference,
    TextDifference,
    UseDifference,
    Values,
)
from modpack.report.facts import hook_target, used_name

_MARKS: Final = {
    Change.ADDED: ("+", "green"),
    Change.REMOVED: ("-", "red"),
    Change.CHANGED: ("~", "yellow"),
}
_SOURCE_STYLES: Final = (
    (("--- ", "+++ "), "bold"),
    (("@@",), "cyan"),
    (("+",), "green"),
    (("-",), "red"),
)
_MAX_LINES: Final = 40
_MAX_COLUMNS: Final = 1000
_MANY_ALIKE: Final = 6
"""Number of modules of one library with the same change that share a line."""
_OF_DISTRIBUTIONS: Final = frozenset({"version", "license", "editable"})
"""Fields of modules that the line of their distribution shows."""
_HOOKS: Final = ".data/modpack/hooks/"


class SafeLine(NamedTuple):
    """One line of text without control characters.

    Attributes:
        text: The line, without its end.
        style: Its style in a terminal, as rich names it.
    """

    text: str
    style: str = ""


class _Difference(Protocol):
    @property
    def change(self) -> Change: ...


_T = TypeVar("_T", bound=_Difference)
_Section = tuple[str, str, list[SafeLine]]
"""A title, a summary, and lines."""


def differences_lines(found: PackageDifferences) -> Iterator[SafeLine]:
    """Yield all differences, with the compared sources."""
    yield from _head(found)
    for title, summary, lines in _sections(found):
        yield SafeLine("")
        yield SafeLine(f"{title}: {summary}", "bold")
        room = _MAX_LINES if len(lines) > _MAX_LINES + 1 else len(lines)
        yield from lines[:room]
        if len(lines) > room:
            yield SafeLine(f"    and {len(lines) - room} more; --json lists them", "dim")
    for text in _sources(found):
        yield SafeLine("")
        for number, line in enumerate(text.unified):
            styles = _SOURCE_STYLES if number < 2 else _SOURCE_STYLES[1:]
            style = next((style for marks, style in styles if line.startswith(marks)), "")
            shown = line if len(line) <= _MAX_COLUMNS else f"{line[:_MAX_COLUMNS]}..."
            yield SafeLine(printable(shown, keep="\t"), style)


def statistics_lines(found: PackageDifferences) -> Iterator[SafeLine]:
    """Yield the number of differences, one line for each kind."""
    yield from _head(found)
    sections = list(_sections(found))
    width = max((len(title) for title, _, _ in sections), default=0)
    for title, summary, _ in sections:
        yield SafeLine(f"  {title.ljust(width)}  {summary}")
    texts = _sources(found)
    if texts:
        added, removed = sum(t.added for t in texts), sum(t.removed for t in texts)
        total = f"+{added} -{removed} in {counted(len(texts), 'text')}"
        yield SafeLine(f"  {'lines'.ljust(width)}  {total}")


def _head(found: PackageDifferences) -> Iterator[SafeLine]:
    if found.is_same_content:
        names = f"{found.before.path} and {found.after.path}"
        yield SafeLine(printable(f"{names} are identical: digest {found.after.digest}"))
        return
    for mark, facts in (("---", found.before), ("+++", found.after)):
        size, digest = human_size(facts.size_bytes), facts.digest[:16]
        yield SafeLine(printable(f"{mark} {facts.path}  {size}, digest {digest}..."), "bold")
    if found.is_empty:
        yield SafeLine("")
        yield SafeLine("no differences except the durations of self-tests or the order of records")


def _sections(found: PackageDifferences) -> Iterator[_Section]:
    every = (
        ("package", "", [_marked(Change.CHANGED, _arrows([each])) for each in found.package]),
        _section("distributions", found.distributions, _distribution),
        _modules(found),
        _section("imports", found.imports, _import),
        _section("uses of mocks", found.uses, _use),
        _section("hooks", found.hooks, _hook),
        _tensors(found),
        _section("shared tensors", found.sharing, _sharing),
        _storages(found),
        ("resources", _counts(found.resources), list(_resources(found))),
        ("self-test", "", list(_self_test(found))),
        _section("notes", found.notes, lambda each: str(each.note)),
        _section("other records", found.records, _record),
    )
    for title, summary, lines in every:
        if lines:
            yield title, summary or counted(len(lines), "difference"), lines


def _section(title: str, found: Sequence[_T], describe: Callable[[_T], str]) -> _Section:
    """Return a section with a line for each difference."""
    return title, _counts(found), [_marked(each.change, describe(each)) for each in found]


def _marked(change: Change, text: str) -> SafeLine:
    """Return a line with the mark of a change."""
    mark, style = _MARKS[change]
    return SafeLine(f"  {mark} {printable(text)}".rstrip(), style)


def _arrows(fields: Iterable[FieldChange]) -> str:
    """Return changed fields as text: ``torch: 2.12.0 -> 2.13.0; ...``."""
    return "; ".join(f"{f.name}: {f.before or 'none'} -> {f.after or 'none'}" for f in fields)


def _counts(found: Iterable[_Difference]) -> str:
    """Return the number of each change: ``1 added, 2 changed``."""
    number = Counter(each.change for each in found)
    return ", ".join(f"{number[change]} {change.value}" for change in Change if number[change])


def _distribution(found: DistributionDifference) -> str:
    if found.change is Change.CHANGED:
        text = _arrows(found.fields)
    else:
        versions = [f for f in found.fields if f.name == "version"]
        text = ", ".join(f.after or f.before or "" for f in versions)
    modules = f"  ({counted(found.modules, 'module')})" if found.modules else ""
    return f"{found.name}  {text}{modules}"


def _modules(found: PackageDifferences) -> _Section:
    """Return the section of modules, sorted by path. Similar ones of a library share a line."""
    distributions = {each.name for each in found.distributions}
    texts = [(each, text) for each in found.modules if (text := _module(each, distributions))]
    alike: dict[tuple[Change, str, str], list[str]] = {}
    for each, text in texts:
        alike.setdefault((each.change, root_of(each.module), text), []).append(each.module)
    lines: list[SafeLine] = []
    for (change, root, text), modules in alike.items():
        if len(modules) >= _MANY_ALIKE:
            lines.append(_marked(change, f"{root}: {counted(len(modules), 'module')}  {text}"))
        else:
            lines += [_marked(change, f"{module}  {text}") for module in modules]
    return "modules", _counts(each for each, _ in texts), lines


def _module(found: ModuleDifference, distributions: set[str]) -> str:
    """Return the text about a module. Empty if the line of its distribution covers it."""
    if found.before is None or found.after is None:
        facts = found.before or found.after
        if facts is None:
            return ""
        origin = f", of {facts.requirement}" if facts.requirement else ""
        return f"{facts.action.past}{origin}, {facts.why}"
    is_covered = found.after.distribution in distributions
    fields = [f for f in found.fields if not (is_covered and f.name in _OF_DISTRIBUTIONS)]
    parts = [_arrows(fields)] if fields else []
    if found.source is not None:
        parts.append(f"source: {_amount(found.source)}")
    elif found.source_changed:
        parts.append("different code")
    return "; ".join(parts)


def _amount(text: TextDifference) -> str:
    return f"+{text.added} -{text.removed}" if text.unified else "different encoding"


def _import(found: ImportDifference) -> str:
    edge = found.edge
    line = f", line {edge.line}" if edge.line is not None else ""
    return f"{edge.importer} -> {edge.imported}  ({edge.kind.value}{line})"


def _use(found: UseDifference) -> str:
    use = found.use
    scope = f" in {use.scope}" if use.scope else ""
    return f"{used_name(use)}  ({use.kind.value}{scope}) {use.importer}:{use.line}"


def _hook(found: HookDifference) -> str:
    spec = found.after or found.before
    if spec is None:
        raise ValueError("a hook must be in one of the packages")
    name = f"{hook_target(spec)}  {spec.kind}: {spec.callable.name}, in {found.resource}"
    if found.change is not Change.CHANGED:
        return name
    parts = [_arrows(found.fields)] if found.fields else []
    was = found.before.callable.source if found.before is not None else None
    if was != spec.callable.source:
        parts.append(f"source: {_amount(found.source)}" if found.source else "different source")
    return f"{name}  {'; '.join(parts)}"


def _tensors(found: PackageDifferences) -> _Section:
    """Return the section of tensors. The title names the object if there is only one."""
    resources = list({each.resource for each in found.tensors})
    if len(resources) == 1:
        return _section(f"tensors of {printable(resources[0])}", found.tensors, _tensor)
    return _section("tensors", found.tensors, lambda each: f"{each.resource}: {_tensor(each)}")


def _tensor(found: TensorDifference) -> str:
    tensor = found.after or found.before
    if tensor is None:
        raise ValueError("a tensor must be in one of the packages")
    shape = "?" if tensor.shape is None else str(list(tensor.shape))
    text = f"{found.name}  {tensor.kind.value} {tensor.dtype} {shape}"
    if found.change is not Change.CHANGED:
        return text + (f", same elements as the removed {found.same_as}" if found.same_as else "")
    parts = [_arrows(found.fields)] if found.fields else []
    if found.values is Values.DIFFERENT:
        parts.append("different values")
    elif found.values is Values.UNKNOWN and not found.fields:
        parts.append("different storage; elements not comparable")
    return f"{text}  {'; '.join(parts)}"


def _sharing(found: SharingDifference) -> str:
    verb = "share" if found.change is Change.ADDED else "no longer share"
    return f"{found.resource}: {listed(found.names, _MANY_ALIKE)} {verb} one storage"


def _storages(found: PackageDifferences) -> _Section:
    storages = found.storages
    title, summary, lines = _section(
        "tensor storages" if storages.all_compared else "storages of unnamed tensors",
        storages.different,
        lambda each: f"{each.record}  {human_size(each.size_bytes)}",
    )
    return title, f"{summary}, {storages.same} the same", lines


def _resources(found: PackageDifferences) -> Iterator[SafeLine]:
    """Yield a line for each resource. Files of one module or distribution share a line."""
    together: dict[tuple[object, ...], list[ResourceDifference]] = {}
    for each in found.resources:
        is_alone = each.owner is None or each.text is not None
        key = (each.change, each.kind, each.record if is_alone else each.owner)
        together.setdefault(key, []).append(each)
    for first, *others in together.values():
        if others:
            number = counted(len(others) + 1, "file")
            text = f"{first.owner}: {number}  {first.kind.value}"
        else:
            sizes = (first.before_bytes, first.after_bytes)
            size = " -> ".join(dict.fromkeys(human_size(s) for s in sizes if s is not None))
            amount = f"; {_amount(first.text)}" if first.text is not None else ""
            text = f"{first.record}  {first.kind.value}, {size}{amount}"
        yield _marked(first.change, text)


def _self_test(found: PackageDifferences) -> Iterator[SafeLine]:
    whether = [field for field in found.self_test if field.name == "self-test"]
    # If only one package has a self-test, all its other fields differ as well.
    fields = whether or found.self_test
    for field in fields:
        if field.before is None or field.after is None:
            change = Change.ADDED if field.before is None else Change.REMOVED
            yield _marked(change, f"{field.name}: {field.after or field.before}")
        else:
            yield _marked(Change.CHANGED, _arrows([field]))
    for each in found.examples:
        parts = ", ".join(each.parts)
        yield _marked(Change.CHANGED, f"example {each.number}: different {parts}")


def _record(found: RecordDifference) -> str:
    """Return the text about a record, with the possible cause of the difference."""
    is_of_hooks = found.record.startswith(_HOOKS) and found.record.endswith(".pkl")
    remark = "  pickled hooks: their IDs or their state" if is_of_hooks else ""
    return f"{found.record}{remark}"


def _sources(found: PackageDifferences) -> list[TextDifference]:
    """Return the compared texts with lines that differ."""
    every = [
        *(module.source for module in found.modules),
        *(hook.source for hook in found.hooks),
        *(resource.text for resource in found.resources),
    ]
    return [text for text in every if text is not None and text.unified]
