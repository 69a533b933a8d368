"""What the lines of a report about differences are made of.

Differences for people: lines with a style each, which no terminal's width breaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from modpack.core.hookspec import HookSpec
from modpack.core.names import root_of
from modpack.core.tensors import TensorFacts
from modpack.core.text import counted, human_size, printable
from modpack.report.diff_facts import (
    Change,
    FieldChange,
    HookDifference,
    ModuleDifference,
    PackageDifferences,
    RecordDifference,
    ResourceDifference,
    TensorDifference,
    TextDifference,
    UseDifference,
    Values,
)
from modpack.report.facts import ModuleFacts, PackageFacts

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
_MOST_LINES: Final = 40
_MOST_COLUMNS: Final = 1000


class Line(NamedTuple):
    """One line of text, with nothing in it that could steer a terminal.

    Attributes:
        text: the line, without an end.
        style: how it looks at a terminal, as rich calls it.
    """

    text: str
    style: str = ""


def marked(change: Change, text: str, columns: int = 2) -> Line:
    """A line that says what became of something."""
    mark, style = _MARKS[change]
    return Line(f"{' ' * columns}{mark} {printable(text)}".rstrip(), style)


def arrows(fields: Iterable[FieldChange]) -> str:
    """What changed of one thing, as people read it: ``torch: 2.12.0 -> 2.13.0; ...``."""
    return "; ".join(f"{f.what}: {f.before or 'none'} -> {f.after or 'none'}" for f in fields)


def counts(every: Iterable[Change]) -> str:
    """How often each change occurs: ``1 added, 2 changed``."""
    number = Counter(every)
    return ", ".join(f"{number[change]} {change.value}" for change in Change if number[change])


def shortened(lines: Sequence[Line]) -> Iterator[Line]:
    """The first lines of a list, and how many there are beyond them."""
    room = _MOST_LINES if len(lines) > _MOST_LINES + 1 else len(lines)
    yield from lines[:room]
    if len(lines) > room:
        yield Line(f"    and {len(lines) - room} more; --json lists them", "dim")


def source_lines(text: TextDifference, columns: int = 0) -> Iterator[Line]:
    """A unified diff."""
    for number, line in enumerate(text.unified):
        styles = _SOURCE_STYLES if number < 2 else _SOURCE_STYLES[1:]
        style = next((style for marks, style in styles if line.startswith(marks)), "")
        shown = line if len(line) <= _MOST_COLUMNS else f"{line[:_MOST_COLUMNS]}..."
        yield Line(" " * columns + printable(shown, keep="\t"), style)


_MANY_ALIKE: Final = 6
"""So many modules of one library, with the same change, are told in one line."""
_OF_DISTRIBUTIONS: Final = frozenset({"version", "licence", "editable"})
"""Fields of modules that are told once for their distribution."""

_HOOKS: Final = ".data/modpack/hooks/"

_Section = tuple[str, str, list[Line]]
"""A title, what is counted in it, and its lines."""


def differences_lines(found: PackageDifferences) -> Iterator[Line]:
    """Everything that differs, with the sources that were compared."""
    yield from _head(found)
    for title, summary, lines in _sections(found):
        yield Line("")
        yield Line(f"{title}: {summary}", "bold")
        yield from shortened(lines)
    for text in _sources(found):
        yield Line("")
        yield from source_lines(text)


def statistics_lines(found: PackageDifferences) -> Iterator[Line]:
    """How much differs: one line for each kind of thing."""
    yield from _head(found)
    sections = list(_sections(found))
    width = max((len(title) for title, _, _ in sections), default=0)
    for title, summary, _ in sections:
        yield Line(f"  {title.ljust(width)}  {summary}")
    texts = list(_sources(found))
    if texts:
        added, removed = sum(t.added for t in texts), sum(t.removed for t in texts)
        yield Line(
            f"  {'lines'.ljust(width)}  +{added} -{removed} in {counted(len(texts), 'text')}"
        )


def _head(found: PackageDifferences) -> Iterator[Line]:
    if found.is_same_content:
        names = f"{found.before.file} and {found.after.file}"
        yield Line(printable(f"{names} are identical: digest {found.after.digest}"))
        return
    yield _package_line("---", found.before)
    yield _package_line("+++", found.after)
    if found.are_none:
        yield Line("")
        yield Line("nothing differs but how long the trials took, or the order of records")


def _package_line(mark: str, facts: PackageFacts) -> Line:
    size, digest = human_size(facts.size_bytes), facts.digest[:16]
    return Line(printable(f"{mark} {facts.file}  {size}, digest {digest}..."), "bold")


def _sections(found: PackageDifferences) -> Iterator[_Section]:
    every: tuple[_Section, ...] = (
        ("package", "", [marked(Change.CHANGED, arrows([field])) for field in found.package]),
        _distributions(found),
        ("modules", _modules_counted(found), list(_modules(found))),
        ("imports", counts(i.change for i in found.imports), list(_imports(found))),
        ("uses of mocks", counts(u.change for u in found.uses), list(map(_use, found.uses))),
        ("hooks", counts(h.change for h in found.hooks), list(map(_hook, found.hooks))),
        _tensors(found),
        ("shared tensors", counts(s.change for s in found.sharing), list(_sharing(found))),
        _storages(found),
        ("resources", counts(r.change for r in found.resources), list(_resources(found))),
        ("trial", "", list(_trial(found))),
        ("notes", counts(n.change for n in found.notes), list(_notes(found))),
        ("other records", counts(r.change for r in found.records), list(_records(found))),
    )
    for title, summary, lines in every:
        if lines:
            yield title, summary or counted(len(lines), "difference"), lines


def _distributions(found: PackageDifferences) -> _Section:
    lines = []
    for each in found.distributions:
        what = [f for f in each.fields if each.change is Change.CHANGED or f.what == "version"]
        told = arrows(what) if each.change is Change.CHANGED else _values(what)
        of_it = f"  ({counted(each.modules, 'module')})" if each.modules else ""
        lines.append(marked(each.change, f"{each.name}  {told}{of_it}"))
    return "distributions", counts(d.change for d in found.distributions), lines


def _values(fields: Iterable[FieldChange]) -> str:
    return ", ".join(f.after or f.before or "" for f in fields)


def _modules(found: PackageDifferences) -> Iterator[Line]:
    """Modules in the order of their paths; many alike of one library in one line."""
    told_of = {each.name for each in found.distributions}
    alike: dict[tuple[Change, str, str], list[str]] = {}
    for each in found.modules:
        text = _module(each, told_of)
        if text:
            alike.setdefault((each.change, root_of(each.module), text), []).append(each.module)
    for (change, root, text), modules in alike.items():
        if len(modules) >= _MANY_ALIKE:
            yield marked(change, f"{root}: {counted(len(modules), 'module')}  {text}")
        else:
            yield from (marked(change, f"{module}  {text}") for module in modules)


def _modules_counted(found: PackageDifferences) -> str:
    """How many are told; those of which the line of their distribution says all are not."""
    told_of = {each.name for each in found.distributions}
    told = [each for each in found.modules if _module(each, told_of)]
    return counts(each.change for each in told)


def _module(found: ModuleDifference, told_of: set[str]) -> str:
    """What to tell of a module; empty if its distribution's line says it all."""
    if found.before is None or found.after is None:
        facts = found.before or found.after
        return _described(facts) if facts is not None else ""
    is_told = found.after.distribution in told_of
    fields = [f for f in found.fields if not (is_told and f.what in _OF_DISTRIBUTIONS)]
    parts = [arrows(fields)] if fields else []
    if found.source is not None:
        parts.append(f"source: {_amount(found.source)}")
    elif found.has_other_code:
        parts.append("other code")
    return "; ".join(parts)


