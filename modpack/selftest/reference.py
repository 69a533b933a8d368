"""The recorded run: the live model, once, on the example; nothing of it stays behind.

A script may declare an operator's schema (:mod:`torch.library`) so that a library can be imported
at all. The package does not hold the script, so whoever loads it has to declare the same.

A library may note in a table of a module, when an object is constructed, what its class can do.
Loading makes objects without their constructors, so that such a table stays empty: torch.load and
copies have the same gap. The self-test compares the tables of both interpreters.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from modpack.archive.writer import ArchiveWriter
from modpack.core.json_values import Json
from modpack.core.names import is_everywhere
from modpack.core.process import phase
from modpack.core.selftest import CaseRecordNames, SelfTestRecord, UnfilledTable
from modpack.core.text import local_folders, portable_text
from modpack.discovery.finder import is_a
from modpack.errors import ExampleError
from modpack.exporting.objects import ObjectSaver
from modpack.exporting.planner import Planner
from modpack.selftest.compare import PytreeLeaf, compare, leaves_of
from modpack.selftest.conditions import (
    PutBack,
    conditions_now,
    preserved,
    preserved_random_states,
    restored_random_states,
    versions_of,
    without_unused,
)
from modpack.selftest.process import Difference


@dataclass(frozen=True)
class Example:
    """The arguments of one call of a model.

    Attributes:
        args: the positional ones.
        kwargs: the ones by name.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, model: Any) -> Any:
        """Run a model on them. It gets copies, so that it may change what it is given."""
        args, kwargs = _copied((self.args, self.kwargs))
        return model(*args, **kwargs)


def as_example(model: object, inputs: object, kwargs: object = None) -> Example | None:
    """The example that a user gives, as :func:`torch.export.export` takes it.

    Args:
        model: what is to be called.
        inputs: a tuple holds the positional arguments; a mapping with the names of arguments
            holds arguments by name; anything else is the one argument. None: there is none.
        kwargs: arguments by name.

    Returns:
        The example; None if nothing was given.

    Raises:
        TypeError: it is not clear what is meant, or the model cannot be called.

    >>> as_example(len, ("abc",))
    Example(args=('abc',), kwargs={})
    """
    if inputs is None and kwargs is None:
        return None
    if not callable(model):
        raise TypeError(
            f"example_inputs were given, but a {type(model).__name__} cannot be called with them"
        )
    named: dict[str, Any] = {}
    if isinstance(kwargs, Mapping) and _holds_names(kwargs):
        named = dict(kwargs)
    elif kwargs is not None:
        raise TypeError(
            "example_kwargs must be a mapping from names of arguments to their values, "
            f"not {type(kwargs).__name__}"
        )
    if isinstance(inputs, list):
        raise TypeError(
            "example_inputs must be a tuple of arguments, a mapping of arguments by name, or one "
            "argument. A list could be either: give (xs,) for one argument that is a list, "
            "tuple(xs) for several arguments"
        )
    if isinstance(inputs, Mapping) and kwargs is None and _holds_names(inputs):
        return Example((), dict(inputs))
    if inputs is None:
        return Example((), named)
    args = inputs if type(inputs) is tuple else (inputs,)
    return Example(args, named)


def _holds_names(mapping: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key.isidentifier() for key in mapping)


def _copied(arguments: Any) -> Any:
    """A deep copy; what cannot be copied is used as it is."""
    try:
        return copy.deepcopy(arguments)
    except (RuntimeError, TypeError, ValueError, AttributeError, copy.Error):
        return _shallow(arguments)


