"""A recorded example: its arguments, the conditions of its run, and the recorded output."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from modpack.archive.layout import ExampleRecords
from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import local_source, open_archive
from modpack.archive.records import read_self_test
from modpack.core.call_signature import name_arguments
from modpack.core.codec import from_json
from modpack.core.names import resource_record
from modpack.core.policy import TrustPolicy
from modpack.core.selftest import Difference, OutputTensor, RecordedOutput, SelfTestCase
from modpack.examples.conditions import apply_conditions, on_device
from modpack.examples.outputs import PytreeLeaf, compare, flatten_output
from modpack.importer import PackageImporter, find_call_signature
from modpack.loading.checks import find_entry
from modpack.loading.objects import load_data


@dataclass(frozen=True)
class Example:
    """The arguments of one call of a model.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, model: Any) -> Any:
        """Call a model with copies of the arguments, which it may modify.

        Objects that cannot be copied are used as they are.
        """
        given = self.args, self.kwargs
        try:
            # torch refuses deep copies of tensors with a gradient history, such as activations.
            args, kwargs = copy.deepcopy(given)
        except (RuntimeError, TypeError, ValueError, AttributeError, copy.Error):
            args, kwargs = _copy_containers(given)
        return model(*args, **kwargs)


def _copy_containers(value: Any) -> Any:
    """Return copies of the containers, with tensors detached from their graphs."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (tuple, list):
        return type(value)(map(_copy_containers, value))
    if type(value) is dict:
        return {key: _copy_containers(part) for key, part in value.items()}
    return value


def example_inputs(path: str | os.PathLike[str]) -> dict[str, object] | None:
    """Return the example inputs of a package's main object, without running its code.

    Args:
        path: A package file, the folder of an unzipped package, or a URL.

    Returns:
        The values by the names of the call signature, with tensors on the CPU. None if the object
        was saved without example inputs, or without a self-test.

    Raises:
        ArchiveError: If the file is not a package, or is damaged.
        UnpicklingError: If the inputs are more than plain data, such as objects of other classes.
        ModpackError: If the package has no saved object, or several without a main one.
    """
    with open_archive(local_source(path)) as archive:
        record = resource_record(*find_entry(archive))
        signature, manifest = find_call_signature(archive, record), read_manifest(archive)
        recorded = read_self_test(archive, manifest) if manifest is not None else None
        if signature is None or manifest is None or recorded is None:
            return None
        for case in recorded.cases:
            if resource_record(*case.resource) == record:
                inputs = ExampleRecords(case.number).inputs
                verify_records(archive, manifest, [inputs])
                args, kwargs = load_data(None, archive, inputs, "cpu", TrustPolicy())
                return name_arguments(signature, args, kwargs)
    return None


def case_differences(
    importer: PackageImporter,
    case: SelfTestCase,
    device: str | None,
    conditions: dict[str, Any] | None = None,
) -> list[Difference]:
    """Load a case's model, run it on its example, and compare the output with the recorded one.

    Args:
        importer: The open package.
        case: The case.
        device: The device for the example. None for those of the saved tensors.
        conditions: The conditions of the run. None for the recorded ones.
    """
    with prepared_case(importer, case, device, conditions) as (model, example):
        found = flatten_output(example.call(model))
    document = json.loads(importer.load_binary("", ExampleRecords(case.number).output))
    recorded = from_json(RecordedOutput, document, "the output")
    expected: list[PytreeLeaf] = []
    for leaf in recorded.leaves:
        tensor = None if leaf.tensor is None else _read_tensor(importer, leaf.tensor)
        expected.append(PytreeLeaf(leaf.path, leaf.structure, leaf.value, tensor, leaf.device))
    return compare(expected, found, any_device=device is not None)


def _read_tensor(importer: PackageImporter, recorded: OutputTensor) -> torch.Tensor:
    content = bytearray(importer.load_binary("", recorded.record))
    dtype = getattr(torch, recorded.dtype)
    # torch.frombuffer refuses an empty buffer.
    if not content:
        return torch.empty(recorded.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).view(recorded.shape)


@contextlib.contextmanager
def prepared_case(
    importer: PackageImporter,
    case: SelfTestCase,
    device: str | None,
    conditions: dict[str, Any] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Return a case's newly loaded model and its example, by default as it was recorded."""
    records = ExampleRecords(case.number)
    model = importer.load_model(*case.resource, device, global_hooks=case.global_hooks)
    args, kwargs = importer.load_pickle("", records.inputs, device)
    recorded = conditions or json.loads(importer.load_binary("", records.conditions))
    # After loading, whose code may draw random numbers or change settings.
    with apply_conditions(recorded if device is None else on_device(recorded, device)):
        yield model, Example(args, kwargs)


_libraries: list[torch.library.Library] = []
"""Keeps library objects alive: their declarations last only as long as they do."""


def declare_operators(schemas: Iterable[str]) -> None:
    """Declare operators for the rest of this process.

    Args:
        schemas: Schemas such as ``"mylib::add(Tensor a, Tensor b) -> Tensor"``.
    """
    for schema in schemas:
        namespace, _, signature = schema.partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        library.define(signature)  # type: ignore[no-untyped-call]
        _libraries.append(library)