def _described(facts: ModuleFacts) -> str:
    of_it = f", of {facts.requirement}" if facts.requirement else ""
    return f"{facts.action.past}{of_it}, {facts.why}"


def _amount(text: TextDifference) -> str:
    return f"+{text.added} -{text.removed}" if text.unified else "other encoding"


def _imports(found: PackageDifferences) -> Iterator[Line]:
    for each in found.imports:
        edge = each.edge
        line = f", line {edge.line}" if edge.line is not None else ""
        text = f"{edge.importer} -> {edge.imported}  ({edge.kind.value}{line})"
        yield marked(each.change, text)


def _use(found: UseDifference) -> Line:
    use = found.use
    name = f"{use.module}.{use.name}" if use.name else use.module
    scope = f" in {use.scope}" if use.scope else ""
    return marked(found.change, f"{name}  ({use.kind.value}{scope}) {use.importer}:{use.line}")


def _hook(found: HookDifference) -> Line:
    spec = found.after or found.before
    if spec is None:
        raise ValueError("a hook must be in one of the packages")
    name = f"{_target(spec)}  {spec.kind}"
    if found.change is not Change.CHANGED:
        return marked(found.change, f"{name}: {spec.callable.name}, in {found.resource}")
    parts = [arrows(found.fields)] if found.fields else []
    was = found.before.callable.source if found.before is not None else None
    if was != spec.callable.source:
        parts.append(f"source: {_amount(found.source)}" if found.source else "other source")
    told = "; ".join(parts)
    return marked(found.change, f"{name}: {spec.callable.name}, in {found.resource}  {told}")


