"""What a trial left in a package, decoded without torch.

The records of modpack's own, each decoded by its reader, and what is wrong with them.

Whether the records of a package agree with each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from modpack.archive import layout
from modpack.archive.base import Archive, RecordVerifier
from modpack.archive.layout import hook_records
from modpack.archive.manifest import Manifest
from modpack.archive.records import (
    Objects,
    checking,
    read_document,
    read_environment,
    read_externs,
    read_objects,
    read_plan,
    read_specs,
    read_tensors,
    read_trial,
)
from modpack.core.environment import RecordedEnvironment
from modpack.core.graph import CodeKind
from modpack.core.hookspec import PARAMETRIZATION, HookSpec
from modpack.core.json_values import (
    Json,
    as_list,
    as_mapping,
    as_number,
    as_optional_text,
    as_text,
    as_truth,
)
from modpack.core.names import module_record, resource_record
from modpack.core.plan import Decision, FileKind, Plan
from modpack.core.rules import Action
from modpack.core.selftest import CaseRecords, TrialRecord
from modpack.core.tensors import ITEM_BYTES, TensorFacts
from modpack.discovery.import_scanner import scan_source
from modpack.errors import ArchiveError, ModpackError
from modpack.report.audit_facts import Finding
from modpack.report.finding_codes import finding
from modpack.security.pickled_hooks import find_disagreements

_TRUTHS = ("grad", "inference", "deterministic", "deterministic_warn_only", "mkldnn")
_TEXTS = ("default_dtype", "default_device", "matmul_precision")
_MOST_ELEMENTS = 2**63


@dataclass(frozen=True)
class TrialTensor:
    """A tensor of a recorded output.

    Attributes:
        record: holds its elements.
        size_bytes: how many bytes these are; None if its type is not known here.
    """

    record: str
    size_bytes: int | None


@dataclass(frozen=True)
class TrialOutput:
    """A recorded output.

    Attributes:
        tensors: its tensors, in order.
    """

    tensors: tuple[TrialTensor, ...]


def read_output(archive: Archive, verify: RecordVerifier, case: CaseRecords) -> TrialOutput:
    """What an example is known to return.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with checking(archive, case.output):
        document = read_document(archive, case.output, verify)
        leaves = [as_mapping(each, "a leaf") for each in as_list(document["leaves"], "leaves")]
        for leaf in leaves:
            as_text(leaf["path"], "a path")
            as_text(leaf["structure"], "a structure")
            as_optional_text(leaf["value"], "a value")
        return TrialOutput(tuple(_tensor(leaf["tensor"]) for leaf in leaves if "tensor" in leaf))


def read_conditions(archive: Archive, verify: RecordVerifier, case: CaseRecords) -> None:
    """Check what is recorded of the circumstances of an example's run.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with checking(archive, case.conditions):
        document = read_document(archive, case.conditions, verify)
        for key in _TRUTHS:
            as_truth(document[key], key)
        for key in _TEXTS:
            as_text(document[key], key)
        as_number(document["threads"], "threads")
        for dtype in as_mapping(document["autocast"], "autocast").values():
            as_text(dtype, "a dtype")
        _check_random_states(as_mapping(document["random"], "random"))


def _check_random_states(states: dict[str, Json]) -> None:
    as_text(states.get("torch", ""), "the state of torch's generator")
    for name in ("python", "numpy"):
        as_list(states.get(name, []), "the state of another generator")
    for state in as_list(states.get("cuda", []), "states of generators"):
        as_text(state, "the state of a generator")


def _tensor(value: Json) -> TrialTensor:
    entry = as_mapping(value, "a tensor")
    count = 1
    for size in as_list(entry["shape"], "a shape"):
        count *= as_number(size, "a size")
        if not 0 <= count < _MOST_ELEMENTS:
            raise ValueError("a shape is too large for any machine, or negative")
    item = ITEM_BYTES.get(as_text(entry["dtype"], "a dtype"))
    record = as_text(entry["record"], "a record")
    return TrialTensor(record, None if item is None else item * count)


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
            yield finding("record-unreadable", record, reason)


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
        self._own.findings.append(finding("record-unreadable", record, reason))


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


_STAND_INS: Final = module_record("_modpack_mock", False)
"""The record of what stand-ins are made of: no decision mentions it."""
_HOOKS: Final = layout.MODPACK_PREFIX + "hooks/"
_TRIALS: Final = layout.MODPACK_PREFIX + "trial/"
_SCRIPTS: Final = re.compile(re.escape(layout.MODPACK_PREFIX) + r"torchscript/\d+\.pt")
_OF_THE_FORMAT: Final = frozenset(
    {
        *(layout.MANIFEST, layout.MANIFEST_DIGEST, layout.GRAPH, layout.ENVIRONMENT),
        *(layout.ENTRY, layout.TRIAL, layout.TENSORS, layout.VERSION, layout.EXTERN_MODULES),
        *(layout.PYTHON_VERSION, layout.SERIALIZATION_ID),
    }
)
_COMPILED: Final = re.compile(r"\.(so|pyd|dylib|dll)(\.[\d.]+)?$")


def check_agreement(
    archive: Archive, own: OwnRecords, damaged: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Hold the records of a package of modpack's against each other.

    What could not be decoded is left out: that has been told.

    Args:
        archive: the package.
        own: its records, decoded.
        damaged: records whose content is not to be relied upon.
    """
    if own.plan is not None:
        yield from _check_decisions(archive, own.plan, damaged)
        yield from _check_code(archive, own.plan)
        yield from _check_externs(archive, own.plan, damaged)
    if own.objects is not None:
        yield from _check_objects(archive, own, damaged)
        yield from _check_hooks(archive, own, damaged)
        yield from _check_trials(archive, own, damaged)
    if own.plan is not None and own.environment is not None:
        yield from _check_platform(own)
    yield from _check_names(archive, own)