def _shallow(value: Any) -> Any:
    """The containers copied, the tensors detached from what they were computed of."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(map(_shallow, value))
    if type(value) is dict:
        return {key: _shallow(part) for key, part in value.items()}
    return value


def _write_leaves(
    writer: ArchiveWriter, records: CaseRecordNames, leaves: Sequence[PytreeLeaf]
) -> None:
    """Store an output: its structure as JSON, its tensors as bytes."""
    listed: list[Json] = []
    for index, (path, structure, value, tensor) in enumerate(leaves):
        entry: dict[str, Json] = {"path": path, "structure": structure, "value": value}
        if tensor is not None:
            size, record = tensor.numel() * tensor.element_size(), records.tensor(index)
            content = ctypes.string_at(tensor.data_ptr(), size) if size else b""
            writer.write_storage(record, memoryview(content))
            dtype = str(tensor.dtype).removeprefix("torch.")
            entry["tensor"] = {"dtype": dtype, "shape": list(tensor.shape), "record": record}
        listed.append(entry)
    writer.write(records.output, _json({"leaves": listed}), compress=True)


def read_leaves(read: Callable[[str], bytes], records: CaseRecordNames) -> list[PytreeLeaf]:
    """Read back an output that was stored.

    Args:
        read: returns a record's content.
        records: where it lies.
    """
    document = json.loads(read(records.output))
    return [
        PytreeLeaf(
            entry["path"],
            entry["structure"],
            entry["value"],
            _tensor(read, entry["tensor"]) if "tensor" in entry else None,
        )
        for entry in document["leaves"]
    ]


def _tensor(read: Callable[[str], bytes], entry: dict[str, Any]) -> torch.Tensor:
    content, dtype = bytearray(read(entry["record"])), getattr(torch, entry["dtype"])
    if not content:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).view(entry["shape"])


class Case(NamedTuple):
    """One example of one saved object, with the output that the live one gave.

    Attributes:
        resource: package and resource of the object.
        records: where the example lies in the package.
        model: the live object.
        example: its arguments.
        conditions: what held when it ran.
        leaves: its output.
        seconds: how long it took.
        global_hooks: whether process-wide hooks were saved with it.
        put_back: undoes what a run did to the tensors that were saved.
        versions: of the model's tensors, after the run: tells whether they changed since.
    """

    resource: tuple[str, str]
    records: CaseRecordNames
    model: Any
    example: Example
    conditions: dict[str, Json]
    leaves: list[PytreeLeaf]
    seconds: float
    global_hooks: bool
    put_back: PutBack
    versions: list[int]

    def differs_from_itself(self) -> list[Difference]:
        """Run the live model once more, with the same random numbers; what differs this time.

        A model that was changed after it was saved tells nothing: then nothing is returned.
        """
        if versions_of(self.model) != self.versions:
            return []
        with restored_random_states(self.conditions), preserved(self.model, self.put_back):
            again = leaves_of(_called(self.model, self.example, self.resource))
        return compare(self.leaves, again)


def _called(model: Any, example: Example, resource: tuple[str, str]) -> Any:
    try:
        return example.call(model)
    except Exception as failure:
        raise ExampleError("/".join(resource), failure, _place_of(failure)) from failure


def _place_of(failure: BaseException) -> str:
    """The innermost line that raised it, outside torch: the one that its author wrote."""
    folders = (Path(__file__).parents[1], Path(torch.__file__).parent)
    ours = tuple(f"{folder}{os.sep}" for folder in folders)
    frames = traceback.extract_tb(failure.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(("<", *ours))]
    if not theirs:
        return ""
    line = f": {theirs[-1].line}" if theirs[-1].line else ""
    return f"{theirs[-1].filename}:{theirs[-1].lineno}, in {theirs[-1].name}{line}"


class ExampleSaver:
    """Saves the examples of one package.

    Args:
        objects: pickles the arguments.
        writer: where everything goes.
        planner: follows the classes of the arguments.

    Attributes:
        cases: what was recorded by now.
    """

    def __init__(self, objects: ObjectSaver, writer: ArchiveWriter, planner: Planner) -> None:
        self.cases: list[Case] = []
        self._objects = objects
        self._writer = writer
        self._planner = planner

    def save_arguments(self, example: Example, protocol: int) -> CaseRecordNames:
        """Save the arguments of the next example; their classes go along like the model's."""
        records = CaseRecordNames(len(self.cases))
        arguments = (example.args, example.kwargs)
        edges = self._objects.save(records.inputs, arguments, protocol)
        self._planner.add_resource(f"<{records.inputs}>", edges, follow=True)
        return records

    def record(
        self,
        records: CaseRecordNames,
        resource: tuple[str, str],
        model: Any,
        example: Example,
        since: int,
        global_hooks: bool,
    ) -> None:
        """Run the live model on an example, leave it as it was, and save what came of it.

        Its parameters and buffers are put back, and so are the random states. What it collects in
        lists of its own, and what its hooks collect, stays collected.

        Args:
            records: where the example goes.
            resource: package and resource of the model.
            model: the live model, saved already.
            example: its arguments.
            since: how many objects were saved before the model.
            global_hooks: whether process-wide hooks were saved with it.

        Raises:
            ExampleError: the live model itself fails on it.
        """
        put_back = partial(self._objects.put_back, since)
        conditions = conditions_now()
        running = phase("running the live model", is_major=True)
        with running, preserved_random_states(), preserved(model, put_back):
            started = time.perf_counter()
            output = _called(model, example, resource)
            seconds = time.perf_counter() - started
            leaves = leaves_of(output)
            conditions = without_unused(conditions)
        case = Case(
            resource,
            records,
            model,
            example,
            conditions,
            leaves,
            seconds,
            global_hooks,
            put_back,
            versions_of(model),
        )
        _write_leaves(self._writer, records, leaves)
        self._writer.write(records.conditions, _json(conditions), compress=True)
        self.cases.append(case)


