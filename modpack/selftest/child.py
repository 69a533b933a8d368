"""What runs in the clean interpreter: load the package, compute, compare, report.

Until what is to be hidden is hidden, nothing here may import torch, nor anything else that is not
of modpack or the standard library.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from modpack.archive.layout import RUNTIME_MODULE
from modpack.core.codec import from_json, record_to_json
from modpack.core.json_values import Json
from modpack.core.names import root_of
from modpack.core.plan import MockEvent, MockEventKind
from modpack.core.selftest import CaseRecordNames, SelfTestCase, UnfilledTable
from modpack.errors import ModpackWarning
from modpack.selftest.child_surroundings import (
    HostIsolation,
    IncrementalImporter,
    MissingResourceMonitor,
)
from modpack.selftest.process import (
    Answer,
    Difference,
    Failure,
    Job,
    ProbeLevel,
    Question,
    RunResult,
)

_OWN_FRAMES = 32
"""Stack frames of the self-test itself, below and above the packaged code. The recursion limit is
raised by them: a chain of imports that loads must also load in the self-test."""
_MAX_FRAMES = 12
_MAX_CAUSES = 4


def what_failed(failure: BaseException) -> str:
    """The exception, in one line.

    >>> what_failed(KeyError("x"))
    "KeyError: 'x'"
    """
    lines = traceback.format_exception_only(type(failure), failure)
    return " ".join("".join(lines).split())


def trace_of(failure: BaseException, tree: Path | None) -> list[str]:
    """Where an exception was raised, innermost last, and what it was raised for.

    Args:
        failure: the exception.
        tree: the unpacked package, whose files are shown by their records.
    """
    lines = list(_frames(failure, tree))
    cause, seen = _cause_of(failure), 0
    while cause is not None and seen < _MAX_CAUSES:
        lines += [f"because of {what_failed(cause)}", *list(_frames(cause, tree))[-2:]]
        cause, seen = _cause_of(cause), seen + 1
    return lines


def _cause_of(failure: BaseException) -> BaseException | None:
    if failure.__cause__ is not None:
        return failure.__cause__
    return None if failure.__suppress_context__ else failure.__context__


def _frames(failure: BaseException, tree: Path | None) -> Iterator[str]:
    if isinstance(failure, SyntaxError) and failure.filename:
        yield f"{place_of(failure.filename, tree)}:{failure.lineno}"
    frames = [f for f in traceback.extract_tb(failure.__traceback__) if _is_told(f)]
    for frame in frames[-_MAX_FRAMES:]:
        line = f": {frame.line}" if frame.line else ""
        yield f"{place_of(frame.filename, tree)}:{frame.lineno}, in {frame.name}{line}"


def _is_told(frame: traceback.FrameSummary) -> bool:
    """Whether a frame says something: that modules are called by torch goes without saying."""
    own = str(Path(__file__).parents[1])
    is_call = frame.name in ("_call_impl", "_wrapped_call_impl")
    return not (
        frame.filename.startswith(("<frozen", own)) or frame.filename == "<string>" or is_call
    )


def place_of(file: str, tree: Path | None) -> str:
    """A file as the package knows it: its record, or what follows the folder of installed code.

    Args:
        file: its path.
        tree: the unpacked package.
    """
    if tree is not None and Path(file).is_relative_to(tree):
        return Path(file).relative_to(tree).as_posix()
    parts = Path(file).parts
    for home in ("site-packages", "dist-packages"):
        if home in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(home) :])
    return file


def main(job: dict[str, Json], handle: int) -> None:
    """Carry out a :class:`.Job`, tell the parent, and end the process.

    Args:
        job: the job, as JSON.
        handle: of the connection with the parent.
    """
    faulthandler.enable()
    sys.setrecursionlimit(sys.getrecursionlimit() + _OWN_FRAMES)
    os.set_inheritable(handle, False) if os.name == "posix" else None
    sys.argv = [""]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModpackWarning)  # whoever made the policy was warned
        known = from_json(Job, job, "the job")
    connection = Connection(handle)
    guard = HostIsolation(known.hidden)
    guard.install()
    verdict = _Performance(known, connection, guard).verdict()
    connection.send_bytes(_encoded("verdict", verdict))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # whatever threads the package left behind


def _encoded(kind: str, record: object) -> bytes:
    return json.dumps({kind: record_to_json(record)}).encode("ascii")


class _Performance:
    """One job, from the first import to the last comparison."""

    def __init__(self, job: Job, connection: Connection, guard: HostIsolation) -> None:
        self._job = job
        self._guard = guard
        self._connection = connection
        self._importer: IncrementalImporter | None = None
        self._loaded_before: frozenset[str] = frozenset()
        self._asking: MissingResourceMonitor | None = None

    def verdict(self) -> RunResult:
        """Do it, whatever happens."""
        differences: list[tuple[int, Difference]] = []
        failure: Failure | None = None
        operators: list[str] = []
        try:
            for number, each in self._differences():
                differences.append((number, each))
        except BaseException as raised:  # SystemExit too: the package may do what it likes
            failure = self._told(raised)
            operators = sorted(_reference().declared_operators())
        refused = self._guard.refused.items()
        return RunResult(
            failure,
            tuple(differences),
            tuple((name, self._without_namespace(by)) for name, by in refused),
            tuple(operators),
            self._asking is not None and self._asking.has_skipped,
            tuple(self._touches()),
            tuple(self._imported()),
            tuple(self._unfilled()),
        )

    def _differences(self) -> Iterator[tuple[int, Difference]]:
        import torch  # noqa: F401  # with all that it imports itself, numpy if that is there

        job = self._job
        if job.operators:
            _reference().declare(job.operators)
        self._loaded_before = frozenset(sys.modules)
        tree = Path(job.tree)
        self._importer = IncrementalImporter(job.package, job.namespace, tree, job.policy)
        if job.eagerness is not ProbeLevel.NOTHING:
            self._asking = MissingResourceMonitor(self._importer, self._asked, job.eagerness)
            self._asking.install()
        for case in job.cases:
            for difference in _case_differences(self._importer, case):
                yield case.number, difference

    def _asked(self, question: Question) -> Answer:
        self._connection.send_bytes(_encoded("question", question))
        return from_json(Answer, json.loads(self._connection.recv_bytes()), "the answer")

    def _touches(self) -> Iterator[MockEvent]:
        """What the package did with mocked modules, as the runtime of stand-ins kept it."""
        if self._importer is None:
            return
        name = self._importer.namespace.full_name(RUNTIME_MODULE)
        kept = getattr(sys.modules.get(name), "touches", {})
        for module, kind, used, operation, file, line in list(kept):
            place = f"{place_of(file, self._importer.tree)}:{line}" if file else None
            yield MockEvent(module, MockEventKind(kind), used, operation, place)

    def _imported(self) -> Iterator[tuple[str, str | None]]:
        """The outermost modules with a file that were imported since, and by whom."""
        for name in sorted(set(sys.modules) - self._loaded_before):
            if _has_file(name) and not _has_file(name.rpartition(".")[0]):
                by = self._guard.asked.get(root_of(name))
                yield name, by and self._without_namespace(by)

    def _unfilled(self) -> Iterator[UnfilledTable]:
        """The tables that name a class of the model in the parent, and not here."""
        if self._importer is None:
            return
        for table in self._job.tables:
            loaded = sys.modules.get(self._importer.namespace.full_name(table.module))
            if isinstance(loaded, ModuleType) and table.name in vars(loaded):
                if table.kind not in _reference().mentioned(vars(loaded)[table.name]):
                    yield table

    def _without_namespace(self, text: str) -> str:
        return text.replace(f"{self._importer.id()}.", "") if self._importer is not None else text

    def _told(self, failure: BaseException) -> Failure:
        trace = trace_of(failure, self._importer.tree if self._importer is not None else None)
        text = self._without_namespace(what_failed(failure))
        return Failure(text, tuple(map(self._without_namespace, trace)))


def _case_differences(importer: IncrementalImporter, case: SelfTestCase) -> list[Difference]:
    from modpack.selftest.compare import compare, leaves_of
    from modpack.selftest.conditions import applied

    def read(record: str) -> bytes:
        return importer.load_binary("", record)

    records = CaseRecordNames(case.number)
    model = importer.load_model(*case.resource, global_hooks=case.global_hooks)
    args, kwargs = importer.load_pickle("", records.inputs)
    with applied(json.loads(read(records.conditions))):
        output = _reference().Example(args, kwargs).call(model)
        found = leaves_of(output)
    return compare(_reference().read_leaves(read, records), found)


def _reference() -> Any:
    """What the parent ran the live model with; it imports torch."""
    from modpack.selftest import reference

    return reference


def _has_file(module: str) -> bool:
    loaded = sys.modules.get(module)
    return isinstance(loaded, ModuleType) and isinstance(vars(loaded).get("__file__"), str)
