"""One of the two packages that are compared: everything that can be read of it at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest
from modpack.core.environment import RecordedEnvironment
from modpack.core.graph import DependencyGraph
from modpack.core.plan import Plan
from modpack.core.tensors import TensorFacts
from modpack.report.archived import facts_of, read_checked_manifest
from modpack.report.auditing.belonging import (
    RecordedBelonging,
    recorded_distributions,
    with_distributions,
)
from modpack.report.facts import ModuleFacts, PackageFacts
from modpack.report.recorded import environment_of, read_plan
from modpack.report.tensors import read_tensors

__all__ = ["Side", "are_same", "is_of_trial", "read_side"]


@dataclass(frozen=True)
class Side:
    """One package.

    Attributes:
        archive: the open package.
        manifest: its manifest; None for one of torch.package.
        facts: what it holds.
        modules: its modules by path, with what they belong to.
        plan: the plan that it was written by; an empty one if it does not record it.
        environment: where it was made.
        records: its records.
    """

    archive: Archive
    manifest: Manifest | None
    facts: PackageFacts
    modules: Mapping[str, ModuleFacts]
    plan: Plan
    environment: RecordedEnvironment
    records: frozenset[str]
    _digests: dict[str, str] = field(default_factory=dict)

    def tensors(self) -> Mapping[str, tuple[TensorFacts, ...]] | None:
        """Its named tensors; None if it does not record them."""
        return None if self.manifest is None else read_tensors(self.archive, self.manifest)

    def storages(self) -> tuple[str, ...]:
        """The records of tensor storages, those of trials aside."""
        kept = filter(layout.is_storage, self.archive.names())
        return tuple(name for name in kept if not is_of_trial(name))

    def read(self, record: str) -> bytes:
        """The content of a record, checked against the manifest."""
        return self.archive.read(record, verify=self.manifest)

    def digest(self, record: str) -> str:
        """The sha256 of a record, as the manifest declares it, or computed where there is none."""
        if self.manifest is not None and record in self.manifest.records:
            return self.manifest.records[record].sha256
        if record not in self._digests:
            digest = hashlib.sha256()
            for chunk in self.archive.chunks(record):
                digest.update(chunk)
            self._digests[record] = digest.hexdigest()
        return self._digests[record]

    def read_text(self, record: str) -> str | None:
        """A small record that should be text, such as the order of bytes; None if it is missing."""
        if record not in self.records:
            return None
        return self.read(record).decode("ascii", "replace").strip()


def is_of_trial(record: str) -> bool:
    """Whether a record belongs to the examples of a trial."""
    prefixes = (".data/trial-", layout.MODPACK_PREFIX + "trial/")
    return record.startswith(prefixes)


def read_side(archive: Archive, other: Side | None = None) -> Side:
    """Read one of the packages.

    Args:
        archive: the package.
        other: the package that was read before: what is the same there is not decoded again.

    Raises:
        ArchiveError: it is no package, or a damaged one.
    """
    manifest = read_checked_manifest(archive)
    plan = _plan(archive, manifest, other)
    # Imports are compared by the plan's graph: each module's share of it is not needed.
    facts = facts_of(archive, manifest, replace(plan, graph=DependencyGraph()))
    environment = environment_of(archive, manifest)
    interned = recorded_distributions(archive, plan, manifest, environment)
    belonging = RecordedBelonging(interned, environment)
    modules = tuple(with_distributions(facts.modules, belonging))
    return Side(
        archive,
        manifest,
        replace(facts, modules=modules),
        {facts.module: facts for facts in modules},
        plan,
        environment,
        frozenset(archive.names()),
    )


def _plan(archive: Archive, manifest: Manifest | None, other: Side | None) -> Plan:
    if manifest is None:
        return Plan({})
    declared = manifest.records.get(layout.GRAPH)
    if declared is not None and other is not None and other.manifest is not None:
        if other.manifest.records.get(layout.GRAPH) == declared:
            archive.read(layout.GRAPH, verify=manifest)
            return other.plan
    return read_plan(archive, manifest)


def are_same(before: Side, old: str, after: Side, new: str) -> bool:
    """Whether a record of the one package has the content of a record of the other.

    Contents are compared by what the packages say of them: the sha256 of manifests; for tensor
    storages, where a package of torch.package has none, the crc32 that the zip states. Other
    records without a sha256 are read.
    """
    if before.archive.size(old) != after.archive.size(new):
        return False
    without_manifest = before.manifest is None or after.manifest is None
    if without_manifest and layout.is_storage(old):
        return before.archive.crc32(old) == after.archive.crc32(new)
    return before.digest(old) == after.digest(new)