def _check_decisions(archive: Archive, plan: Plan, damaged: frozenset[str]) -> Iterator[Finding]:
    """Each decision about code has its record."""
    compiled = {file.owner for file in plan.files if file.kind is FileKind.COMPILED}
    for module, decision in plan.decisions.items():
        wanted = _record_wanted(decision, module in compiled)
        if wanted and not any(archive.has(name) or name in damaged for name in wanted):
            text = f"{module} was {decision.action.past}, and {wanted[0]!r} is not there"
            yield finding("inconsistent", layout.GRAPH, text)
        if decision.action is Action.DENY:
            yield finding("inconsistent", layout.GRAPH, f"{module} was denied: no package has it")
    for file in plan.files:
        if not archive.has(file.record) and file.record not in damaged:
            text = f"{file.record!r}, which came with {file.owner}, is not there"
            yield finding("inconsistent", layout.GRAPH, text)


def _record_wanted(decision: Decision, is_compiled: bool) -> tuple[str, ...]:
    """The records of which one must be there for a decision; none for folders."""
    both = module_record(decision.module, True), module_record(decision.module, False)
    if decision.action is Action.MOCK:
        return both
    location = decision.location
    if decision.action is not Action.INTERN or location is None or is_compiled:
        return ()
    if location.kind is not CodeKind.SOURCE:
        return ()
    return both[:1] if location.is_package else both[1:]


def _check_code(archive: Archive, plan: Plan) -> Iterator[Finding]:
    """Each record that can be imported has its decision."""
    planned = {file.record for file in plan.files} | {_STAND_INS}
    for decision in plan.decisions.values():
        if decision.action in (Action.INTERN, Action.MOCK):
            planned.add(module_record(decision.module, True))
            planned.add(module_record(decision.module, False))
    for name in archive.names():
        is_code = name.endswith(".py") or _COMPILED.search(name) is not None
        if is_code and not layout.is_internal(name) and name not in planned:
            yield finding("code-undecided", name, "nothing was decided about this code")


def _check_externs(archive: Archive, plan: Plan, damaged: frozenset[str]) -> Iterator[Finding]:
    """What may be imported from outside is what was decided."""
    record = layout.EXTERN_MODULES
    if record in damaged or _STAND_INS in damaged:
        return
    try:
        listed, decided = set(read_externs(archive)), set(plan.modules(Action.EXTERN))
    except ArchiveError as failure:
        yield finding("inconsistent", record, failure.reason)
        return
    for module in sorted(decided - listed):
        reason = f"it does not list {module}, which was decided to be extern"
        yield finding("inconsistent", record, reason)
    for module in sorted(listed - decided - _needs_of_stand_ins(archive)):
        reason = f"it lists {module}, which was not decided to be extern"
        yield finding("inconsistent", record, reason)


def _needs_of_stand_ins(archive: Archive) -> frozenset[str]:
    if not archive.has(_STAND_INS):
        return frozenset()
    scan = scan_source(archive.read(_STAND_INS), "_modpack_mock", False)
    return frozenset(statement.module for statement in scan.imports)


