"""What a package could do to whoever loads it, found by reading its pickles and its sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest, read_manifest
from modpack.core.hookspec import hook_records
from modpack.core.names import resource_record
from modpack.core.trust import TrustPolicy
from modpack.discovery.pickles import (
    FlawKind,
    NameUse,
    PickledName,
    PickledStorage,
    PickleReader,
    PickleScan,
)
from modpack.errors import ArchiveError
from modpack.report.auditing.facts import Finding, Severity
from modpack.report.auditing.findings import finding
from modpack.report.recorded import read_objects
from modpack.report.scanning.allowing import names_to_allow, with_line_to_add
from modpack.report.scanning.compiled import is_archive, judge_archive, judge_script_code
from modpack.report.scanning.judging import Judge
from modpack.report.scanning.pickled import Pickle, judge_pickle, looks_pickled
from modpack.report.scanning.sources import source_effects

__all__ = ["PackageScan", "read_package", "scan_package", "scan_unlisted"]

_PICKLE_SUFFIXES: Final = (".pkl", ".pickle", ".pck", ".dill", ".joblib")
_SCRIPTS: Final = layout.MODPACK_PREFIX + "torchscript/"
_ANCESTORS_SCRIPTS: Final = ".data/ts_code/"
_HOOKS: Final = layout.MODPACK_PREFIX + "hooks/"
_TRIALS: Final = layout.MODPACK_PREFIX + "trial/"
"""Examples: verifying holds them against the record of the trial."""
_MALFORMED: Final = "pickle-malformed"
_SEVERITIES: Final = list(Severity)


@dataclass(frozen=True)
class PackageScan:
    """What reading pickles and sources tells.

    Attributes:
        findings: what is wrong, errors first.
        records: how many pickles and sources were read.
        storages: the storages that pickles refer to, by record.
    """

    findings: tuple[Finding, ...]
    records: int
    storages: Mapping[str, tuple[PickledStorage, ...]]


def scan_package(
    archive: Archive, manifest: Manifest | None, policy: TrustPolicy | None = None
) -> tuple[Finding, ...]:
    """Everything in a package that reading alone shows to be, or to be possibly, harmful.

    Nothing is unpickled, imported or executed. Every pickle is followed to its end, and must name
    nothing but what the package itself defines, what the built-in list knows, and what the
    package declares to take from outside; the sources are read for what they do when imported.

    Args:
        archive: an opened package.
        manifest: its manifest; None for a package of torch.package.
        policy: what the loader allows beyond the built-in list of names in pickles.

    Returns:
        Errors first: for each of them the package should be refused.

    Raises:
        ArchiveError: a record is damaged.
    """
    return read_package(archive, manifest, policy).findings


def read_package(
    archive: Archive,
    manifest: Manifest | None,
    policy: TrustPolicy | None = None,
    *,
    with_sources: bool = True,
) -> PackageScan:
    """The same as :func:`scan_package`, with what else the pickles tell.

    Args:
        archive: an opened package.
        manifest: its manifest; None for a package of torch.package.
        policy: what the loader allows beyond the built-in list of names in pickles.
        with_sources: whether to read the sources as well.

    Raises:
        ArchiveError: a record is damaged.
    """
    scan = _Scan(archive, manifest, policy, with_sources)
    found = list(scan.findings())
    found.sort(key=lambda each: _SEVERITIES.index(each.severity))
    if policy is None or policy.pickle_globals is None:
        found = list(with_line_to_add(found, scan.names_to_allow()))
    return PackageScan(tuple(found), scan.records, scan.storages)


def scan_unlisted(archive: Archive, record: str, policy: TrustPolicy) -> tuple[Finding, ...]:
    """The same of one pickle that the package does not list among its saved objects.

    Args:
        archive: an opened package.
        record: what is about to be loaded as a pickle.
        policy: what the loader allows.

    Returns:
        Nothing for one that is listed, for :func:`scan_package` has told.
    """
    scan = _Scan(archive, read_manifest(archive), policy, with_sources=False)
    return tuple(scan.unlisted(record))


class _Scan:
    """The scan of one package."""

    def __init__(
        self,
        archive: Archive,
        manifest: Manifest | None,
        policy: TrustPolicy | None,
        with_sources: bool,
    ) -> None:
        self._archive = archive
        self._with_sources = with_sources
        self._judge = Judge(archive, policy)
        self._declared = _declared(archive, manifest)
        self._is_foreign = manifest is None
        self.records = 0
        self.storages: dict[str, tuple[PickledStorage, ...]] = {}
        self._named: dict[tuple[PickledName, bool], None] = {}
        self._hooks = {hook_records(record)[1]: record for record in self._declared}

    def findings(self) -> Iterator[Finding]:
        for record in self._declared:
            if not self._archive.has(record):
                text = f"{record} is a saved object, and is not there"
                yield finding("pickle-missing", record, text, record)
        for record in self._archive.names():
            if record in self._declared:
                yield from self._object(record)
            elif record in self._hooks:
                if not self._archive.has(self._hooks[record]):
                    yield from self._hooks_alone(record)
            elif not layout.is_storage(record):
                yield from self._other(record)

    def unlisted(self, record: str) -> Iterator[Finding]:
        """What is wrong with a pickle that is no saved object which the package lists."""
        if record not in self._declared:
            yield from self._object(record)

    def names_to_allow(self) -> Iterator[str]:
        """What a policy with a list must have in it to allow all that pickles name."""
        return names_to_allow(self._named, self._judge)

    def _object(self, record: str) -> Iterator[Finding]:
        """A saved object, and its hooks, which the same unpickler loads."""
        reader = PickleReader()
        found = self._read(Pickle(record, self._archive.read(record), reader))
        yield from found
        _, hooks = hook_records(record)
        if self._archive.has(hooks):
            data = self._archive.read(hooks)
            continued = self._read(Pickle(hooks, data, reader, is_several=True))
            is_broken = any(each.code == _MALFORMED for each in found)
            yield from _of_themselves(continued) if is_broken else continued

    def _hooks_alone(self, record: str) -> Iterator[Finding]:
        """Hooks whose object is missing: they cannot be followed for that alone."""
        data = self._archive.read(record)
        yield from _of_themselves(self._read(Pickle(record, data, is_several=True)))

    def _read(self, pickle: Pickle) -> list[Finding]:
        scan, found = judge_pickle(pickle, self._judge)
        self._took(pickle, scan)
        return found

    def _took(self, pickle: Pickle, scan: PickleScan) -> None:
        self.records += 1
        self._named.update(((named, pickle.is_script), None) for named in scan.names)
        if scan.storages:
            self.storages[pickle.record] = scan.storages

    def _other(self, record: str) -> Iterator[Finding]:
        start = self._archive.start(record, 4)
        if record.startswith(_ANCESTORS_SCRIPTS):
            yield from self._script_part(record, start)
        elif record.startswith(_SCRIPTS):
            yield from self._script(record, start)
        elif record.endswith(".py"):
            if self._with_sources:
                self.records += 1
                yield from source_effects(record, self._archive.read(record))
        elif record.endswith(_PICKLE_SUFFIXES) or looks_pickled(start):
            yield from self._undeclared(record)

    def _script(self, record: str, start: bytes) -> Iterator[Finding]:
        """An archive that torch reads: it finds one that begins later in a record as well."""
        if is_archive(start):
            yield from judge_archive(record, self._archive.read(record), self._judge)
        else:
            text = f"{record} does not begin as an archive"
            yield finding("nested-archive", record, text, record)

    def _script_part(self, record: str, start: bytes) -> Iterator[Finding]:
        """A part of a ScriptModule in a package of torch.package."""
        if record.endswith(".py"):
            yield from judge_script_code(record, self._archive.read(record))
        elif record.endswith(".pkl") or looks_pickled(start):
            yield from self._read(Pickle(record, self._archive.read(record), is_script=True))

    def _undeclared(self, record: str) -> Iterator[Finding]:
        """What looks like a pickle, and is no saved object that the package tells of."""
        several = record.startswith(_HOOKS)
        pickle = Pickle(record, self._archive.read(record), is_several=several)
        scan, found = judge_pickle(pickle, self._judge)
        if not record.endswith(_PICKLE_SUFFIXES) and not _does_something(scan):
            return  # it only begins like one, or holds nothing but data
        self._took(pickle, scan)
        if not self._is_foreign and not record.startswith(_TRIALS):
            text = f"{record} is a pickle, and no saved object of the package"
            yield finding("pickle-undeclared", record, text, record)
        yield from found


def _declared(archive: Archive, manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is None:
        return ()
    try:
        pickles = read_objects(archive, manifest).pickles
        return tuple(resource_record(package, name) for package, name in pickles)
    except ValueError as failure:
        raise ArchiveError(archive.source, str(failure), layout.ENTRY) from failure


def _of_themselves(findings: Sequence[Finding]) -> Iterator[Finding]:
    """What is wrong with hooks, but for what follows from the object's pickle being broken."""
    return (each for each in findings if each.code != _MALFORMED)


def _does_something(scan: PickleScan) -> bool:
    """Whether what may be no pickle at all is one, or does something until that shows."""
    is_whole = all(flaw.kind is not FlawKind.MALFORMED for flaw in scan.flaws)
    return any(is_whole or named.use is not NameUse.HELD for named in scan.names)
