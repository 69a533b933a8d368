"""Text of ``modpack diff``: lines with a style, which are never wrapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from modpack.core.names import root_of
from modpack.core.text import counted, human_size, printable
from modpack.report.diff_facts import (
    SIZE,
    VALUE,
    Change,
    Contents,
    Difference,
    FieldChange,
    PackageDifferences,
    Part,
)

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
_OF_DISTRIBUTIONS: Final = frozenset({"version", "license", "editable"})
"""Fields of modules that the line of their distribution shows."""
_TITLES: Final = {
    Part.PACKAGE: "package",
    Part.DISTRIBUTION: "distributions",
    Part.MODULE: "modules",
    Part.HOOK: "hooks",
    Part.TENSOR: "tensors",
    Part.SHARED_STORAGE: "shared tensors",
    Part.STORAGE: "storages of unnamed tensors",
    Part.RESOURCE: "resources",
    Part.SELF_TEST: "self-test",
    Part.NOTE: "notes",
    Part.RECORD: "other records",
}
_CONTENTS: Final = {Part.MODULE: "code", Part.HOOK: "source", Part.TENSOR: "values"}
_TOGETHER: Final = {Part.MODULE: (6, "module"), Part.RESOURCE: (2, "file")}
"""Parts whose similar items of one library share a line, from which number on, and their name."""


class SafeLine(NamedTuple):
    """One line of text without control characters.

    Attributes:
        text: The line, without its end.
        style: Its style in a terminal, as rich names it.
    """

    text: str
    style: str = ""


class _Section(NamedTuple):
    title: str
    summary: str
    lines: tuple[SafeLine, ...]


def differences_lines(found: PackageDifferences) -> Iterator[SafeLine]:
    """Yield all differences, with the compared sources."""
    yield from _head(found)
    for title, summary, lines in _sections(found):
        yield SafeLine("")
        yield SafeLine(f"{title}: {summary}", "bold")
        # A remark about a single omitted line would take as much room as the line.
        room = _MAX_LINES if len(lines) > _MAX_LINES + 1 else len(lines)
        yield from lines[:room]
        if len(lines) > room:
            yield SafeLine(f"    and {len(lines) - room} more; --json lists them", "dim")
    texts = (each.text for each in found.differences)
    for text in (text for text in texts if text is not None and text.unified):
        yield SafeLine("")
        for number, line in enumerate(text.unified):
            # Only two lines are headers: a removed comment of SQL also starts with three dashes.
            styles = _SOURCE_STYLES if number < 2 else _SOURCE_STYLES[1:]
            style = next((style for marks, style in styles if line.startswith(marks)), "")
            # Minified or generated sources have lines of megabytes.
            shown = line if len(line) <= _MAX_COLUMNS else f"{line[:_MAX_COLUMNS]}..."
            yield SafeLine(printable(shown, keep="\t"), style)


def _head(found: PackageDifferences) -> Iterator[SafeLine]:
    if found.identical:
        names = f"{found.before.path} and {found.after.path}"
        yield SafeLine(printable(f"{names} are identical: digest {found.after.digest}"))
        return
    for mark, facts in (("---", found.before), ("+++", found.after)):
        size, digest = human_size(facts.size_bytes), facts.digest[:16]
        yield SafeLine(printable(f"{mark} {facts.path}  {size}, digest {digest}..."), "bold")
    if found.passed:
        yield SafeLine("")
        yield SafeLine("no differences except the durations of self-tests or the order of records")


def _sections(found: PackageDifferences) -> Iterator[_Section]:
    distributions = frozenset(each.subject for each in found.of(Part.DISTRIBUTION))
    for part, title in _TITLES.items():
        details = [(each, _details(each, distributions)) for each in found.of(part)]
        # A module without details differs only in what the line of its distribution shows.
        shown = [(each, text) for each, text in details if text or part is not Part.MODULE]
        if not shown:
            continue
        number = Counter(each.change for each, _ in shown)
        summary = ", ".join(f"{number[each]} {each.value}" for each in Change if number[each])
        if part is Part.TENSOR:
            owners = {each.owner for each, _ in shown}
            if len(owners) == 1:
                title = f"tensors of {printable(owners.pop() or '')}"
            else:
                shown = [(d._replace(subject=f"{d.owner}: {d.subject}"), t) for d, t in shown]
        elif part is Part.STORAGE:
            title = title if found.names_tensors else "tensor storages"
        yield _Section(title, summary, tuple(_lines(part, shown)))


def _lines(part: Part, shown: Sequence[tuple[Difference, str]]) -> Iterator[SafeLine]:
    """Yield the lines of a part. Similar modules or files of one library share a line."""
    groups: dict[tuple[Change, object, str], list[str]] = {}
    for number, (each, details) in enumerate(shown):
        # The number is in no other key, and keeps all other differences on lines of their own.
        key: tuple[Change, object, str] = (each.change, number, "")
        if part is Part.MODULE:
            key = each.change, root_of(each.subject), details
        elif part is Part.RESOURCE and each.owner is not None and each.text is None:
            key = each.change, each.owner, each.about
        # A difference that is one value reads as 'name: before -> after'.
        is_value = [field.name for field in each.fields] == [VALUE]
        line = f"{each.subject}: {details}" if is_value else f"{each.subject}  {details}"
        groups.setdefault(key, []).append(line)
    # Few modules are listed by name, because each may be the one that a reader looks for.
    fewest, noun = _TOGETHER.get(part, (len(shown) + 1, ""))
    for (change, library, text), lines in groups.items():
        if len(lines) >= fewest:
            lines = [f"{library}: {counted(len(lines), noun)}  {text}"]
        mark, style = _MARKS[change]
        yield from (SafeLine(f"  {mark} {printable(line)}".rstrip(), style) for line in lines)


def _details(found: Difference, distributions: Collection[str]) -> str:
    """Return the description of a difference, and what changed.

    Args:
        found: The difference.
        distributions: Distributions that have a line of their own, which covers their modules.
    """
    # A new version of a library changes all its modules in the same way.
    is_covered = found.part is Part.MODULE and found.owner in distributions
    changes = [
        _field(each)
        for each in found.fields
        if found.change is Change.CHANGED
        or each.name == VALUE
        or (each.name == SIZE and found.part is not Part.MODULE)
        if not (is_covered and each.name in _OF_DISTRIBUTIONS)
    ]
    if found.text is not None:
        what = "text" if found.part is Part.RESOURCE else "source"
        lines = f"+{found.text.added} -{found.text.removed}"
        changes.append(f"{what}: {lines if found.text.unified else 'different encoding'}")
    elif found.contents is Contents.DIFFERENT:
        changes.append(f"different {_CONTENTS.get(found.part, 'content')}")
    elif found.contents is Contents.UNKNOWN and not changes:
        changes.append("different storage; elements not comparable")
    return "  ".join(filter(None, (found.about, "; ".join(changes))))


def _field(found: FieldChange) -> str:
    """Return a field as text: ``torch: 2.12.0 -> 2.13.0``, or only the value of one side."""
    values = [found.before or "none", found.after or "none"]
    if found.name == SIZE:
        values = [human_size(int(each)) for each in (found.before, found.after) if each]
    elif found.name == VALUE:
        values = [each for each in (found.before, found.after) if each]
    name = {SIZE: "size: ", VALUE: ""}.get(found.name, f"{found.name}: ")
    return values[0] if len(values) == 1 else name + " -> ".join(values)
