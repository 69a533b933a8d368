"""Evidence from runs: clean interpreters run the package until it works with its own contents.

Each failed run may show what the plan lacks: modules and files that packaged code asks for,
operators that the exporting process has declared, modules that extern code imports, too. The
package is planned and written again with them, and judged again (:mod:`modpack.selftest.judge`).
"""

from __future__ import annotations

import logging
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from modpack.archive import layout
from modpack.archive.manifest import canonical_json
from modpack.core.codec import record_to_json
from modpack.core.json_values import ascii_json
from modpack.core.names import is_everywhere, is_within, normalized, root_of
from modpack.core.observations import UndeclaredImport
from modpack.core.plan import Plan
from modpack.core.process import phase
from modpack.core.rules import Action
from modpack.core.selftest import SelfTestRecord, WaitingImports
from modpack.core.text import counted, local_folders, portable_text
from modpack.diagnostics import Diagnostic
from modpack.discovery.distributions import InstalledDistribution
from modpack.environment.importers import Importer, module_dict
from modpack.errors import SelfTestError
from modpack.exporting.builder import PackageBuilder
from modpack.exporting.hidden_modules import (
    build_sys_path,
    extern_distributions,
    find_hidden_modules,
)
from modpack.exporting.live_code import namespace_of_file
from modpack.exporting.presets import always_installed
from modpack.exporting.requests import MissingResourceResolver
from modpack.selftest.explanations import (
    MAX_DIFFERENCES,
    Explanation,
    module_notes,
    outcome_warnings,
)
from modpack.selftest.judge import Judge
from modpack.selftest.module_compare import LiveModules, ModuleDifference
from modpack.selftest.process import HiddenModules, Job, ProbeLevel, RunResult
from modpack.selftest.reference import declared_operators, operator_schemas

_log = logging.getLogger("modpack")

_MAX_ROUNDS = 24
_OPERATOR = re.compile(r"\b[A-Za-z_]\w*::[A-Za-z_]\w*")
_ABSENT_OPERATOR = re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'")
"""The error of ``torch.ops.mylib.add`` if the operator is not declared."""


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


