"""Rounds of the self-test: clean interpreters run the package until the outcome is final."""

from __future__ import annotations

import logging
import platform
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import torch

from modpack.archive import layout
from modpack.archive.manifest import canonical_json
from modpack.archive.records import WaitingImports
from modpack.core.codec import record_to_json
from modpack.core.json_values import Json
from modpack.core.names import is_everywhere, is_within, root_of
from modpack.core.names import normalized_distribution as normalized
from modpack.core.observations import UndeclaredImport
from modpack.core.plan import Plan
from modpack.core.process import phase
from modpack.core.rules import Action
from modpack.core.selftest import Difference, SelfTestCase, SelfTestRecord
from modpack.core.text import counted, local_folders, portable_text
from modpack.discovery.distributions import DistributionIndex, InstalledDistribution
from modpack.errors import SelfTestError
from modpack.exporting.builder import PackageBuilder
from modpack.exporting.planner import Planner
from modpack.exporting.presets import always_installed
from modpack.saving.copies import why_not_copyable
from modpack.selftest.explanations import (
    MAX_DIFFERENCES,
    Explanation,
    changed_attributes,
    changed_modules,
    explain_failure,
    failed_calls,
    failed_copies,
    module_notes,
    outcome_warnings,
)
from modpack.selftest.module_compare import LiveModules, ModuleDifference
from modpack.selftest.object_rows import Row, StateDifference, compare_objects
from modpack.selftest.process import (
    HiddenModules,
    Job,
    LazyTrial,
    ProbeLevel,
    ResolvedResources,
    RunResult,
    build_sys_path,
    extern_distributions,
    find_hidden_modules,
    run_job,
)
from modpack.selftest.reference import (
    Case,
    declared_operators,
    find_tables_naming,
    operator_schemas,
    write_record,
)
from modpack.selftest.repeated import keep, key_of, recall, without_values
from modpack.selftest.requests import MissingResourceResolver
from modpack.writing.writer import ArchiveWriter

_log = logging.getLogger("modpack")

_MAX_ROUNDS = 24
_MIN_TIMEOUT_SECONDS = 600.0
_MAX_SLOWDOWN = 30.0
"""A run may take this many times as long as the live run before it counts as hanging."""
_OPERATOR = re.compile(r"\b[A-Za-z_]\w*::[A-Za-z_]\w*")
_ABSENT_OPERATOR = re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'")
"""The error of ``torch.ops.mylib.add`` if the operator is not declared."""
_MAX_TRIALS = 4
_WORTH_WAITING = 30
"""The number of modules from which waiting imports save more than they cost to examine."""


class Outcome(NamedTuple):
    """The outcome of a self-test in the namespace that the package is written for.

    Attributes:
        namespace: The namespace.
        result: The deciding run.
        failure: The reason why the self-test did not pass, or None.
        private_failure: Why the package cannot use the private namespace, if it cannot.
        modules: The differences between the live modules and the loaded ones.
    """

    namespace: str
    result: RunResult
    failure: Explanation | None = None
    private_failure: str | None = None
    modules: tuple[ModuleDifference, ...] = ()

    @property
    def attributes(self) -> list[StateDifference]:
        """The attributes of loaded objects that differ from those of the live ones."""
        return [each for each in self.result.changed if not each.is_error]