def write_record(writer: ArchiveWriter, record: str, self_test: SelfTestRecord) -> None:
    """Write what came of the self-test into the package, without the folders of this machine."""
    folders = local_folders()
    told = {
        name: portable_text(text, folders)
        for name, text in (
            ("failure", self_test.failure),
            ("why_process", self_test.private_failure),
        )
        if text is not None
    }
    writer.write(record, _json({**self_test.to_json(), **told}))


def _json(record: dict[str, Json]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")


_kept: list[torch.library.Library] = []
"""A declaration lasts as long as its library object."""


def declared_operators() -> frozenset[str]:
    """Their qualified names (``mylib::add``); empty if this torch does not tell."""
    return frozenset(getattr(torch.library, "_defs", ()))


def schemas_of(names: Iterable[str]) -> list[str]:
    """The schemas of declared operators, as :func:`declare` takes them."""
    schemas: list[str] = []
    for name in names:
        namespace, _, operator = name.partition("::")
        packet, _, overload = operator.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet)
        schemas.append(str(getattr(found, overload or "default")._schema))
    return schemas


def declare(schemas: Iterable[str]) -> None:
    """Declare operators for the rest of this process.

    Args:
        schemas: such as ``"mylib::add(Tensor a, Tensor b) -> Tensor"``.
    """
    for schema in schemas:
        namespace, _, signature = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        library.define(signature)  # type: ignore[no-untyped-call]
        _kept.append(library)


_NAMESPACE = re.compile(r"\bmodpack_[0-9a-f]{12,}(_\d+)?\.")
_SHOWN = re.compile(r"<class '([^']+)'>")
_MAX_ENTRIES = 10_000
_LONGEST = 300


def tables_naming(model: object) -> list[UnfilledTable]:
    """The tables of loaded modules that name classes of a model's modules.

    Args:
        model: the live model.
    """
    modules = model.modules() if isinstance(model, torch.nn.Module) else (model,)
    kinds = {name for kind in set(map(type, modules)) for name in _names_of(kind)}
    wanted = {name for name in kinds if not is_everywhere(name)}
    return sorted(_tables_naming(wanted)) if wanted else []


def _tables_naming(wanted: set[str]) -> Iterator[UnfilledTable]:
    for name, module in list(sys.modules.items()):
        loaded: object = module  # not always a module
        if not is_a(loaded, ModuleType) or is_everywhere(name) or name == "__main__":
            continue
        for attribute, value in list(vars(loaded).items()):
            for kind in mentioned(value) & wanted:
                yield UnfilledTable(local_name(name), attribute, kind)


def mentioned(table: object) -> set[str]:
    """The classes that keys of a dict, or members of a list or set, name.

    They name one by being it, or being its path, or what ``str`` makes of it.
    """
    return {name for entry in list(_entries(table)) for name in _names_of(entry)}


def local_name(name: str) -> str:
    """A module path, or a class's, without the namespace of a package."""
    return _NAMESPACE.sub("", name)


def _entries(table: Any) -> Iterable[object]:
    """What a table holds, without asking methods of a class of its own."""
    for kind in (dict, list, set):
        if is_a(table, kind):
            plain: Any = kind
            return plain.__iter__(table) if plain.__len__(table) <= _MAX_ENTRIES else ()
    return ()


def _names_of(entry: object) -> Iterator[str]:
    if is_a(entry, type):
        yield local_name(f"{entry.__module__}.{entry.__qualname__}")
    elif type(entry) is str and "." in entry and len(entry) <= _LONGEST:
        shown = _SHOWN.fullmatch(entry)
        yield local_name(shown[1] if shown else entry)