class Collector:
    """Completes the plan of one package by the evidence of runs, and writes the package.

    Args:
        builder: Builds the package.
        plan: The plan of the package.
        judge: Runs the package and compares it with the live objects.
        roots: The saved objects.
        importer: The importer of the saved objects and their modules.
        namespace: The namespace that saved objects require.
        is_lazy: Whether to find imports that may wait.
    """

    def __init__(
        self,
        builder: PackageBuilder,
        plan: Plan,
        judge: Judge,
        roots: Sequence[object],
        importer: Importer,
        namespace: str,
        is_lazy: bool,
    ) -> None:
        self._builder = builder
        self._writer = builder.writer
        self._installed = builder.installed
        self._walker = builder.planner.walker
        self._plan = plan
        self._judge = judge
        self._roots = roots
        self._importer = importer
        self._namespace = namespace
        self._is_lazy = is_lazy
        self._resolver = MissingResourceResolver(builder.planner)
        self._operators: list[str] = []
        self._planned = 0
        self._written: str | None = None
        self._rounds = 0
        self._visible: set[str] = set()
        self._extern_notes: dict[Diagnostic, None] = {}
        self._hidden = HiddenModules()
        self._path: list[str] = []
        self._modules = self._live_modules()
        self._started = time.monotonic()

    def run(self, write_anyway: bool) -> tuple[Plan, tuple[str, ...]]:
        """Run the self-test, and write the package with all additions and a record of the test.

        Args:
            write_anyway: Whether to write a package that fails, with a warning.

        Returns:
            The final plan and the warnings for the user.

        Raises:
            SelfTestError: If it failed.
        """
        source, judge = self._writer.path, self._judge
        outcome = self._run_namespaces()
        # The last run may have been one in the other namespace.
        self._write(outcome.namespace)
        with self._writer.open_preview() as package:
            given = self._make_job(outcome.namespace, package), self._modules, outcome.result
            outcome = outcome._replace(modules=tuple(judge.compare_modules(*given)))
            is_lazy = self._is_lazy and outcome.failure is None
            waiting = judge.find_waiting(*given) if is_lazy else None
        failure, result, why = None, outcome.result, outcome.failure
        are_equal = why is None and judge.has_equal_outputs
        told = [d for d in outcome.modules if not (d.is_own or are_equal)]  # the outputs decide
        if why is not None:
            causes = (f"possible cause: {each.text}" for each in told[:MAX_DIFFERENCES])
            details = (*why.details, *causes)
            failure = SelfTestError(source, why.reason, details, why.log, write_anyway)
            if not write_anyway:
                raise failure
        differences = [each for each in outcome.modules if each not in told]
        notes = [*module_notes(differences), *self._extern_notes]
        are_settings_unused = judge.cases and not result.needs_settings
        if notes or (are_settings_unused and self._builder.torch_settings):
            if are_settings_unused:
                self._builder.torch_settings.clear()  # the outputs do not depend on them
            self._plan = replace(self._plan, notes=(*self._plan.notes, *notes))
            self._builder.write(self._plan, outcome.namespace)
        why_eager = waiting if isinstance(waiting, str) else None
        if why_eager is not None:
            _log.info("imports do not wait: %s", why_eager)
        warned = tuple(self._lasting_warnings(outcome, told))
        record = self._make_record(outcome, warned, why_eager)
        # Writing a plan rolls back later records, so those of the self-test come last.
        self._writer.write(layout.SELF_TEST, ascii_json(record.to_json()))
        if isinstance(waiting, WaitingImports):
            document = canonical_json(record_to_json(waiting))
            self._writer.write(layout.WAITING, document, compress=True)
        runs = counted(record.rounds, "run")
        summary = f"{record.outcome}, namespace {record.namespace}, {runs}"
        failed = judge.call_failures
        warnings = outcome_warnings(source, failure, record, result, told, failed)
        return replace(self._plan, self_test_summary=summary), tuple(warnings)

    def _lasting_warnings(
        self, outcome: Outcome, modules: Sequence[ModuleDifference]
    ) -> Iterator[str]:
        """Yield what the package records of the warnings. Values may differ in the next export."""
        for changed in outcome.result.changed_attributes:
            yield f"{changed.path} differs from that of the live object"
        yield from (f"{each.name} differs from that of the exporting process" for each in modules)
        if outcome.result.copy_failure:
            yield f"for the loaded object, {outcome.result.copy_failure.partition(':')[0]}"
        for failure in self._judge.call_failures:
            yield portable_text(f"with another size, {failure}", local_folders())

    def _run_namespaces(self) -> Outcome:
        """Find the namespace in which the package passes."""
        # Nested pickles name modules by their real names. Only a run on examples can show that the
        # model works without these.
        if self._namespace == "process" and not self._judge.cases:
            process = self._run_rounds("process")
            return Outcome("process", process, self._judge.explain(process))
        private = self._run_rounds("private")
        why = self._judge.explain(private)
        if why is None:
            # A library may look classes up by the path of their module, as it is in its own name,
            # so that loaded objects can be copied and pickled in one namespace only.
            if private.copy_failure:
                process = self._run_round("process")  # only adds to a package that has failed
                if self._judge.passes(process) and not process.copy_failure:
                    why_not = f"for the loaded object, {private.copy_failure}"
                    return Outcome("process", process, private_failure=why_not)
            return Outcome("private", private)
        is_hung = private.failure is not None and private.failure.is_timeout
        details = list(why.details)
        if not is_hung:
            process = self._run_rounds("process", private)
            other = self._judge.explain(process)
            if other is None:
                return Outcome("process", process, private_failure=why.reason)
            also = "" if other.reason == why.reason else f": {other.reason}"
            details.append(f"the self-test also fails with namespace='process'{also}")
        return Outcome("private", private, why._replace(details=tuple(details)))

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
            name: self._installed.distribution_of(name, self._walker.locate(name))
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
        for name, by in result.blocked:
            if name in shown and root_of(name) in new:
                text = (
                    f"{by} is extern, but imports {name}, which is interned; in the loading "
                    f"environment, {by} needs a copy of its own"
                )
                hint = f"Intern {root_of(by)} too, or extern {root_of(name)}."
                note = Diagnostic.from_code("extern-needs-interned", by, text, hint=hint)
                self._extern_notes[note] = None
        # The plan stays the same, so request a new list of hidden modules explicitly.
        if new:
            self._written = None
        return bool(new)

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
        return result.is_complete and not is_limited and not self._judge.passes(result)

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
        job, judge, path = self._make_job(namespace), self._judge, self._writer.path
        job = job._replace(probe_level=probe_level)
        if self._rounds == 1:  # a first run that passed has added nothing
            known = judge.recall(job, self._modules, self._writer.digests())
            if known is not None:
                _log.info("self-test of %s: as an earlier one, passed", path)
                return known
        with phase(f"self-test {self._rounds}"), self._writer.open_preview() as package:
            job = job._replace(package=package)
            result = judge.run(job, self._modules, self._resolver.respond)
        # The run loaded a preview in another file; messages name the file that the user knows.
        result = result.rename_package(package, path)
        why = judge.explain(result)
        _log.info(
            "self-test %d of %s, namespace %s: %s after %.1f seconds",
            self._rounds,
            path,
            namespace,
            "passed" if why is None else why.reason,
            result.seconds,
        )
        return result

    def _make_job(self, namespace: str, package: str = "") -> Job:
        """Return the job of a run, to which the judge adds what to run and to describe."""
        return Job(
            package,
            namespace,
            (),
            self._hidden,
            tuple(self._path),
            operators=tuple(self._operators),
        )

    def _write(self, namespace: str) -> None:
        has_grown = len(self._resolver.added) > self._planned
        if has_grown:
            self._plan = self._builder.plan()
            self._planned = len(self._resolver.added)
            self._modules = self._live_modules()
        # What is hidden follows from the plan, and from the modules that a failed run made visible.
        if has_grown or self._written is None:
            scripts = self._builder.objects.scripts.files
            self._hidden = find_hidden_modules(self._plan, self._installed, scripts, self._visible)
            self._path = build_sys_path(self._plan, self._hidden)
        if has_grown or self._written != namespace:
            self._builder.write(self._plan, namespace)
            self._written = namespace

    def _live_modules(self) -> LiveModules:
        """Return the live modules of the plan, except those that were edited after their import."""
        plan = self._plan
        edited = {note.subject for note in plan.notes if note.code == "source-modified"}
        packaged: dict[str, Mapping[str, Any]] = {}
        for module in plan.modules(Action.INTERN):
            location = plan.decisions[module].location
            if module in edited or location is None or location.file is None:
                continue
            if self._walker.is_loaded(module):
                live = self._importer.loaded_module(module)
                is_packaged = self._walker.is_from_package(module)
                names = module_dict(live) if is_packaged else namespace_of_file(live, location)
                if names:
                    packaged[module] = names
        return LiveModules(
            self._roots,
            packaged,
            plan.modules(Action.MOCK),
            map(root_of, (*plan.modules(Action.INTERN), *plan.modules(Action.EXTERN))),
            self._walker,
            self._installed,
            self._builder.objects.scripts.names,
        )

    def _make_record(
        self, outcome: Outcome, warnings: tuple[str, ...], why_eager: str | None
    ) -> SelfTestRecord:
        result, why, folders = outcome.result, outcome.failure, local_folders()
        reason = None if why is None else "\n".join((why.reason, *why.details))
        # Without the folder names of this machine.
        reason, private_failure, why_eager = (
            text if text is None else portable_text(text, folders)
            for text in (reason, outcome.private_failure, why_eager)
        )
        return SelfTestRecord(
            why is None,
            outcome.namespace,
            self._judge.cases,
            self._rounds,
            time.monotonic() - self._started,
            tuple(self._resolver.added.values()),
            private_failure,
            reason,
            self._hidden.modules,
            self._hidden.distributions,
            tuple(self._operators),
            platform.python_version(),
            str(torch.__version__),
            objects=self._judge.objects,
            observations=result.observations._replace(
                distributions=self._undeclared_imports(result.imported), warnings=warnings
            ),
            device=self._judge.device,
            why_none_waits=why_eager,
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
                owner = installed.distribution_of(module, self._walker.locate(module))
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
