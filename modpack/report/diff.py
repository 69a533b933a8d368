"""Comparison of two packages, without running or unpickling their contents."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from modpack.archive import layout
from modpack.archive.layout import hook_records
from modpack.archive.reader import open_archive
from modpack.core.codec import record_to_json
from modpack.core.hookspec import HookSpec
from modpack.core.json_values import Json
from modpack.core.selftest import SelfTestRecord
from modpack.report.diff_facts import (
    Change,
    ExampleDifference,
    FieldChange,
    HookDifference,
    NoteDifference,
    PackageDifferences,
    RecordDifference,
    ResourceDifference,
    SourceChoice,
    TextDifference,
    UseDifference,
)
from modpack.report.diff_modules import (
    ComparedPackage,
    are_same,
    changed_fields,
    compare_distributions,
    compare_imports,
    compare_modules,
    compare_records,
    in_one_only,
    is_of_self_test,
    read_compared_package,
)
from modpack.report.diff_tensors import compare_tensors
from modpack.report.facts import HookFacts, ResourceFacts, ResourceKind, hook_flags
from modpack.report.text_diff import WorkBudget, text_difference

_LINES_OF: Final = frozenset({ResourceKind.FILE, ResourceKind.DATA, ResourceKind.METADATA})
"""Kinds of resources that may be text."""
_DERIVED: Final = frozenset(
    {layout.MANIFEST, layout.MANIFEST_DIGEST, layout.SERIALIZATION_ID, layout.NOTICE}
)
"""Records that follow from the others."""
_Pair = tuple[HookFacts, HookFacts]


def compare_hooks(
    before: Sequence[HookFacts], after: Sequence[HookFacts], with_source: bool, effort: WorkBudget
) -> Iterator[HookDifference]:
    """Yield the hooks that differ.

    Hooks of one kind on one target are paired if they call the same function. The remaining ones
    are paired in order.

    Args:
        before: Hooks of the first package.
        after: Hooks of the second package.
        with_source: Whether to compare sources line by line.
        effort: Budget for comparing texts.
    """
    pairs, old, new = _paired(before, after)
    yield from (HookDifference(each.resource, Change.REMOVED, each.spec) for each in old)
    yield from (HookDifference(each.resource, Change.ADDED, None, each.spec) for each in new)
    for was, now in pairs:
        fields = changed_fields(_fields(was.spec), _fields(now.spec))
        has_other_source = was.spec.callable.source != now.spec.callable.source
        if fields or has_other_source:
            is_wanted = with_source and has_other_source
            source = _source(was.spec, now.spec, effort) if is_wanted else None
            yield HookDifference(now.resource, Change.CHANGED, was.spec, now.spec, fields, source)


def _paired(
    old: Sequence[HookFacts], new: Sequence[HookFacts]
) -> tuple[list[_Pair], Sequence[HookFacts], Sequence[HookFacts]]:
    """Return pairs of hooks, the most similar first, and the unpaired hooks of both sides."""
    pairs: list[_Pair] = []
    for length in (7, 5, 3):  # all fields; target and callable; target only
        waiting: dict[Hashable, deque[HookFacts]] = {}
        for each in old:
            waiting.setdefault(_identity(each)[:length], deque()).append(each)
        left: list[HookFacts] = []
        for each in new:
            candidates = waiting.get(_identity(each)[:length])
            if candidates:
                pairs.append((candidates.popleft(), each))
            else:
                left.append(each)
        paired = {id(was) for was, _ in pairs}
        old, new = [each for each in old if id(each) not in paired], left
    return pairs, old, new


def _identity(hook: HookFacts) -> tuple[Hashable, ...]:
    spec, called = hook.spec, hook.spec.callable
    where = hook.resource, spec.kind, spec.target
    return (*where, called.by, called.name, called.source, hook_flags(spec))


def _fields(spec: HookSpec) -> dict[str, str | None]:
    return {
        "position": str(spec.position),
        "calls": spec.callable.name,
        "saved as": spec.callable.by,
        "flags": hook_flags(spec) or None,
        "aliases": ", ".join(spec.aliases) or None,
        "state": ", ".join(spec.callable.state) or None,
    }


def _source(was: HookSpec, now: HookSpec, effort: WorkBudget) -> TextDifference | None:
    old, new = was.callable.source, now.callable.source
    if not effort.has_room_for(old or "", new or ""):
        return None
    return text_difference(
        old or "",
        new or "",
        was.name if old is not None else None,
        now.name if new is not None else None,
        effort,
    )


def compare_packages(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    sources: SourceChoice = SourceChoice.OWN,
) -> PackageDifferences:
    """Compare two packages of modpack or torch.package.

    Contents are compared by their recorded digests. Only contents that differ are read: sources,
    and the parts of storages that tensors use.

    Args:
        before: Package file, or directory of an unzipped package.
        after: The other package.
        sources: Modules whose sources are compared line by line.

    Raises:
        TypeError: If an argument is not a path.
        UnsupportedVersionError: If a newer modpack wrote one of the packages.
        ArchiveError: If one of them is not a package, or damaged.
    """
    with open_archive(before) as first, open_archive(after) as second:
        old = read_compared_package(first)
        new = read_compared_package(second, old)
        found = PackageDifferences(old.facts, new.facts)
        if found.is_same_content:
            return found
        with_source = sources is not SourceChoice.NONE
        tensors, sharing, storages = compare_tensors(old, new)
        effort = WorkBudget()
        found = replace(
            found,
            package=changed_fields(_about(old), _about(new)),
            distributions=tuple(compare_distributions(old, new)),
            modules=tuple(compare_modules(old, new, sources, effort)),
            imports=tuple(compare_imports(old, new)),
            uses=tuple(_uses(old, new)),
            hooks=tuple(compare_hooks(old.facts.hooks, new.facts.hooks, with_source, effort)),
            tensors=tensors,
            sharing=sharing,
            storages=storages,
            resources=tuple(_resources(old, new, sources, effort)),
            self_test=tuple(_self_test_changes(old.facts.self_test, new.facts.self_test)),
            examples=tuple(_examples(old, new)),
            notes=tuple(_notes(old, new)),
        )
        return replace(found, records=tuple(_others(old, new, found)))


def _about(side: ComparedPackage) -> dict[str, str | None]:
    facts, environment = side.facts, side.environment
    native = environment.native
    return {
        "format": facts.format,
        "writer": facts.writer,
        "python": environment.python,
        "implementation": environment.implementation,
        "torch": environment.torch,
        "platform": environment.platform,
        "machine": environment.machine,
        "native": None if native is None else _shown(native._asdict()),
        "byteorder": side.read_text(layout.BYTEORDER),
        "main resource": "/".join(facts.main_resource) if facts.main_resource else None,
        "namespace": facts.namespace,
        "call": "; ".join(map(str, facts.call_signatures)) or None,
    }


def _uses(old: ComparedPackage, new: ComparedPackage) -> Iterator[UseDifference]:
    """Yield the uses of mocked modules that only one package has, ignoring lines."""
    sides = (
        {(u.module, u.name, u.importer, u.kind, u.scope): u for u in side.plan.mock_uses}
        for side in (old, new)
    )
    return (UseDifference(*each) for each in in_one_only(*sides))


def _notes(old: ComparedPackage, new: ComparedPackage) -> Iterator[NoteDifference]:
    """Yield the notes that only one package has, ignoring lines."""
    sides = ({(n.code, n.subject, n.message): n for n in side.facts.notes} for side in (old, new))
    return (NoteDifference(*each) for each in in_one_only(*sides))


def _resources(
    old: ComparedPackage, new: ComparedPackage, sources: SourceChoice, effort: WorkBudget
) -> Iterator[ResourceDifference]:
    were = {each.record: each for each in old.facts.resources}
    are = {each.record: each for each in new.facts.resources}
    for record in sorted({*were, *are}):
        was, is_now = were.get(record), are.get(record)
        text = None
        if was is not None and is_now is not None:
            if was.kind is is_now.kind and are_same(old, record, new, record):
                continue
            if _wants_text(was, old, new, sources):
                text = compare_records(old, record, new, record, effort)
        known = is_now or were[record]
        size_before = was.size_bytes if was is not None else None
        size_after = is_now.size_bytes if is_now is not None else None
        change = Change.of(was, is_now)
        yield ResourceDifference(
            record, change, known.kind, size_before, size_after, known.owner, text
        )


def _wants_text(
    each: ResourceFacts, old: ComparedPackage, new: ComparedPackage, sources: SourceChoice
) -> bool:
    """Return whether to compare a resource line by line. Data files follow their module."""
    if sources is not SourceChoice.OWN or each.kind is ResourceKind.FILE:
        return sources is not SourceChoice.NONE and each.kind in _LINES_OF
    owners = [side.modules.get(each.owner or "") for side in (old, new)]
    versions = {(owner.distribution, owner.version) for owner in owners if owner is not None}
    return each.kind is ResourceKind.DATA and len(versions) == 1


def _self_test_changes(
    old: SelfTestRecord | None, new: SelfTestRecord | None
) -> Iterator[FieldChange]:
    """Yield the differences of two self-tests: of each field, and of each item of a list."""
    yield from changed_fields(_flat_self_test(old), _flat_self_test(new))
    if old is not None and new is not None:
        before, after = ({each: each for each in _self_test_items(side)} for side in (old, new))
        for change, (name, text) in in_one_only(before, after):
            is_new = change is Change.ADDED
            yield FieldChange(name, None if is_new else text, text if is_new else None)


def _flat_self_test(self_test: SelfTestRecord | None) -> dict[str, str | None]:
    """Return the outcome of a self-test by field, without lists. The duration is not compared."""
    if self_test is None:
        return {"self-test": "no"}
    record = self_test.to_json()
    shown = (key for key, value in record.items() if not isinstance(value, (list, dict)))
    omitted = ("version", "seconds")
    return {"self-test": "yes", **{k: _shown(record[k]) for k in shown if k not in omitted}}


def _self_test_items(self_test: SelfTestRecord) -> Iterator[tuple[str, str]]:
    """Yield the name of each list in a self-test, with the text of each of its items."""
    observed = self_test.observations
    yield from (("use of a mock", str(event)) for event in observed.mock_events)
    others = record_to_json(observed._replace(mock_events=()))
    for name, value in (*self_test.to_json().items(), *others.items()):
        if isinstance(value, list):
            yield from ((name, _shown(each) or "-") for each in value)


def _shown(value: Json) -> str | None:
    """Return a JSON value as text, for people."""
    if value is None or value == [] or value == {}:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "; ".join(_shown(each) or "-" for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={_shown(each) or '-'}" for key, each in value.items())
    return str(value)


def _examples(old: ComparedPackage, new: ComparedPackage) -> Iterator[ExampleDifference]:
    """Yield the examples that differ, if both packages have examples."""
    if old.facts.self_test is None or new.facts.self_test is None:
        return
    parts: dict[str, dict[str, None]] = {}
    for record, _ in _changed(filter(is_of_self_test, old.records | new.records), old, new):
        number, part = _part_of_example(record)
        parts.setdefault(number, {})[part] = None
    for number, found in parts.items():
        yield ExampleDifference(number, tuple(found))


def _part_of_example(record: str) -> tuple[str, str]:
    """Return the number of an example, and the part of it that a record contains.

    >>> _part_of_example(".data/modpack/self_test/0/inputs.pkl")
    ('0', 'inputs')
    >>> _part_of_example(".data/self-test-0-3.storage")
    ('0', 'output')
    """
    if record.startswith(layout.SELF_TEST_TENSORS):
        return record.removeprefix(layout.SELF_TEST_TENSORS).partition("-")[0], "output"
    folder, _, file = record.rpartition("/")
    return folder.rpartition("/")[2], file.partition(".")[0]


def _others(
    old: ComparedPackage, new: ComparedPackage, found: PackageDifferences
) -> Iterator[RecordDifference]:
    """Yield the records that differ although no other difference explains it."""
    if old.facts.format != new.facts.format:
        return
    covered = {*_DERIVED, *_explained(found), *_compared_records(old), *_compared_records(new)}
    if layout.NOTICE in old.records ^ new.records:  # which also changes this record
        covered.add(layout.EXTERN_MODULES)
    for record, change in _changed((old.records | new.records) - covered, old, new):
        yield RecordDifference(record, change)


def _compared_records(side: ComparedPackage) -> Iterator[str]:
    """Yield the records that other parts of the comparison cover."""
    yield from side.storages()
    yield from (each.record for each in side.facts.resources)
    yield from filter(is_of_self_test, side.records)


def _explained(found: PackageDifferences) -> Iterator[str]:
    """Yield the records whose difference other differences explain."""
    for module in found.modules:
        yield from (each.record for each in (module.before, module.after) if each and each.record)
    for hook in found.hooks:
        yield from hook_records(hook.resource)
    explained: tuple[tuple[str, Iterable[object]], ...] = (
        (layout.GRAPH, (*found.modules, *found.imports, *found.uses, *found.notes)),
        (layout.GRAPH, (*found.distributions, *found.resources)),
        (layout.ENVIRONMENT, (*found.package, *found.distributions)),
        (layout.EXTERN_MODULES, found.modules),
        (layout.PYTHON_VERSION, found.package),
        (layout.CALL_SIGNATURE, (each for each in found.package if each.name == "call")),
        (layout.BYTEORDER, found.package),
        (layout.ENTRY, (*found.package, *found.resources)),
        (layout.TENSORS, (*found.tensors, *found.sharing)),
        (layout.SELF_TEST, found.self_test),
    )
    yield from (record for record, differences in explained if any(True for _ in differences))


def _changed(
    records: Iterable[str], old: ComparedPackage, new: ComparedPackage
) -> Iterator[tuple[str, Change]]:
    """Yield the records that differ, with the kind of change."""
    for record in sorted(records):
        if record not in old.records:
            yield record, Change.ADDED
        elif record not in new.records:
            yield record, Change.REMOVED
        elif not are_same(old, record, new, record):
            yield record, Change.CHANGED
