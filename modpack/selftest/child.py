"""Entry point of the clean interpreter: load the package, run it, compare the output, report.

Nothing here may import torch, or anything outside modpack and the standard library, before
:class:`.HostIsolation` is installed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from modpack.archive.layout import RUNTIME_MODULE, ExampleRecords
from modpack.core.call_signature import CallSignature, build_arguments, name_arguments
from modpack.core.codec import from_json, record_to_json
from modpack.core.json_values import Json
from modpack.core.names import root_of, strip_namespaces
from modpack.core.observations import (
    NO_OBSERVATIONS,
    MockEvent,
    MockEventKind,
    Observations,
    UnfilledTable,
)
from modpack.core.selftest import Difference, SelfTestCase
from modpack.errors import ModpackWarning
from modpack.selftest.child_surroundings import (
    HostIsolation,
    IncrementalImporter,
    MissingResourceMonitor,
)
from modpack.selftest.process import (
    VARIATION_SECONDS,
    Failure,
    Job,
    ProbeLevel,
    ResolvedResources,
    ResourceRequest,
    RunResult,
    VariedCalls,
)

_OWN_FRAMES = 32
"""Stack frames that the self-test itself needs. The recursion limit is raised by this number, so
that an import chain that loads elsewhere also loads in the self-test."""
_MAX_FRAMES = 12
_MAX_VARIED_SECONDS = VARIATION_SECONDS / 10
"""Varying dimensions are only searched for if one case takes less time than this."""
_MAX_CAUSES = 4
_CALL_WRAPPERS = ("_call_impl", "_wrapped_call_impl")
_CODE = (*SOURCE_SUFFIXES, *BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES)


def format_exception(failure: BaseException) -> str:
    """Return an exception on one line.

    >>> format_exception(KeyError("x"))
    "KeyError: 'x'"
    """
    lines = traceback.format_exception_only(type(failure), failure)
    return " ".join("".join(lines).split())


def format_traceback(failure: BaseException, tree: Path | None) -> list[str]:
    """Return the lines of a traceback, innermost last, followed by its causes.

    Args:
        failure: The exception.
        tree: The folder of the unpacked package. Its files are shown by their records.
    """
    lines = list(_frames(failure, tree))
    cause, seen = _cause_of(failure), 0
    # Causes may refer to each other in a circle, so their number is limited.
    while cause is not None and seen < _MAX_CAUSES:
        lines += [f"caused by {format_exception(cause)}", *list(_frames(cause, tree))[-2:]]
        cause, seen = _cause_of(cause), seen + 1
    return lines


def _cause_of(failure: BaseException) -> BaseException | None:
    # As in Python's tracebacks: ``raise ... from None`` hides the context.
    if failure.__cause__ is not None:
        return failure.__cause__
    return None if failure.__suppress_context__ else failure.__context__


def _frames(failure: BaseException, tree: Path | None) -> Iterator[str]:
    # The file with the error never ran, so no frame names it.
    if isinstance(failure, SyntaxError) and failure.filename:
        yield f"{shorten_path(failure.filename, tree)}:{failure.lineno}"
    # Neither modpack's own frames are worth showing, nor torch's call wrappers.
    ours = ("<frozen", "<string>", str(Path(__file__).parents[1]))
    found = traceback.extract_tb(failure.__traceback__)
    frames = [f for f in found if not f.filename.startswith(ours) and f.name not in _CALL_WRAPPERS]
    for frame in frames[-_MAX_FRAMES:]:
        line = f": {frame.line}" if frame.line else ""
        yield f"{shorten_path(frame.filename, tree)}:{frame.lineno}, in {frame.name}{line}"


def shorten_path(file: str, tree: Path | None) -> str:
    """Return a file's record in the package, or its path below the site-packages folder.

    Args:
        file: The path.
        tree: The folder of the unpacked package.
    """
    if tree is not None and Path(file).is_relative_to(tree):
        return Path(file).relative_to(tree).as_posix()
    parts = Path(file).parts
    for home in ("site-packages", "dist-packages"):
        if home in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(home) :])
    return file


def main(job: dict[str, Json], handle: int) -> None:
    """Run a :class:`.Job`, send the result to the parent, and end the process.

    Args:
        job: The job as JSON.
        handle: Handle of the connection to the parent.
    """
    # If native code crashes, the log at least has Python's stack.
    faulthandler.enable()
    sys.setrecursionlimit(sys.getrecursionlimit() + _OWN_FRAMES)
    # Programs that packaged code starts would otherwise inherit the connection to the parent.
    os.set_inheritable(handle, False) if os.name == "posix" else None
    # Some libraries parse it on import, and a new interpreter has the job's arguments there.
    sys.argv = [""]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModpackWarning)  # the parent has already warned
        known = from_json(Job, job, "the job")
    connection = Connection(handle)
    isolation = HostIsolation(known.hidden)
    isolation.install()
    runner = _JobRunner(known, connection, isolation)
    result = runner.run()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # the parent may end this process once it has the result
    connection.send_bytes(_encode("result", result))
    if known.call_signatures and result.failure is None:
        connection.send_bytes(_encode("varied", runner.vary_calls()))
    os._exit(0)  # without waiting for threads that the package started


def _encode(kind: str, record: object) -> bytes:
    return json.dumps({kind: record_to_json(record)}).encode("ascii")


class _JobRunner:
    """Runs one job, from the first import to the last comparison."""

    def __init__(self, job: Job, connection: Connection, isolation: HostIsolation) -> None:
        self._job = job
        self._isolation = isolation
        self._connection = connection
        self._importer: IncrementalImporter | None = None
        self._modules_before: frozenset[str] = frozenset()
        self._loaded: frozenset[str] | None = None
        self._opened: set[str] = set()
        self._monitor: MissingResourceMonitor | None = None
        self._seconds: dict[int, float] = {}
        self._result = RunResult(None)
        """What the run has shown so far."""

    def run(self) -> RunResult:
        """Run the job and catch everything that packaged code raises."""
        differences: list[tuple[int, Difference]] = []
        try:
            for number, each in self._differences():
                differences.append((number, each))
        except BaseException as raised:  # packaged code may raise SystemExit
            # The cause may be an operator that only the live process has declared.
            operators = tuple(sorted(_reference().declared_operators()))
            self._result = self._result._replace(
                failure=self._describe(raised), operators=operators
            )
        imports = None if self._importer is None else self._importer.namespace.finder.imports
        failed = () if imports is None else tuple(sorted(imports.failed))
        blocked = self._isolation.blocked.items()
        return self._result._replace(
            differences=tuple(differences),
            blocked=tuple((name, strip_namespaces(by)) for name, by in blocked),
            has_skipped_probes=self._monitor is not None and self._monitor.has_skipped_probes,
            imported=tuple(self._outside_imports()),
            observations=self._observations(),
            waiting=self._result.waiting._replace(failed=failed),
        )

    def vary_calls(self) -> VariedCalls:
        """Return the job's call signatures with the dimensions that may vary."""
        from modpack.selftest.variations import find_varying_dimensions

        known = {each.resource: each for each in self._job.call_signatures}
        failures: list[str] = []
        for case in self._job.cases:
            seconds = self._seconds.get(case.number, 0.0)
            if self._importer is not None and seconds < _MAX_VARIED_SECONDS:
                signature = known[case.resource]
                with contextlib.suppress(BaseException):  # packaged code may raise SystemExit
                    # A newly loaded model: the run of the example may have changed the other one.
                    prepared = _examples().prepared_case(self._importer, case, self._job.device)
                    with prepared as (model, example):
                        known[case.resource], failed = find_varying_dimensions(
                            signature,
                            name_arguments(signature, example.args, example.kwargs),
                            partial(_call_with, signature, model),
                        )
                        failures += map(strip_namespaces, failed)
        return VariedCalls(tuple(known.values()), tuple(failures))

    def _differences(self) -> Iterator[tuple[int, Difference]]:
        import torch  # noqa: F401  # its own imports are not the package's

        job = self._job
        if job.operators:
            _examples().declare_operators(job.operators)
        self._modules_before = frozenset(sys.modules)
        chosen = job.policy, job.lazy, job.trial
        self._importer = IncrementalImporter(job.package, job.namespace, *chosen)
        watch_files(self._importer.tree, self._opened)
        if job.probe_level is not ProbeLevel.NOTHING:
            self._monitor = MissingResourceMonitor(self._importer, self._request, job.probe_level)
            self._monitor.install()
        for resource in job.objects:
            rows, failed = self._importer.describe(*resource)
            self._result = self._result._replace(
                descriptions=(*self._result.descriptions, rows),
                copy_failure=self._result.copy_failure or strip_namespaces(failed),
            )
        # Before the examples: modules that are imported later are recorded as theirs.
        self._loaded = _packaged_modules(self._importer)
        if job.modules:
            described = self._importer.describe_modules(job.modules)
            self._result = self._result._replace(modules=described)
        for case in job.cases:
            started = time.monotonic()
            if job.trial is None and _depends_on_settings(self._importer, case, job.device):
                self._result = self._result._replace(needs_settings=True)
            for difference in _examples().case_differences(self._importer, case, job.device):
                yield case.number, difference
            self._seconds[case.number] = time.monotonic() - started
        imports = self._importer.namespace.finder.imports
        if job.trial is not None and imports is not None:
            from modpack.selftest.import_effects import examine_waiting  # few runs are trials

            examined = examine_waiting(self._importer.namespace, imports)
            self._result = self._result._replace(waiting=examined)
            for case in job.cases:  # again, with everything imported
                for difference in _examples().case_differences(self._importer, case, job.device):
                    yield case.number, difference

    def _request(self, request: ResourceRequest) -> ResolvedResources:
        self._connection.send_bytes(_encode("request", request))
        return from_json(
            ResolvedResources, json.loads(self._connection.recv_bytes()), "the response"
        )

    def _observations(self) -> Observations:
        if self._importer is None:
            return NO_OBSERVATIONS
        imported = _packaged_modules(self._importer)
        loaded = imported if self._loaded is None else self._loaded  # None: loading failed
        return Observations(
            tuple(sorted(loaded)),
            tuple(sorted(imported - loaded)),
            tuple(sorted(self._opened & self._importer.records)),
            mock_events=tuple(self._mock_events(self._importer)),
            unfilled_tables=tuple(self._unfilled_tables(self._importer)),
        )

    def _mock_events(self, importer: IncrementalImporter) -> Iterator[MockEvent]:
        """Yield the uses of mocked modules, as recorded by the mocks' runtime."""
        name = importer.namespace.full_name(RUNTIME_MODULE)
        kept = getattr(sys.modules.get(name), "touches", {})
        for module, kind, used, operation, file, line in list(kept):
            place = f"{shorten_path(file, importer.tree)}:{line}" if file else None
            yield MockEvent(module, MockEventKind(kind), used, operation, place)

    def _outside_imports(self) -> Iterator[tuple[str, str | None]]:
        """Yield each outermost module with a file that was imported, and its importer."""
        for name in sorted(set(sys.modules) - self._modules_before):
            if _has_file(name) and not _has_file(name.rpartition(".")[0]):
                by = self._isolation.requested_by.get(root_of(name))
                yield name, by and strip_namespaces(by)

    def _unfilled_tables(self, importer: IncrementalImporter) -> Iterator[UnfilledTable]:
        """Yield the tables that name a class of the model in the parent but not in this process."""
        for table in self._job.tables:
            loaded = sys.modules.get(importer.namespace.full_name(table.module))
            if isinstance(loaded, ModuleType) and table.name in vars(loaded):
                if table.kind not in _reference().named_classes(vars(loaded)[table.name]):
                    yield table

    def _describe(self, failure: BaseException) -> Failure:
        tree = self._importer.tree if self._importer is not None else None
        trace = format_traceback(failure, tree)
        text = strip_namespaces(format_exception(failure))
        return Failure(text, tuple(map(strip_namespaces, trace)))


