"""The packages of a comparison, and the differences of their modules and distributions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest
from modpack.archive.records import load_environment, read_tensors
from modpack.core.environment import RecordedDistribution, RecordedEnvironment
from modpack.core.graph import DependencyGraph
from modpack.core.names import normalized
from modpack.core.plan import Plan
from modpack.core.rules import Action
from modpack.core.tensors import TensorFacts
from modpack.core.text import counted
from modpack.report.diff_facts import (
    SIZE,
    Change,
    Contents,
    Difference,
    Part,
    SourceChoice,
    TextDifference,
    attributes,
    changed_fields,
    fields_of,
)
from modpack.report.distribution_index import with_distributions
from modpack.report.facts import ModuleFacts, PackageFacts
from modpack.report.package_info import facts_of, read_checked_manifest, recorded_plan
from modpack.report.text_diff import WorkBudget, as_text, text_difference


@dataclass(frozen=True)
class ComparedPackage:
    """One of two compared packages.

    Attributes:
        archive: The open package.
        manifest: Its manifest. None for a package of torch.package.
        facts: Its contents.
        modules: Its modules by path, with their distributions.
        plan: The recorded plan. Empty if the package does not record it.
        environment: The export environment.
        records: Its records.
    """

    archive: Archive
    manifest: Manifest | None
    facts: PackageFacts
    modules: Mapping[str, ModuleFacts]
    plan: Plan
    environment: RecordedEnvironment
    records: frozenset[str]
    _digests: dict[str, str] = field(default_factory=dict)

    @cached_property
    def tensors(self) -> Mapping[str, tuple[TensorFacts, ...]] | None:
        """Its named tensors by object, or None if it does not record them."""
        return None if self.manifest is None else read_tensors(self.archive, self.manifest)

    def storages(self) -> tuple[str, ...]:
        """Return the records of tensor storages, except those of self-tests."""
        kept = filter(layout.is_storage, self.archive.names())
        return tuple(name for name in kept if not is_of_self_test(name))

    def read(self, record: str) -> bytes:
        """Return the content of a record, checked against the manifest."""
        return self.archive.read(record, verify=self.manifest)

    def digest(self, record: str) -> str:
        """Return the SHA-256 of a record, from the manifest or computed."""
        if self.manifest is not None and record in self.manifest.records:
            return self.manifest.records[record].sha256
        if record not in self._digests:
            digest = hashlib.sha256()
            for chunk in self.archive.chunks(record):
                digest.update(chunk)
            self._digests[record] = digest.hexdigest()
        return self._digests[record]

    def read_text(self, record: str) -> str | None:
        """Return a small text record, such as the byte order, or None if it is missing."""
        if record not in self.records:
            return None
        return self.read(record).decode("ascii", "replace").strip()


def is_of_self_test(record: str) -> bool:
    """Return whether a record belongs to the examples of a self-test."""
    return record.startswith((layout.SELF_TEST_TENSORS, layout.SELF_TESTS))


def read_compared_package(archive: Archive) -> ComparedPackage:
    """Read one of the packages.

    Raises:
        ArchiveError: If it is not a package, or damaged.
    """
    manifest = read_checked_manifest(archive)
    plan = recorded_plan(archive, manifest)
    # Imports are compared as lines of sources, so the importers of modules are not needed.
    facts = facts_of(archive, manifest, replace(plan, graph=DependencyGraph()))
    environment = load_environment(archive, manifest)
    modules = with_distributions(facts.modules, archive, plan, manifest, environment)
    return ComparedPackage(
        archive,
        manifest,
        replace(facts, modules=modules),
        {facts.module: facts for facts in modules},
        plan,
        environment,
        frozenset(archive.names()),
    )


def are_same(before: ComparedPackage, old: str, after: ComparedPackage, new: str) -> bool:
    """Return whether two records have the same content.

    Contents are compared by the SHA-256 in the manifests. Packages of torch.package have none:
    their storages are compared by the CRC-32 in the zip, and their other records are read.
    """
    # Sizes are in the directory of the archive. Digests may have to be computed.
    if before.archive.size(old) != after.archive.size(new):
        return False
    without_manifest = before.manifest is None or after.manifest is None
    if without_manifest and layout.is_storage(old):
        return before.archive.crc32(old) == after.archive.crc32(new)
    return before.digest(old) == after.digest(new)


_MAX_TEXT_BYTES: Final = 4_000_000
"""Larger records are not compared line by line."""


_MODULE: Final = (
    *("action", "rule", "overridden_by", "provided_by", "distribution", "version", "license"),
    *("editable", "record"),
)
"""Compared attributes of a module. Importers and sources are compared as lines of sources."""
_DISTRIBUTION: Final = ("version", "license", "editable", "url")


def compare_modules(
    before: ComparedPackage, after: ComparedPackage, sources: SourceChoice, effort: WorkBudget
) -> Iterator[Difference]:
    """Yield the modules that differ, sorted by path."""
    for module in sorted({*before.modules, *after.modules}):
        old, new = before.modules.get(module), after.modules.get(module)
        change, record, other = Change.of(old, new), _code_record(old), _code_record(new)
        fields = changed_fields(attributes(old, _MODULE), attributes(new, _MODULE))
        contents, about, is_wanted = None, "", sources is SourceChoice.ALL
        if old is not None and new is not None:
            if record and other:
                is_same = are_same(before, record, after, other)
                contents = Contents.SAME if is_same else Contents.DIFFERENT
            if contents is not Contents.DIFFERENT and not fields:
                continue
            # Sources of another version of a library differ in many lines that nobody wrote here.
            is_same_version = (old.distribution, old.version) == (new.distribution, new.version)
            is_wanted = is_wanted or (sources is SourceChoice.OWN and is_same_version)
            is_wanted = is_wanted and contents is Contents.DIFFERENT
        elif facts := old or new:
            origin = f", of {facts.requirement}" if facts.requirement else ""
            about = f"{facts.action.past}{origin}, {facts.why}"
            fields += fields_of(change, {SIZE: facts.size_bytes})
        has_code = record is not None or other is not None
        text = (
            compare_records(before, record, after, other, effort)
            if is_wanted and has_code
            else None
        )
        # The text report covers modules of a distribution that has a line of its own.
        owner = next((each.distribution for each in (new, old) if each is not None), None)
        yield Difference(Part.MODULE, module, change, about, fields, contents, text, owner=owner)


def _code_record(facts: ModuleFacts | None) -> str | None:
    """Return the record of an interned module's code."""
    return facts.record if facts is not None and facts.action is Action.INTERN else None


