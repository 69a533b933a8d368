"""Whether the records of a package agree with each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.externs import read_externs
from modpack.core.actions import Action
from modpack.core.hookspec import PARAMETRIZATION, hook_records
from modpack.core.location import CodeKind
from modpack.core.names import module_record
from modpack.core.plan import Decision, FileKind, Plan
from modpack.discovery.source import scan_source
from modpack.errors import ArchiveError
from modpack.report.auditing.facts import Finding
from modpack.report.pickledhooks import find_disagreements
from modpack.report.verifying.codes import found
from modpack.report.verifying.ownrecords import OwnRecords

__all__ = ["check_agreement"]

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
            yield found("inconsistent", layout.GRAPH, text)
        if decision.action is Action.DENY:
            yield found("inconsistent", layout.GRAPH, f"{module} was denied: no package has it")
    for file in plan.files:
        if not archive.has(file.record) and file.record not in damaged:
            text = f"{file.record!r}, which came with {file.owner}, is not there"
            yield found("inconsistent", layout.GRAPH, text)


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
            yield found("code-undecided", name, "nothing was decided about this code")


def _check_externs(archive: Archive, plan: Plan, damaged: frozenset[str]) -> Iterator[Finding]:
    """What may be imported from outside is what was decided."""
    record = layout.EXTERN_MODULES
    if record in damaged or _STAND_INS in damaged:
        return
    try:
        listed, decided = set(read_externs(archive)), set(plan.modules(Action.EXTERN))
    except ArchiveError as failure:
        yield found("inconsistent", record, failure.reason)
        return
    for module in sorted(decided - listed):
        reason = f"it does not list {module}, which was decided to be extern"
        yield found("inconsistent", record, reason)
    for module in sorted(listed - decided - _needs_of_stand_ins(archive)):
        reason = f"it lists {module}, which was not decided to be extern"
        yield found("inconsistent", record, reason)


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
            yield found("inconsistent", layout.ENTRY, f"the object {record!r} is not there")
    for record in _repeated(own.saved):
        yield found("inconsistent", layout.ENTRY, f"the object {record!r} is listed twice")
    if objects is not None and objects.entry is not None and objects.entry not in objects.pickles:
        text = f"{'/'.join(objects.entry)!r} is the main object, and is not among the saved ones"
        yield found("inconsistent", layout.ENTRY, text)
    for record in sorted(set(own.tensors or ()) - set(own.saved)):
        text = f"it tells tensors of {record!r}, which is no saved object"
        yield found("inconsistent", layout.TENSORS, text)


def _check_hooks(archive: Archive, own: OwnRecords, damaged: frozenset[str]) -> Iterator[Finding]:
    """Hooks have specs and a pickle, and belong to a saved object."""
    for record in own.saved:
        specs, pickle = hook_records(record)
        if damaged & {specs, pickle}:
            continue
        has_hooks = any(s.kind != PARAMETRIZATION for s in own.specs.get(record, ()))
        if has_hooks and not archive.has(pickle):
            yield found("inconsistent", specs, f"the pickle of these hooks, {pickle!r}, is missing")
        names = [spec.name for spec in own.specs.get(record, ())]
        for name in _repeated(names):
            yield found("inconsistent", specs, f"two hooks are called {name!r:.80}")
        if archive.has(pickle) and not archive.has(specs):
            yield found("inconsistent", pickle, f"the specs of these hooks, {specs!r}, are missing")
        elif archive.has(pickle) and archive.has(record) and record not in damaged:
            for each in find_disagreements(archive, record, own.specs.get(record, ())):
                text = f"the hook {each.hook!r:.80}: {each.reason}"
                yield found("inconsistent", specs, text)
    known = {name for record in own.saved for name in hook_records(record)}
    for name in archive.names():
        if name.startswith(_HOOKS) and name not in known:
            yield found("inconsistent", name, "these hooks belong to no saved object")


def _check_trials(archive: Archive, own: OwnRecords, damaged: frozenset[str]) -> Iterator[Finding]:
    """What was tried is there, with its input and its output."""
    trial = own.trial
    known: set[str] = set()
    saved = frozenset(own.objects.pickles) if own.objects is not None else frozenset()
    for case in trial.cases if trial is not None else ():
        if case.resource not in saved:
            text = f"it tells of {'/'.join(case.resource)!r}, which is no saved object"
            yield found("inconsistent", layout.TRIAL, text)
    for records in trial.records if trial is not None else ():
        of_one = (records.inputs, records.conditions, records.output)
        known.update(of_one)
        for name in of_one:
            if not archive.has(name) and name not in damaged:
                yield found("inconsistent", layout.TRIAL, f"{name!r} is not there")
    if layout.TRIAL in damaged or (trial is None and archive.has(layout.TRIAL)):
        return  # nobody knows what belongs to it
    for name in archive.names():
        if name.startswith(_TRIALS) and name not in known:
            yield found("inconsistent", name, "this example belongs to no trial")


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _check_platform(own: OwnRecords) -> Iterator[Finding]:
    """Compiled code says for what it was compiled."""
    if own.plan is None or own.environment is None:
        return
    compiled = [file.record for file in own.plan.files if file.kind is FileKind.COMPILED]
    if compiled and own.environment.native is None:
        text = f"{compiled[0]!r} is compiled code, and no platform is recorded for it"
        yield found("inconsistent", layout.ENVIRONMENT, text)


def _check_names(archive: Archive, own: OwnRecords) -> Iterator[Finding]:
    """Where the format keeps its own, there is nothing else."""
    for name in archive.names():
        if not name.startswith(".data/") or name in _OF_THE_FORMAT or layout.is_storage(name):
            continue
        if name.startswith((_HOOKS, _TRIALS)) or _SCRIPTS.fullmatch(name):
            continue
        if not name.startswith(layout.MODPACK_PREFIX + "signature"):
            yield found("record-unknown", name, "this modpack does not know such a record")