class SelfTest:
    """The self-test of one package.

    Args:
        writer: Writes the package and the record of the self-test.
        plan: The plan of the package.
        cases: The cases to run, with the recorded outputs.
        builder: Builds the package.
        planner: Decides which missing resources are added.
        installed: The installed distributions.
        modules: The live modules.
        scripts: Files of scripts whose definitions are included.
        objects: The descriptions of the saved objects.
        roots: The saved objects themselves.
        namespace: The namespace that saved objects require.
        device: The device for the examples. None for those of the saved tensors.
        is_lazy: Whether to find imports that may wait.

    Attributes:
        call_signatures: Those of the cases. A run that passes adds varying dimensions.
    """

    def __init__(
        self,
        writer: ArchiveWriter,
        plan: Plan,
        cases: Sequence[Case],
        builder: PackageBuilder,
        planner: Planner,
        installed: DistributionIndex,
        modules: LiveModules,
        scripts: Sequence[str] = (),
        objects: Mapping[tuple[str, str], tuple[Row, ...]] = MappingProxyType({}),
        roots: Sequence[object] = (),
        namespace: str = "private",
        device: str | None = None,
        is_lazy: bool = True,
    ) -> None:
        self._plan = plan
        self._is_lazy = is_lazy
        self._device = device
        self._objects = objects
        self._roots = roots
        self._modules = modules
        self._namespace = namespace
        self._writer = writer
        self._cases = {case.records.number: case for case in cases}
        self._builder = builder
        self._installed = installed
        self._scripts = tuple(scripts)
        self._resolver = MissingResourceResolver(planner)
        models = {id(case.model): case.model for case in cases}
        self._tables = sorted({t for model in models.values() for t in find_tables_naming(model)})
        self._locate = planner.walker.locate
        self._operators: list[str] = []
        self._reruns: dict[int, list[Difference]] = {}
        self.call_signatures = tuple(case.call_signature for case in cases)
        self._call_failures: tuple[str, ...] = ()
        self._planned = 0
        self._written: str | None = None
        self._rounds = 0
        self._visible: set[str] = set()
        self._hidden = HiddenModules()
        self._path: list[str] = []
        self._tree = ""
        self._started = time.monotonic()
        limits = [case.seconds * _MAX_SLOWDOWN for case in cases]
        self._timeout = _MIN_TIMEOUT_SECONDS + sum(limits)

    def run(self, write_anyway: bool) -> tuple[Plan, tuple[str, ...]]:
        """Run the self-test, and write the package with all additions and a record of the test.

        Args:
            write_anyway: Whether to write a package that fails, with a warning.

        Returns:
            The final plan and the warnings for the user.

        Raises:
            SelfTestError: If it failed.
        """
        prefix, source = "modpack-self-test-", self._writer.path
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as self._tree:
            outcome = self._run_namespaces()
            self._write(outcome.namespace)
            outcome = outcome._replace(modules=tuple(self._changed_modules(outcome)))
            waiting = self._find_waiting(outcome)
        failure, result, why = None, outcome.result, outcome.failure
        are_equal = bool(self._cases) and why is None and not any(self._reruns.values())
        told = [d for d in outcome.modules if not (d.is_own or are_equal)]  # the outputs decide
        if why is not None:
            causes = (f"possible cause: {each.text}" for each in told[:MAX_DIFFERENCES])
            details = (*why.details, *causes)
            failure = SelfTestError(source, why.reason, details, why.log, write_anyway)
            if not write_anyway:
                raise failure
        notes = list(module_notes([each for each in outcome.modules if each not in told]))
        are_settings_unused = self._cases and not result.needs_settings
        if notes or (are_settings_unused and self._builder.torch_settings):
            if are_settings_unused:
                self._builder.torch_settings.clear()  # the outputs do not depend on them
            self._plan = replace(self._plan, notes=(*self._plan.notes, *notes))
            self._builder.write(self._plan, outcome.namespace)
        record = self._make_record(outcome, tuple(self._lasting_warnings(outcome, told)))
        write_record(self._writer, layout.SELF_TEST, record)
        if waiting is not None:
            self._writer.write(layout.WAITING, canonical_json(waiting), compress=True)
        runs = counted(record.rounds, "run")
        summary = f"{record.outcome}, namespace {record.namespace}, {runs}"
        warnings = (
            *outcome_warnings(source, failure, record),
            *failed_calls(self._call_failures),
            *changed_attributes(outcome.attributes),
            *changed_modules(told if failure is None else ()),
            *(failed_copies(result.copy_failure) if failure is None else ()),
        )
        return replace(self._plan, self_test_summary=summary), warnings

    def _lasting_warnings(
        self, outcome: Outcome, modules: Sequence[ModuleDifference]
    ) -> Iterator[str]:
        """Yield what the package records of the warnings. Values may differ in the next export."""
        for changed in outcome.attributes:
            yield f"{changed.path} differs from that of the live object"
        yield from (f"{each.name} differs from that of the exporting process" for each in modules)
        if outcome.result.copy_failure:
            yield f"for the loaded object, {outcome.result.copy_failure.partition(':')[0]}"
        for failure in self._call_failures:
            yield portable_text(f"with another size, {failure}", local_folders())

    def _run_namespaces(self) -> Outcome:
        """Find the namespace in which the package passes."""
        if self._namespace == "process" and not self._cases:
            process = self._run_rounds("process")
            return Outcome("process", process, self._explain(process))
        private = self._run_rounds("private")
        why = self._explain(private)
        if why is None:
            return self._choose_by_copies(private)
        is_hung = private.failure is not None and private.failure.is_timeout
        details = list(why.details)
        if not is_hung:
            process = self._run_rounds("process", private)
            other = self._explain(process)
            if other is None:
                return Outcome("process", process, private_failure=why.reason)
            also = "" if other.reason == why.reason else f": {other.reason}"
            details.append(f"the self-test also fails with namespace='process'{also}")
        return Outcome("private", private, why._replace(details=tuple(details)))

    def _choose_by_copies(self, private: RunResult) -> Outcome:
        """Choose the namespace in which loaded objects can be copied and pickled.

        A library may look classes up by the path of their module, as it is in its own name.
        """
        if private.copy_failure:
            process = self._run_round("process")  # only adds to a package that has failed
            if self._passes(process) and not process.copy_failure:
                why = f"for the loaded object, {private.copy_failure}"
                return Outcome("process", process, private_failure=why)
        return Outcome("private", private)

    def _show_hidden(self, result: RunResult) -> bool:
        """Show hidden modules that an extern module failed without; return whether any is new.

        The package contains them for its own code. An extern module imports those of the loading
        environment, which must therefore have them as well: they can be installed there, with
        everything that they require. If the failure names none of them, a module may have caught
        the ImportError: all are shown.
        """
        if result.failure is None:
            return False
        interned = set(self._plan.modules(Action.INTERN))
        owners = {
            name: self._installed.distribution_of(name, self._locate(name))
            for name in (*self._hidden.modules, *dict(result.blocked))
        }
        missed = {
            name: owner
            for name, by in result.blocked
            if by not in interned and root_of(name) not in self._visible
            if (owner := owners[name]) is not None
        }
        named = {name: missed[name] for name in missed if f"'{name}'" in result.failure.text}
        shown = named or missed
        required = set[str]().union(*map(self._installed.required_closure, shown.values()))
        new = set(map(root_of, shown))
        for root in self._hidden.modules:
            owner = owners[root]
            if owner is not None and normalized(owner.name) in required:
                new.add(root)
        new -= self._visible
        self._visible |= new
        if new:
            self._written = None
        return bool(new)

    def _explain(self, result: RunResult) -> Explanation | None:
        """Return the reason why a run did not pass, or None."""
        if self._passes(result):
            return None
        return explain_failure(result, self._unexplained(result))

    def _run_rounds(self, namespace: str, before: RunResult | None = None) -> RunResult:
        """Run rounds in one namespace until the package works with its own contents or fails.

        Args:
            namespace: The namespace.
            before: The result for another namespace. The same failure again is not examined
                further.
        """
        result = self._run_round(namespace)
        if before is not None and result.failure == before.failure is not None:
            return result
        while self._can_continue(result) and (self._adapt(result) or self._collect(namespace)):
            result = self._run_round(namespace)
        return result

    def _can_continue(self, result: RunResult) -> bool:
        """Return whether another run may pass."""
        is_limited = self._rounds >= _MAX_ROUNDS
        return result.is_complete and not is_limited and not self._passes(result)

    def _adapt(self, result: RunResult) -> bool:
        """Declare operators or show modules that a failure names; return whether any is new."""
        return self._declare_operators(result) or self._show_hidden(result)

    def _collect(self, namespace: str) -> bool:
        """Let the child request everything that is missing; return whether anything has changed.

        Tests for resources are only answered if the package does not pass without: code also tests
        for libraries that it can do without.
        """
        before = self._extent
        result = self._run_round(namespace, ProbeLevel.USES)
        while self._can_continue(result):
            if self._adapt(result):
                result = self._run_round(namespace, ProbeLevel.USES)
            elif result.has_skipped_probes:
                result = self._run_round(namespace, ProbeLevel.PROBES)
            else:
                break
        return self._extent != before

    @property
    def _extent(self) -> tuple[int, int, int]:
        """The number of resources, operators, and hidden modules that runs have added."""
        return len(self._resolver.added), len(self._operators), len(self._visible)

    def _declare_operators(self, result: RunResult) -> bool:
        """Declare the operators of this process that a failure names; return whether any is new.

        A failure names the first one that is missing. The others of the same library are declared
        with it, unless the package declares operators of that library itself.
        """
        if result.failure is None:
            return False
        text = "\n".join((result.failure.text, *result.failure.trace))
        missing = declared_operators().difference(result.operators)
        absent = {f"{space}::{name}" for space, name in _ABSENT_OPERATOR.findall(text)}
        named = missing.intersection(absent.union(_OPERATOR.findall(text)))
        libraries = {name.partition("::")[0] for name in named}
        libraries -= {name.partition("::")[0] for name in result.operators}
        wanted = named.union(name for name in missing if name.partition("::")[0] in libraries)
        schemas = [s for s in operator_schemas(sorted(wanted)) if s not in self._operators]
        self._operators += schemas
        return bool(schemas)

    def _run_round(self, namespace: str, probe_level: ProbeLevel = ProbeLevel.NOTHING) -> RunResult:
        self._write(namespace)
        self._rounds += 1
        job = self._make_job(namespace, probe_level)
        # With examples, new weights have new outputs. A first run that passed has added nothing.
        key = key_of(self._writer, job) if self._rounds == 1 and not self._cases else ""
        known = recall(key)
        if known is not None:
            live = map(without_values, self._objects.values())
            result = known._replace(changed=tuple(self._changed_parts(live, known)))
            if self._passes(result):
                _log.info("self-test of %s: as an earlier one, passed", self._writer.path)
                return result
        with phase(f"self-test {self._rounds}"), self._builder.open_preview() as package:
            job = job._replace(package=package)
            result = run_job(job, self._resolver.respond, self._timeout)
        result = result.rename_package(package, self._writer.path)
        result = result._replace(changed=tuple(self._changed_parts(self._objects.values(), result)))
        if result.copy_failure and any(map(why_not_copyable, self._roots)):
            result = result._replace(copy_failure="")  # as the live object
        why = self._explain(result)
        if why is None and key:
            keep(key, result)
        if why is None and result.varied.call_signatures:
            self.call_signatures, self._call_failures = result.varied
        _log.info(
            "self-test %d of %s, namespace %s: %s after %.1f seconds",
            self._rounds,
            self._writer.path,
            namespace,
            "passed" if why is None else why.reason,
            result.seconds,
        )
        return result

    def _make_job(self, namespace: str, probe_level: ProbeLevel = ProbeLevel.NOTHING) -> Job:
        """Return the job of a run, without the path of the package."""
        is_deciding = probe_level is ProbeLevel.NOTHING
        return Job(
            "",
            namespace,
            self._case_records(),
            self._hidden,
            tuple(self._path),
            self._tree,
            probe_level,
            tuple(self._operators),
            tuple(self._tables),
            call_signatures=self.call_signatures if is_deciding else (),
            objects=tuple(self._objects),
            modules=self._modules.find_names(self._plan) if is_deciding else {},
            device=self._device,
        )

    def _changed_modules(self, outcome: Outcome) -> list[ModuleDifference]:
        """Return the differences between the live modules and the loaded ones."""

        def describe_again(is_new: bool) -> Sequence[Row]:
            with phase("comparing modules"), self._builder.open_preview() as package:
                again = self._make_job(outcome.namespace)._replace(
                    package=package, cases=(), call_signatures=(), in_new_interpreter=is_new
                )
                return run_job(again, lambda _: ResolvedResources(), self._timeout).modules

        return self._modules.compare(outcome.result.modules, describe_again)

    def _find_waiting(self, outcome: Outcome) -> Mapping[str, Json] | None:
        """Return the record of the imports that may wait; None if none should.

        A trial run lets all of them wait. If it passes, those that still wait at its end may wait
        in the package. A module whose import changes another one is imported with that one,
        which is tried again.
        """
        seen = outcome.result.observations
        loaded = (*seen.modules, *seen.example_modules)
        count = len(loaded) + len(outcome.result.imported)
        if not self._is_lazy or not self._cases or outcome.failure or count < _WORTH_WAITING:
            return None
        companions: set[tuple[str, str]] = set()
        for _ in range(_MAX_TRIALS):
            with phase("trying waiting imports"), self._builder.open_preview() as package:
                job = self._make_job(outcome.namespace)._replace(
                    package=package,
                    call_signatures=(),
                    objects=(),
                    modules={},
                    tables=(),
                    in_new_interpreter=True,
                    trial=LazyTrial(loaded, tuple(sorted(companions))),
                )
                result = run_job(job, lambda _: ResolvedResources(), self._timeout)
            found = result.waiting
            if result.failure is not None or self._unexplained(result) or found.problem:
                why = result.failure.text if result.failure is not None else found.problem
                _log.info("imports do not wait: %s", why or "the output differs if they do")
                return None
            if companions.issuperset(found.effects):
                pairs = tuple(sorted(companions))
                return record_to_json(WaitingImports(found.modules, tuple(sorted(loaded)), pairs))
            companions.update(found.effects)
        _log.info("imports do not wait: too many of them change other modules")
        return None

    def _write(self, namespace: str) -> None:
        has_grown = len(self._resolver.added) > self._planned
        if has_grown:
            self._plan = self._builder.plan()
            self._planned = len(self._resolver.added)
        if has_grown or self._written is None:
            hidden = (self._plan, self._installed, self._scripts, self._visible)
            self._hidden = find_hidden_modules(*hidden)
            self._path = build_sys_path(self._plan, self._hidden)
        if has_grown or self._written != namespace:
            self._builder.write(self._plan, namespace)
            self._written = namespace

    def _passes(self, result: RunResult) -> bool:
        wrong = any(each.is_error for each in result.changed)
        return result.failure is None and not wrong and not self._unexplained(result)

    def _changed_parts(
        self, live: Iterable[Sequence[Row]], result: RunResult
    ) -> Iterator[StateDifference]:
        """Yield the parts of loaded objects that differ from those of the live ones."""
        for saved, loaded in zip(live, result.descriptions, strict=False):  # it may have failed
            yield from compare_objects(saved, loaded, self._is_changed_by_rule)

    def _is_changed_by_rule(self, row: Row) -> bool:
        decision = self._plan.decisions.get(row.module)
        return decision is not None and decision.action is Action.MOCK

    def _unexplained(self, result: RunResult) -> list[Difference]:
        """Return the differences that the live model's own randomness does not explain."""
        for number, _ in result.differences:  # each justifies one more run of the live model
            if number not in self._reruns:
                self._reruns[number] = self._cases[number].compare_with_rerun()
        return result.unexplained_differences(self._case_records())

    def _make_record(self, outcome: Outcome, warnings: tuple[str, ...]) -> SelfTestRecord:
        result, why = outcome.result, outcome.failure
        return SelfTestRecord(
            why is None,
            outcome.namespace,
            self._case_records(),
            self._rounds,
            time.monotonic() - self._started,
            tuple(self._resolver.added.values()),
            outcome.private_failure,
            None if why is None else "\n".join((why.reason, *why.details)),
            self._hidden.modules,
            self._hidden.distributions,
            tuple(self._operators),
            platform.python_version(),
            str(torch.__version__),
            objects=tuple(self._objects),
            observations=result.observations._replace(
                distributions=self._undeclared_imports(result.imported), warnings=warnings
            ),
            device=self._device,
        )

    def _undeclared_imports(
        self, imported: Iterable[tuple[str, str | None]]
    ) -> tuple[UndeclaredImport, ...]:
        """Return distributions that the self-test imported and that the package does not name.

        An extern module may import another library, as ``torch.utils.tensorboard`` does. That
        import is not recorded in the package, but without the library the package does not load.
        Distributions that are installed in any case are left out: torch, modpack, those that the
        plan names, and the requirements of all of these.

        Args:
            imported: The modules, each with its first importer if known.
        """
        installed, hidden = self._installed, self._hidden.modules
        found: dict[str, tuple[InstalledDistribution, str, str | None]] = {}
        for module, by in imported:
            if not is_everywhere(module) and not any(is_within(module, root) for root in hidden):
                owner = installed.distribution_of(module, self._locate(module))
                if owner is not None:
                    found.setdefault(normalized(owner.name), (owner, module, by))
        named = extern_distributions(self._plan, installed)
        known = {*always_installed(installed), *named}
        known = known.union(*map(installed.required_closure, named.values()))
        for name, (owner, _, _) in found.items():  # of two that require each other, keep the first
            if name not in known:
                known |= installed.required_closure(owner) - {name}
        return tuple(
            UndeclaredImport(owner.name, owner.version, module, by)
            for name, (owner, module, by) in sorted(found.items())
            if name not in known
        )

    def _case_records(self) -> tuple[SelfTestCase, ...]:
        """Return the cases with the results of repeated runs of the live model."""
        again = {number: self._reruns.get(number, []) for number in self._cases}
        return tuple(
            SelfTestCase(
                case.resource,
                number,
                case.global_hooks,
                not again[number],
                tuple(each.path for each in again[number] if each.is_structural),
            )
            for number, case in self._cases.items()
        )