def _check_objects(archive: Archive, own: OwnRecords, damaged: frozenset[str]) -> Iterator[Finding]:
    """The saved objects are there, and what is told of objects is told of those."""
    objects = own.objects
    for record in own.saved:
        if not archive.has(record) and record not in damaged:
            yield finding("inconsistent", layout.ENTRY, f"the object {record!r} is not there")
    for record in _repeated(own.saved):
        yield finding("inconsistent", layout.ENTRY, f"the object {record!r} is listed twice")
    if objects is not None and objects.entry is not None and objects.entry not in objects.pickles:
        text = f"{'/'.join(objects.entry)!r} is the main object, and is not among the saved ones"
        yield finding("inconsistent", layout.ENTRY, text)
    for record in sorted(set(own.tensors or ()) - set(own.saved)):
        text = f"it tells tensors of {record!r}, which is no saved object"
        yield finding("inconsistent", layout.TENSORS, text)


def _check_hooks(archive: Archive, own: OwnRecords, damaged: frozenset[str]) -> Iterator[Finding]:
    """Hooks have specs and a pickle, and belong to a saved object."""
    for record in own.saved:
        specs, pickle = hook_records(record)
        if damaged & {specs, pickle}:
            continue
        has_hooks = any(s.kind != PARAMETRIZATION for s in own.specs.get(record, ()))
        if has_hooks and not archive.has(pickle):
            yield finding(
                "inconsistent", specs, f"the pickle of these hooks, {pickle!r}, is missing"
            )
        names = [spec.name for spec in own.specs.get(record, ())]
        for name in _repeated(names):
            yield finding("inconsistent", specs, f"two hooks are called {name!r:.80}")
        if archive.has(pickle) and not archive.has(specs):
            yield finding(
                "inconsistent", pickle, f"the specs of these hooks, {specs!r}, are missing"
            )
        elif archive.has(pickle) and archive.has(record) and record not in damaged:
            for each in find_disagreements(archive, record, own.specs.get(record, ())):
                text = f"the hook {each.hook!r:.80}: {each.reason}"
                yield finding("inconsistent", specs, text)
    known = {name for record in own.saved for name in hook_records(record)}
    for name in archive.names():
        if name.startswith(_HOOKS) and name not in known:
            yield finding("inconsistent", name, "these hooks belong to no saved object")


def _check_trials(archive: Archive, own: OwnRecords, damaged: frozenset[str]) -> Iterator[Finding]:
    """What was tried is there, with its input and its output."""
    trial = own.trial
    known: set[str] = set()
    saved = frozenset(own.objects.pickles) if own.objects is not None else frozenset()
    for case in trial.cases if trial is not None else ():
        if case.resource not in saved:
            text = f"it tells of {'/'.join(case.resource)!r}, which is no saved object"
            yield finding("inconsistent", layout.TRIAL, text)
    for records in trial.records if trial is not None else ():
        of_one = (records.inputs, records.conditions, records.output)
        known.update(of_one)
        for name in of_one:
            if not archive.has(name) and name not in damaged:
                yield finding("inconsistent", layout.TRIAL, f"{name!r} is not there")
    if layout.TRIAL in damaged or (trial is None and archive.has(layout.TRIAL)):
        return  # nobody knows what belongs to it
    for name in archive.names():
        if name.startswith(_TRIALS) and name not in known:
            yield finding("inconsistent", name, "this example belongs to no trial")


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _check_platform(own: OwnRecords) -> Iterator[Finding]:
    """Compiled code says for what it was compiled."""
    if own.plan is None or own.environment is None:
        return
    compiled = [file.record for file in own.plan.files if file.kind is FileKind.COMPILED]
    if compiled and own.environment.native is None:
        text = f"{compiled[0]!r} is compiled code, and no platform is recorded for it"
        yield finding("inconsistent", layout.ENVIRONMENT, text)


def _check_names(archive: Archive, own: OwnRecords) -> Iterator[Finding]:
    """Where the format keeps its own, there is nothing else."""
    for name in archive.names():
        if not name.startswith(".data/") or name in _OF_THE_FORMAT or layout.is_storage(name):
            continue
        if name.startswith((_HOOKS, _TRIALS)) or _SCRIPTS.fullmatch(name):
            continue
        if not name.startswith(layout.MODPACK_PREFIX + "signature"):
            yield finding("record-unknown", name, "this modpack does not know such a record")