def compare_distributions(before: ComparedPackage, after: ComparedPackage) -> Iterator[Difference]:
    """Yield the distributions that differ, sorted by name."""
    old, new = _distributions(before), _distributions(after)
    modules: dict[str, set[str]] = {}
    for side in (before, after):
        for facts in side.facts.modules:
            if facts.distribution is not None:
                modules.setdefault(normalized(facts.distribution), set()).add(facts.module)
    for key in sorted({*old, *new}):
        was, is_now = old.get(key), new.get(key)
        fields = changed_fields(attributes(was, _DISTRIBUTION), attributes(is_now, _DISTRIBUTION))
        if fields:
            known, change = is_now or old[key], Change.of(was, is_now)
            parts = ["" if change is Change.CHANGED else known.version]
            parts += [f"({counted(len(modules[key]), 'module')})"] if key in modules else []
            about = "  ".join(filter(None, parts))
            yield Difference(Part.DISTRIBUTION, known.name, change, about, fields)


def compare_records(
    before: ComparedPackage,
    old: str | None,
    after: ComparedPackage,
    new: str | None,
    effort: WorkBudget,
) -> TextDifference | None:
    """Compare two records line by line.

    Args:
        before: The first package.
        old: A record of the first package. None to compare with an empty text.
        after: The second package.
        new: A record of the second package.
        effort: Budget for comparing texts.

    Returns:
        The difference. None if a record is not text, or the budget is used up.
    """
    was, is_now = _text(before, old), _text(after, new)
    if was is None or is_now is None or not effort.has_room_for(was, is_now):
        return None
    return text_difference(was, is_now, old, new, effort)


def _text(side: ComparedPackage, record: str | None) -> str | None:
    if record is None:
        return ""
    if side.archive.size(record) > _MAX_TEXT_BYTES:
        return None
    return as_text(side.read(record), record)


def _distributions(side: ComparedPackage) -> dict[str, RecordedDistribution]:
    """Return the distributions of modules and all that they require, by normalized name."""
    found = {
        normalized(each.name): RecordedDistribution(each.name, each.version)
        for each in side.plan.distributions
    }
    for facts in side.facts.modules:
        if facts.distribution is not None and facts.version is not None:
            found[normalized(facts.distribution)] = RecordedDistribution(
                facts.distribution, facts.version, facts.editable, facts.license
            )
    # The environment comes last: only its entries have URLs, which are compared.
    return {**found, **side.environment.distributions}
