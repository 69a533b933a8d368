"""A failure told in the package's terms: its modules and lines, not folders of a cache.

What runs in the clean interpreter: load the package, compute, compare, tell.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from modpack.core.json_values import Json
from modpack.core.names import root_of
from modpack.core.plan import MockTouch, TouchKind
from modpack.core.policy import policy_from_json
from modpack.core.selftest import touch_to_json
from modpack.selftest.child_isolation import Guard
from modpack.selftest.process import hidden_from_json

_MOST_FRAMES = 12
_MOST_CAUSES = 4


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
    while cause is not None and seen < _MOST_CAUSES:
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
    for frame in frames[-_MOST_FRAMES:]:
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


_OWN_FRAMES = 32
"""How deep on the stack the trial itself is, below what it loads and in the audit hooks above: a
chain of imports that can be loaded must not be too deep to be tried."""


def main(job: dict[str, Any], handle: int) -> None:
    """Carry out a job, tell the parent, and end the process.

    Args:
        job: ``package``: the file; ``namespace``; ``cases``: which objects to run on which
            examples; ``hidden``: what must not be found; ``eagerness``: what to ask the parent
            for (:class:`.Eagerness`); ``operators``: to declare first; ``tree``: the folder for
            the package's code; ``path``: ``sys.path``; ``policy``: what the package may ask for.
        handle: of the connection with the parent.
    """
    faulthandler.enable()
    sys.setrecursionlimit(sys.getrecursionlimit() + _OWN_FRAMES)
    os.set_inheritable(handle, False) if os.name == "posix" else None
    sys.argv = [""]
    connection = Connection(handle)
    guard = Guard(hidden_from_json(job["hidden"]))
    guard.install()
    verdict = _Performance(job, connection, guard).verdict()
    connection.send_bytes(json.dumps(verdict).encode("ascii"))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # whatever threads the package left behind


class _Performance:
    """One job, from the first import to the last comparison."""

    def __init__(self, job: dict[str, Any], connection: Connection, guard: Guard) -> None:
        self._job = job
        self._guard = guard
        self._connection = connection
        self._importer: Any = None
        self._loaded_before: frozenset[str] = frozenset()
        self._asking: Any = None

    def verdict(self) -> dict[str, Json]:
        """Do it, whatever happens."""
        differences: list[Json] = []
        failure: Json = None
        try:
            for case in self._cases():
                differences += case
        except BaseException as raised:  # SystemExit too: the package may do what it likes
            failure = self._told(raised)
        return {
            "kind": "verdict",
            "failure": failure,
            "differences": differences,
            "has_skipped": self._asking is not None and self._asking.has_skipped,
            "refused": [[n, self._without_namespace(b)] for n, b in self._guard.refused.items()],
            "operators": list(_declared_operators()) if failure is not None else [],
            "touches": list(self._touches()),
            "imported": list(self._imported()),
            "unfilled": list(self._unfilled()),
        }

    def _unfilled(self) -> Iterator[Json]:
        """The tables that name a class of the model in the parent, and not here."""
        from modpack.selftest.reference import mentioned

        for module, name, kind in self._job.get("tables", ()) if self._importer else ():
            loaded = sys.modules.get(self._importer.namespace.full_name(module))
            if isinstance(loaded, ModuleType) and name in vars(loaded):
                if kind not in mentioned(vars(loaded)[name]):
                    yield [module, name, kind]

    def _imported(self) -> Iterator[Json]:
        """The outermost modules with a file that were imported since, and by whom."""
        for name in sorted(set(sys.modules) - self._loaded_before):
            if _has_file(name) and not _has_file(name.rpartition(".")[0]):
                by = self._guard.asked.get(root_of(name))
                yield [name, by and self._without_namespace(by)]

    def _touches(self) -> Iterator[Json]:
        """What the package did with mocked modules, as the runtime of stand-ins kept it."""
        from modpack.archive.layout import RUNTIME_MODULE

        importer = self._importer
        name = importer.namespace.full_name(RUNTIME_MODULE) if importer is not None else ""
        kept = getattr(sys.modules.get(name), "touches", {})
        for module, kind, used, operation, file, line in list(kept):
            place = f"{place_of(file, importer.tree)}:{line}" if file else None
            touch = MockTouch(module, TouchKind(kind), used, operation, place)
            yield touch_to_json(touch)

    def _cases(self) -> Any:
        import torch  # noqa: F401  # with all that it imports itself, numpy if that is there

        from modpack.selftest.child_isolation import GrowingImporter

        _declare(self._job["operators"])
        self._loaded_before = frozenset(sys.modules)
        namespace = self._job["namespace"]
        tree = Path(self._job["tree"])
        given = self._job.get("policy")
        policy = None if given is None else policy_from_json(given)
        self._importer = GrowingImporter(self._job["package"], namespace, tree, policy)
        self._ask_if_wanted()
        for case in self._job["cases"]:
            yield self._differences(case)

    def _ask_if_wanted(self) -> None:
        from modpack.selftest.child_requests import Asking, Eagerness

        eagerness = Eagerness(self._job["eagerness"])
        if eagerness is not Eagerness.NOTHING:
            self._asking = Asking(self._importer, self._asked, eagerness)
            self._asking.install()

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        self._connection.send_bytes(json.dumps(question).encode("ascii"))
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return answer

    def _differences(self, case: dict[str, Any]) -> list[Json]:
        from modpack.core.selftest import CaseRecords
        from modpack.selftest.compare import compare, leaves_of
        from modpack.selftest.conditions import applied
        from modpack.selftest.reference import Example, read_leaves

        records = CaseRecords(case["number"])
        package, resource = case["resource"]
        model = self._importer.load_model(package, resource, restore_global=case["restore_global"])
        args, kwargs = self._importer.load_pickle("", records.inputs)
        conditions = json.loads(self._read(records.conditions))
        with applied(conditions):
            output = Example(args, kwargs).call(model)
            found = leaves_of(output)
        expected = read_leaves(self._read, records)
        return [[records.number, each.to_json()] for each in compare(expected, found)]

    def _read(self, record: str) -> bytes:
        content: bytes = self._importer.load_binary("", record)
        return content

    def _without_namespace(self, text: str) -> str:
        return text.replace(f"{self._importer.id()}.", "") if self._importer is not None else text

    def _told(self, failure: BaseException) -> Json:
        importer = self._importer
        trace = trace_of(failure, importer.tree if importer is not None else None)
        text = self._without_namespace(what_failed(failure))
        return {"text": text, "trace": list(map(self._without_namespace, trace))}


def _has_file(module: str) -> bool:
    loaded = sys.modules.get(module)
    return isinstance(loaded, ModuleType) and isinstance(vars(loaded).get("__file__"), str)


def _declared_operators() -> list[str]:
    """The operators that were declared from Python (:mod:`torch.library`) in this process."""
    from modpack.selftest.reference import declared_operators

    return sorted(declared_operators())


def _declare(schemas: list[str]) -> None:
    if schemas:
        from modpack.selftest.reference import declare

        declare(schemas)
