"""What runs in the clean interpreter: load the package, compute, compare, tell."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from modpack.core.names import root_of
from modpack.core.planjson import Json
from modpack.core.trialrecord import touch_to_json
from modpack.core.trustjson import policy_from_json
from modpack.core.usage import MockTouch, TouchKind
from modpack.replaying.hiding import Guard
from modpack.replaying.telling import place_of, trace_of, what_failed
from modpack.trial.hiding import hidden_from_json

__all__ = ["main"]

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
        from modpack.trial.registries import mentioned

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

        from modpack.replaying.importer import GrowingImporter

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
        from modpack.replaying.asking import Asking, Eagerness

        eagerness = Eagerness(self._job["eagerness"])
        if eagerness is not Eagerness.NOTHING:
            self._asking = Asking(self._importer, self._asked, eagerness)
            self._asking.install()

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        self._connection.send_bytes(json.dumps(question).encode("ascii"))
        answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        return answer

    def _differences(self, case: dict[str, Any]) -> list[Json]:
        from modpack.trial.comparing import compare
        from modpack.trial.conditions import applied
        from modpack.trial.examples import Example
        from modpack.trial.leaves import leaves_of
        from modpack.trial.outputs import CaseRecords, read_leaves

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
    from modpack.trial.operators import declared_operators

    return sorted(declared_operators())


def _declare(schemas: list[str]) -> None:
    if schemas:
        from modpack.trial.operators import declare

        declare(schemas)
