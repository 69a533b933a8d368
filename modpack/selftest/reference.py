"""The reference run: the live model runs once on the example and is restored afterwards.

A script may declare an operator's schema (:mod:`torch.library`) so that a library can be imported.
The package does not contain the script, so the loading process must declare the same operators.

A library's constructors may record the capabilities of a class in a table of a module. Loading does
not call constructors, so such a table stays empty; torch.load and copies behave the same. The
self-test compares the tables of both interpreters.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from modpack.archive.layout import ExampleRecords
from modpack.core.call_signature import CallSignature
from modpack.core.codec import record_to_json
from modpack.core.json_values import Json, ascii_json
from modpack.core.names import is_everywhere, strip_namespaces
from modpack.core.observations import UnfilledTable
from modpack.core.process import phase
from modpack.core.selftest import Difference, OutputLeaf, OutputTensor, RecordedOutput
from modpack.core.text import dtype_name
from modpack.environment.finder import is_a
from modpack.errors import ExampleError
from modpack.examples.conditions import (
    capture_rng_and_modes,
    drop_unused_generators,
    preserve_random_states,
    tensor_versions,
)
from modpack.examples.outputs import PytreeLeaf, compare, flatten_output
from modpack.examples.recorded import Example
from modpack.selftest.call_description import describe_outputs
from modpack.selftest.preservation import RestoreTensors, preserve_model
from modpack.writing.writer import ArchiveWriter


def as_example(model: object, inputs: object, kwargs: object = None) -> Example | None:
    """Convert example inputs, in the form of :func:`torch.export.export`, to call arguments.

    Args:
        model: The object to call.
        inputs: A tuple of positional arguments, a mapping of arguments by name, or a single
            argument. None if there are none.
        kwargs: Arguments by name.

    Returns:
        The arguments, or None if none were given.

    Raises:
        TypeError: If the arguments are ambiguous or the model is not callable.

    >>> as_example(len, ("abc",))
    Example(args=('abc',), kwargs={})
    """
    if inputs is None and kwargs is None:
        return None
    if not callable(model):
        raise TypeError(
            f"example_inputs need a model to call, but a {type(model).__name__} is not callable"
        )
    named: dict[str, Any] = {}
    if isinstance(kwargs, Mapping) and _has_argument_names(kwargs):
        named = dict(kwargs)
    elif kwargs is not None:
        raise TypeError(
            "example_kwargs must be a mapping of argument names to values, "
            f"not {type(kwargs).__name__}"
        )
    if isinstance(inputs, list):
        raise TypeError(
            "example_inputs must be a tuple of arguments, a mapping of arguments by name, or a "
            "single argument. A list is ambiguous: pass (xs,) for one argument that is a list, or "
            "tuple(xs) for several arguments."
        )
    # With other keys, or next to example_kwargs, a mapping is itself the only argument.
    if isinstance(inputs, Mapping) and kwargs is None and _has_argument_names(inputs):
        return Example((), dict(inputs))
    if inputs is None:
        return Example((), named)
    # Not isinstance: a named tuple is a single argument.
    args = inputs if type(inputs) is tuple else (inputs,)
    return Example(args, named)


def _has_argument_names(mapping: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key.isidentifier() for key in mapping)


def _write_leaves(
    writer: ArchiveWriter, records: ExampleRecords, leaves: Sequence[PytreeLeaf]
) -> None:
    """Write an output: its structure as JSON, its tensors as bytes."""
    listed: list[OutputLeaf] = []
    for index, (path, structure, value, tensor, device) in enumerate(leaves):
        recorded = None
        if tensor is not None:
            size, record = tensor.numel() * tensor.element_size(), records.tensor(index)
            # Works for every dtype and without numpy. Leaves are contiguous and on the CPU.
            content = ctypes.string_at(tensor.data_ptr(), size) if size else b""
            writer.write_storage(record, memoryview(content))
            recorded = OutputTensor(dtype_name(tensor.dtype), tuple(tensor.shape), record)
        listed.append(OutputLeaf(path, structure, value, recorded, device))
    output = record_to_json(RecordedOutput(tuple(listed)))
    writer.write(records.output, ascii_json(output), compress=True)


class Case(NamedTuple):
    """One example of one saved object, and the run of the live object on it.

    Attributes:
        resource: Package and resource of the object.
        records: The records of the example.
        model: The live object.
        example: The arguments.
        global_hooks: Whether process-wide hooks were saved with the object.
        restore_saved: Function that restores the saved tensors after a run.
        call_signature: Descriptions of the arguments and, after the run, of the output.
        conditions: Random states, modes, and threads of the run. None before it.
        leaves: The output.
        seconds: The duration in seconds.
        versions: Version counters of the model's tensors after the run, to detect later changes.
    """

    resource: tuple[str, str]
    records: ExampleRecords
    model: Any
    example: Example
    global_hooks: bool
    restore_saved: RestoreTensors
    call_signature: CallSignature
    conditions: dict[str, Json] | None = None
    leaves: Sequence[PytreeLeaf] = ()
    seconds: float = 0.0
    versions: Sequence[int] = ()

    def compare_with_rerun(self) -> list[Difference]:
        """Run the live model again with the same random numbers and return the differences.

        Returns nothing if the model has changed since it was saved, because the comparison would be
        meaningless.
        """
        if tensor_versions(self.model) != self.versions:
            return []
        random_states = preserve_random_states(self.conditions)
        with random_states, preserve_model(self.model, self.restore_saved):
            again = flatten_output(_call_model(self))
        return compare(self.leaves, again)


def _call_model(case: Case) -> Any:
    try:
        return case.example.call(case.model)
    except Exception as failure:
        raise ExampleError("/".join(case.resource), failure, _locate_failure(failure)) from failure


def _locate_failure(failure: BaseException) -> str:
    """Return the innermost line outside torch and modpack that raised an exception."""
    folders = (Path(__file__).parents[1], Path(torch.__file__).parent)
    ours = tuple(f"{folder}{os.sep}" for folder in folders)
    frames = traceback.extract_tb(failure.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(("<", *ours))]
    if not theirs:
        return ""
    line = f": {theirs[-1].line}" if theirs[-1].line else ""
    return f"{theirs[-1].filename}:{theirs[-1].lineno}, in {theirs[-1].name}{line}"


def record_case(writer: ArchiveWriter, case: Case) -> Case:
    """Run the live model of a case, restore it, and save the output.

    Afterwards, the model is as it was; see :func:`.preserve_model`.

    Args:
        writer: Writes the output and the conditions.
        case: The case without a run. Its model is already saved.

    Returns:
        The case with the run.

    Raises:
        ExampleError: If the live model fails on the example.
    """
    # Before the run: the clean interpreter has to draw the same random numbers.
    conditions = capture_rng_and_modes()
    running = phase("running the live model", is_major=True)
    with running, preserve_random_states(), preserve_model(case.model, case.restore_saved):
        started = time.perf_counter()
        output = _call_model(case)
        seconds = time.perf_counter() - started
        leaves = flatten_output(output)
        described = describe_outputs(case.call_signature, output)
        # Inside the block: afterwards, all generators have their earlier states again.
        conditions = drop_unused_generators(conditions)
    _write_leaves(writer, case.records, leaves)
    writer.write(case.records.conditions, ascii_json(conditions), compress=True)
    return case._replace(
        call_signature=described,
        conditions=conditions,
        leaves=leaves,
        seconds=seconds,
        # Read now, because restoring the model may raise the counters.
        versions=tensor_versions(case.model),
    )


def declared_operators() -> frozenset[str]:
    """Return qualified names (``mylib::add``), or none if this torch does not list them."""
    return frozenset(getattr(torch.library, "_defs", ()))


def operator_schemas(names: Iterable[str]) -> list[str]:
    """Return the schemas of declared operators, as :func:`declare_operators` accepts them."""
    schemas: list[str] = []
    for name in names:
        namespace, _, operator = name.partition("::")
        packet, _, overload = operator.partition(".")
        found = getattr(getattr(torch.ops, namespace), packet)
        schemas.append(str(getattr(found, overload or "default")._schema))
    return schemas


_SHOWN = re.compile(r"<class '([^']+)'>")
_MAX_ENTRIES = 10_000
_MAX_NAME_LENGTH = 300


def find_tables_naming(model: object) -> list[UnfilledTable]:
    """Return the tables of loaded modules that name classes of a model's modules.

    Args:
        model: The live model.
    """
    modules = model.modules() if isinstance(model, torch.nn.Module) else (model,)
    kinds = {name for kind in set(map(type, modules)) for name in _names_of(kind)}
    wanted = {name for name in kinds if not is_everywhere(name)}
    return sorted(_find_tables_naming(wanted)) if wanted else []


def _find_tables_naming(wanted: set[str]) -> Iterator[UnfilledTable]:
    seen: set[int] = set()
    # In the order of their completion: a module that defines a table precedes those that import it.
    for name, module in list(sys.modules.items()):
        loaded: object = module  # not always a module
        if not is_a(loaded, ModuleType) or is_everywhere(name) or name == "__main__":
            continue
        # Modules that import a table by name bind the same object, which counts once.
        for attribute, value in list(vars(loaded).items()):
            if id(value) not in seen:
                seen.add(id(value))
                kinds = named_classes(value) & wanted
                yield from (UnfilledTable(strip_namespaces(name), attribute, k) for k in kinds)


def named_classes(table: object) -> set[str]:
    """Return the classes that are keys of a dict, or members of a list or set.

    An entry names a class if it is the class, its path, or its ``str()``.
    """
    kinds: tuple[Any, ...] = (dict, list, set)
    for kind in kinds:
        # Methods of a subclass are not called.
        if is_a(table, kind) and kind.__len__(table) <= _MAX_ENTRIES:
            return {name for entry in list(kind.__iter__(table)) for name in _names_of(entry)}
    return set()


def _names_of(entry: object) -> Iterator[str]:
    if is_a(entry, type):
        yield strip_namespaces(f"{entry.__module__}.{entry.__qualname__}")
    elif type(entry) is str and "." in entry and len(entry) <= _MAX_NAME_LENGTH:
        shown = _SHOWN.fullmatch(entry)
        yield strip_namespaces(shown[1] if shown else entry)
