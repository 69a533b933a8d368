"""The records of modpack's own, each decoded by its reader, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest
from modpack.archive.specs import read_specs
from modpack.core.environment import RecordedEnvironment
from modpack.core.hookspec import HookSpec, hook_records
from modpack.core.names import resource_record
from modpack.core.plan import Plan
from modpack.core.tensors import TensorFacts
from modpack.core.trialrecord import TrialRecord
from modpack.errors import ArchiveError, ModpackError
from modpack.report.auditing.facts import Finding
from modpack.report.recorded import (
    Objects,
    read_environment,
    read_objects,
    read_plan,
    read_trial,
)
from modpack.report.tensors import read_tensors
from modpack.report.verifying.codes import found
from modpack.report.verifying.trials import TrialOutput, read_conditions, read_output

__all__ = ["OwnRecords", "check_texts", "read_own_records"]

_T = TypeVar("_T")
_BYTE_ORDERS: Final = ("little", "big")
_NAMESPACES: Final = ("private", "process")
_VERSION: Final = re.compile(r"\d{1,9}\n?")
_PYTHON_VERSION: Final = re.compile(r"\d+\.\d+[\w.+]*\n?")


@dataclass
class OwnRecords:
    """What could be decoded.

    Attributes:
        count: how many records were.
        plan: the decisions and their evidence; None if they cannot be told, like all others here.
        environment: where the package was made.
        objects: the saved objects.
        saved: their records.
        trial: its trial; None as well if it was not tried.
        tensors: the named tensors by object; None as well if they are not recorded.
        specs: the hooks of each saved object that has some, by its record.
        outputs: what the trial recorded as output, by the record that says so.
        findings: what is wrong with the others.
    """

    count: int = 0
    plan: Plan | None = None
    environment: RecordedEnvironment | None = None
    objects: Objects | None = None
    saved: tuple[str, ...] = ()
    trial: TrialRecord | None = None
    tensors: Mapping[str, tuple[TensorFacts, ...]] | None = None
    specs: dict[str, tuple[HookSpec, ...]] = field(default_factory=dict)
    outputs: dict[str, TrialOutput] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read_own_records(
    archive: Archive, manifest: Manifest, damaged: frozenset[str] = frozenset()
) -> OwnRecords:
    """Decode every record of modpack's own.

    Args:
        archive: the package.
        manifest: its manifest.
        damaged: records that have been told about already, and are not read again.
    """
    return _Reading(archive, manifest, damaged).all()


def check_texts(archive: Archive, damaged: frozenset[str] = frozenset()) -> Iterator[Finding]:
    """What is wrong with the small texts that torch.package's archives have as well."""
    for record, problem in (
        (layout.BYTEORDER, _byteorder_problem),
        (layout.EXTERN_MODULES, _externs_problem),
        (layout.PYTHON_VERSION, _python_version_problem),
        *((version, _version_problem) for version in layout.VERSIONS),
    ):
        if not archive.has(record) or record in damaged:
            continue
        reason = problem(_text(archive, record))
        if reason is not None:
            yield found("record-unreadable", record, reason)


class _Reading:
    """One package's records being decoded."""

    def __init__(self, archive: Archive, manifest: Manifest, damaged: frozenset[str]) -> None:
        self._archive = archive
        self._manifest = manifest
        self._damaged = damaged
        self._own = OwnRecords()

    def all(self) -> OwnRecords:
        own, archive, manifest = self._own, self._archive, self._manifest
        own.plan = self._needed(layout.GRAPH, partial(read_plan, archive, manifest))
        own.environment = self._needed(
            layout.ENVIRONMENT, partial(read_environment, archive, manifest)
        )
        own.objects = self._needed(layout.ENTRY, self._objects)
        own.trial = self._read(layout.TRIAL, partial(read_trial, archive, manifest))
        own.tensors = self._read(layout.TENSORS, partial(read_tensors, archive, manifest))
        for record in own.saved:
            specs = self._read(hook_records(record)[0], partial(read_specs, archive, record))
            if specs is not None:
                own.specs[record] = specs
        self._read_trials()
        return own

    def _needed(self, record: str, read: Callable[[], _T]) -> _T | None:
        """What a record says that every package has."""
        if not self._archive.has(record):
            if record not in self._damaged:
                self._tell(record, "it is missing, and every package has it")
            return None
        return self._read(record, read)

    def _read(self, record: str, read: Callable[[], _T]) -> _T | None:
        """What a record says, or None and a finding."""
        if not self._archive.has(record) or record in self._damaged:
            return None
        self._own.count += 1
        try:
            return read()
        except ArchiveError as failure:
            self._tell(record, failure.reason)
        except ModpackError as failure:
            self._tell(record, str(failure))
        return None

    def _objects(self) -> Objects:
        objects = read_objects(self._archive, self._manifest)
        try:
            self._own.saved = tuple(_saved_records(objects))
        except ValueError as failure:
            raise ArchiveError(self._archive.source, str(failure), layout.ENTRY) from failure
        if objects.namespace not in _NAMESPACES:
            self._tell(layout.ENTRY, f"it names no namespace with {objects.namespace!r}")
        return objects

    def _read_trials(self) -> None:
        archive, manifest = self._archive, self._manifest
        for case in self._own.trial.records if self._own.trial is not None else ():
            self._read(case.conditions, partial(read_conditions, archive, manifest, case))
            output = self._read(case.output, partial(read_output, archive, manifest, case))
            if output is not None:
                self._own.outputs[case.output] = output

    def _tell(self, record: str, reason: str) -> None:
        self._own.findings.append(found("record-unreadable", record, reason))


def _saved_records(objects: Objects) -> Iterator[str]:
    for package, resource in objects.pickles:
        yield resource_record(package, resource)


def _text(archive: Archive, record: str) -> str:
    return archive.read(record).decode("utf-8", "replace")


def _byteorder_problem(text: str) -> str | None:
    if text.strip() in _BYTE_ORDERS:
        return None
    return f"{text!r:.60} is no order of bytes: these are 'little' and 'big'"


def _externs_problem(text: str) -> str | None:
    names = [line for line in text.split("\n") if line]
    wrong = [name for name in names if not _is_module_path(name)]
    if wrong:
        return f"{wrong[0]!r:.60} is no module path"
    if len(set(names)) != len(names):
        return "a module is listed twice"
    return None


def _is_module_path(name: str) -> bool:
    return name.isprintable() and not set(name) & set(" /\\") and all(name.split("."))


def _python_version_problem(text: str) -> str | None:
    return None if _PYTHON_VERSION.fullmatch(text) else f"{text!r:.60} is no version of Python"


def _version_problem(text: str) -> str | None:
    return None if _VERSION.fullmatch(text) else f"{text!r:.60} is no version"