def _target(spec: HookSpec) -> str:
    return " + ".join(spec.target) or "the object itself"


def _tensors(found: PackageDifferences) -> _Section:
    """Tensors, with the saved object that holds them in the title if there is one only."""
    resources = sorted({each.resource for each in found.tensors})
    title = f"tensors of {printable(resources[0])}" if len(resources) == 1 else "tensors"
    lines = [
        marked(each.change, f"{'' if len(resources) == 1 else each.resource + ': '}{_tensor(each)}")
        for each in found.tensors
    ]
    return title, counts(each.change for each in found.tensors), lines


def _tensor(found: TensorDifference) -> str:
    if found.before is None or found.after is None:
        tensor = found.after or found.before
        origin = f", same elements as {found.same_as} had" if found.same_as else ""
        return f"{found.name}  {_shape(tensor) if tensor is not None else ''}{origin}"
    parts = [arrows(found.fields)] if found.fields else []
    if found.values is Values.DIFFERENT:
        parts.append("other values")
    elif found.values is Values.UNKNOWN and not found.fields:
        parts.append("other storage, whose elements cannot be compared")
    return f"{found.name}  {_shape(found.after)}  {'; '.join(parts)}"


def _shape(tensor: TensorFacts) -> str:
    shape = "?" if tensor.shape is None else str(list(tensor.shape))
    return f"{tensor.kind.value} {tensor.dtype} {shape}"


def _sharing(found: PackageDifferences) -> Iterator[Line]:
    for each in found.sharing:
        names = ", ".join(each.names[:_MANY_ALIKE])
        more = len(each.names) - _MANY_ALIKE
        verb = "share" if each.change is Change.ADDED else "no longer share"
        also = f" and {more} more" if more > 0 else ""
        yield marked(each.change, f"{each.resource}: {names}{also} {verb} one storage")


def _storages(found: PackageDifferences) -> _Section:
    storages = found.storages
    title = "tensor storages" if storages.are_all else "storages of unnamed tensors"
    lines = [
        marked(each.change, f"{each.record}  {human_size(each.size_bytes)}")
        for each in storages.different
    ]
    summary = f"{counts(s.change for s in storages.different)}, {storages.same} the same"
    return title, summary, lines


def _resources(found: PackageDifferences) -> Iterator[Line]:
    """Resources one by one; what came along with one module or distribution in one line."""
    together: dict[tuple[object, ...], list[ResourceDifference]] = {}
    for each in found.resources:
        is_alone = each.owner is None or each.text is not None
        key = (each.change, each.kind, each.record if is_alone else each.owner)
        together.setdefault(key, []).append(each)
    for first, *others in together.values():
        if others:
            number = counted(len(others) + 1, "file")
            told = f"{first.owner}: {number}  {first.kind.value}"
        else:
            told = f"{first.record}  {_resource(first)}"
        yield marked(first.change, told)


def _resource(found: ResourceDifference) -> str:
    sizes = [human_size(s) for s in (found.before_bytes, found.after_bytes) if s is not None]
    told = f"; {_amount(found.text)}" if found.text is not None else ""
    return f"{found.kind.value}, {' -> '.join(dict.fromkeys(sizes))}{told}"


def _trial(found: PackageDifferences) -> Iterator[Line]:
    whether = [field for field in found.trial if field.what == "tried"]
    # Where only one of the two was tried, all the rest is there or not there with it.
    fields = whether or found.trial
    yield from (marked(Change.CHANGED, arrows([field])) for field in fields)
    for each in found.examples:
        parts = ", ".join(each.parts)
        yield marked(Change.CHANGED, f"example {each.number}: other {parts}")


def _notes(found: PackageDifferences) -> Iterator[Line]:
    for each in found.notes:
        yield marked(each.change, str(each.note))


def _records(found: PackageDifferences) -> Iterator[Line]:
    yield from (marked(each.change, f"{each.record}{_remark(each)}") for each in found.records)


def _remark(found: RecordDifference) -> str:
    """What a difference of bytes may come from, although nothing else differs."""
    is_of_hooks = found.record.startswith(_HOOKS) and found.record.endswith(".pkl")
    return "  pickled hooks: their numbers, or what they carry" if is_of_hooks else ""


def _sources(found: PackageDifferences) -> Iterator[TextDifference]:
    """All texts that were compared line by line, and that have lines that differ."""
    every: Sequence[TextDifference | None] = [
        *(module.source for module in found.modules),
        *(hook.source for hook in found.hooks),
        *(resource.text for resource in found.resources),
    ]
    yield from (text for text in every if text is not None and text.unified)