def _depends_on_settings(
    importer: IncrementalImporter, case: SelfTestCase, device: str | None
) -> bool:
    """Return whether a case computes something else with torch's default settings."""
    from modpack.examples.conditions import without_settings

    recorded = json.loads(importer.load_binary("", ExampleRecords(case.number).conditions))
    defaults = without_settings(recorded)
    try:
        return defaults is not None and bool(
            _examples().case_differences(importer, case, device, defaults)
        )
    except BaseException:  # packaged code may raise SystemExit
        # A model that only runs with the recorded settings needs them.
        return True


def _call_with(signature: CallSignature, model: Any, values: Mapping[str, object]) -> object:
    return _examples().Example(*build_arguments(signature, values)).call(model)


def _reference() -> Any:
    """Import the module of the reference run late, because it imports torch."""
    from modpack.selftest import reference

    return reference


def _examples() -> Any:
    """Import the module of examples late, because it imports torch."""
    from modpack.examples import recorded

    return recorded


def _has_file(module: str) -> bool:
    loaded = sys.modules.get(module)
    return isinstance(loaded, ModuleType) and isinstance(vars(loaded).get("__file__"), str)


def _packaged_modules(importer: IncrementalImporter) -> frozenset[str]:
    """Return the modules of the package that were imported, without mocks."""
    # Code may put objects of any kind into sys.modules.
    loaded = [(name, getattr(m, "__dict__", {})) for name, m in list(sys.modules.items())]
    packaged = {name for name, found in loaded if "__modpack__" in found and "_MOCK" not in found}
    runtime = importer.namespace.full_name(RUNTIME_MODULE)
    return frozenset(map(strip_namespaces, packaged - {runtime, importer.namespace.name}))


def watch_files(tree: Path, opened: set[str]) -> None:
    """Add each file in a folder that Python code opens to a set, except the code of modules.

    Args:
        tree: The folder of the unpacked package.
        opened: The set, of paths in the folder, as records.
    """
    prefix = f"{tree}{os.sep}"

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(path := arguments[0], str) and path.startswith(prefix):
            if not path.endswith(_CODE) and "__pycache__" not in path:
                opened.add(path[len(prefix) :].replace(os.sep, "/"))

    sys.addaudithook(audit)
