"""Comparison of two packages, without running or unpickling their contents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from modpack.archive import layout
from modpack.archive.layout import hook_records
from modpack.archive.reader import open_archive
from modpack.core.codec import record_to_json
from modpack.core.json_values import Json
from modpack.core.selftest import SelfTestRecord
from modpack.report.diff_facts import (
    SIZE,
    VALUE,
    Change,
    ComparedFacts,
    Contents,
    Difference,
    FieldChange,
    PackageDifferences,
    Part,
    SourceChoice,
    attributes,
    changed_fields,
    fields_of,
    in_one_only,
)
from modpack.report.diff_hooks import compare_hooks
from modpack.report.diff_modules import (
    ComparedPackage,
    are_same,
    compare_distributions,
    compare_modules,
    compare_records,
    is_of_self_test,
    read_compared_package,
)
from modpack.report.diff_tensors import compare_tensors
from modpack.report.facts import PackageFacts, ResourceFacts, ResourceKind
from modpack.report.text_diff import WorkBudget

_LINES_OF: Final = frozenset({ResourceKind.FILE, ResourceKind.DATA, ResourceKind.METADATA})
"""Kinds of resources that may be text."""
_CALL: Final = "call"
_RESOURCE: Final = ("kind", SIZE)
"""Compared attributes of a resource."""
_DERIVED: Final = frozenset(
    {layout.MANIFEST, layout.MANIFEST_DIGEST, layout.SERIALIZATION_ID, layout.NOTICE}
)
"""Records that follow from the others."""
_COMPARED: Final = frozenset(
    {
        *(layout.GRAPH, layout.EXTERN_MODULES, layout.ENTRY, layout.TENSORS, layout.BYTEORDER),
        layout.SHARDS,
        *(layout.ENVIRONMENT, layout.PYTHON_VERSION, layout.SELF_TEST, layout.CALL_SIGNATURE),
    }
)
"""Records whose values are compared one by one. They are differences only if no value differs."""


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
        new = read_compared_package(second)
        sides = _compared_facts(old.facts), _compared_facts(new.facts)
        # The digest names the content, so equal digests need no comparison.
        if sides[0].digest == sides[1].digest:
            return PackageDifferences(*sides)
        # One budget for all texts: a hostile package may contain many that are slow to compare.
        effort, with_source = WorkBudget(), sources is not SourceChoice.NONE
        found = [
            *_value_differences(Part.PACKAGE, _about(old), _about(new)),
            *compare_distributions(old, new),
            *compare_modules(old, new, sources, effort),
            *compare_hooks(old.facts.hooks, new.facts.hooks, with_source, effort),
            *compare_tensors(old, new),
            *_resources(old, new, sources, effort),
            *_self_tests(old.facts.self_test, new.facts.self_test),
            *_notes(old, new),
        ]
        # Last, because it lists what no other part explains.
        found += _others(old, new, found)
        names_tensors = old.tensors is not None and new.tensors is not None
        return PackageDifferences(*sides, tuple(found), names_tensors)


def _compared_facts(facts: PackageFacts) -> ComparedFacts:
    return ComparedFacts(facts.path, facts.size_bytes, facts.format, facts.digest)


def _value_differences(
    part: Part, before: Mapping[str, str | None], after: Mapping[str, str | None]
) -> Iterator[Difference]:
    """Yield a difference for each value that differs."""
    for name, old, new in changed_fields(before, after):
        yield Difference(part, name, Change.of(old, new), fields=(FieldChange(VALUE, old, new),))


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
        "native": None if native is None else _value_text(native._asdict()),
        "byteorder": side.read_text(layout.BYTEORDER),
        "main resource": "/".join(facts.main_resource) if facts.main_resource else None,
        "namespace": facts.namespace,
        _CALL: "; ".join(map(str, facts.call_signatures)) or None,
    }


def _notes(old: ComparedPackage, new: ComparedPackage) -> Iterator[Difference]:
    """Yield the notes that only one package has, ignoring lines."""
    # Without locations: a line that is added above a module's import moves the note, too.
    sides = ({(n.code, n.subject, n.message): n for n in side.facts.notes} for side in (old, new))
    for change, note in in_one_only(*sides):
        fields = fields_of(change, record_to_json(note))
        yield Difference(Part.NOTE, note.code, change, str(note), fields)


def _resources(
    old: ComparedPackage, new: ComparedPackage, sources: SourceChoice, effort: WorkBudget
) -> Iterator[Difference]:
    were = {each.record: each for each in old.facts.resources}
    are = {each.record: each for each in new.facts.resources}
    for record in sorted({*were, *are}):
        was, is_now = were.get(record), are.get(record)
        contents = text = None
        if was is not None and is_now is not None:
            is_same = are_same(old, record, new, record)
            if is_same and was.kind is is_now.kind:
                continue
            contents = Contents.SAME if is_same else Contents.DIFFERENT
            if _wants_text(was, old, new, sources):
                text = compare_records(old, record, new, record, effort)
        known = is_now or were[record]
        fields = changed_fields(attributes(was, _RESOURCE), attributes(is_now, _RESOURCE))
        change, about = Change.of(was, is_now), known.kind.value
        yield Difference(Part.RESOURCE, record, change, about, fields, contents, text, known.owner)


def _wants_text(
    each: ResourceFacts, old: ComparedPackage, new: ComparedPackage, sources: SourceChoice
) -> bool:
    """Return whether to compare a resource line by line. Data files follow their module."""
    if sources is not SourceChoice.OWN or each.kind is ResourceKind.FILE:
        return sources is not SourceChoice.NONE and each.kind in _LINES_OF
    # Data of an upgraded library differs as its sources do: the version says enough.
    owners = [side.modules.get(each.owner or "") for side in (old, new)]
    versions = {(owner.distribution, owner.version) for owner in owners if owner is not None}
    return each.kind is ResourceKind.DATA and len(versions) == 1


def _self_tests(old: SelfTestRecord | None, new: SelfTestRecord | None) -> Iterator[Difference]:
    """Yield the differences of two self-tests: of each field, and of each item of a list."""
    if old is None or new is None:
        has_test = ["no" if each is None else "yes" for each in (old, new)]
        before, after = ({"self-test": each} for each in has_test)
        yield from _value_differences(Part.SELF_TEST, before, after)
        return
    yield from _value_differences(Part.SELF_TEST, _flat_self_test(old), _flat_self_test(new))
    items = ({each: each for each in _self_test_items(side)} for side in (old, new))
    for change, (name, text) in in_one_only(*items):
        yield Difference(Part.SELF_TEST, name, change, fields=fields_of(change, {VALUE: text}))


def _flat_self_test(self_test: SelfTestRecord) -> dict[str, str | None]:
    """Return the outcome of a self-test by field, without lists. The duration is not compared."""
    values = ((k, v) for k, v in self_test.to_json().items() if not isinstance(v, (list, dict)))
    return {key: _value_text(value) for key, value in values if key not in ("version", "seconds")}


def _self_test_items(self_test: SelfTestRecord) -> Iterator[tuple[str, str]]:
    """Yield the name of each list in a self-test, with the text of each of its items."""
    observed = self_test.observations
    yield from (("use of a mock", str(event)) for event in observed.mock_events)
    others = record_to_json(observed._replace(mock_events=()))
    for name, value in (*self_test.to_json().items(), *others.items()):
        if isinstance(value, list):
            yield from ((name, _value_text(each) or "-") for each in value)


def _value_text(value: Json) -> str | None:
    """Return a JSON value as text, for people."""
    if value is None or value == [] or value == {}:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "; ".join(_value_text(each) or "-" for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={_value_text(each) or '-'}" for key, each in value.items())
    return str(value)


def _others(
    old: ComparedPackage, new: ComparedPackage, found: Sequence[Difference]
) -> Iterator[Difference]:
    """Yield the records that differ although no other difference explains it."""
    # Formats store the same facts in different records, so comparing records explains nothing.
    if old.facts.format != new.facts.format:
        return
    records = old.records | new.records
    covered = set(_DERIVED)
    # Differences of their values are listed already. If there are none, only the bytes differ.
    if found or layout.NOTICE in old.records ^ new.records:
        covered |= _COMPARED
    for side in (old, new):
        covered.update(side.storages(), (each.record for each in side.facts.resources))
    for each in found:
        if each.part is Part.HOOK and each.owner is not None:
            covered.update(hook_records(each.owner))
        elif each.part is Part.MODULE:
            known = (side.modules.get(each.subject) for side in (old, new))
            covered.update(facts.record for facts in known if facts and facts.record)
    if dict(_changed({layout.LOADER} & records, old, new)):  # another loader has other files
        covered.update(each for each in records if each.startswith(layout.LOADER_FILES))
    if old.facts.self_test is None or new.facts.self_test is None:  # which is a difference itself
        covered.update(filter(is_of_self_test, records))
    for record, change in _changed(records - covered, old, new):
        is_of_hooks = record.startswith(layout.HOOKS) and record.endswith(".pkl")
        about = "pickled hooks: their IDs or their state" if is_of_hooks else ""
        yield Difference(Part.RECORD, record, change, about)


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
