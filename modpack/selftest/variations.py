"""Dimensions that may vary, found by repeating the call of an example with other sizes.

The calls use the rows of the example. Only a clean interpreter makes them, because they may change
the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch

from modpack.core.call_signature import Batching, CallSignature, Step, ValueSpec, flatten_values
from modpack.selftest.call_description import describe_outputs, shared_batch

Values: TypeAlias = Mapping[str, object]
"""Values of the inputs by name."""

_BATCH: Final = "batch"
_TOLERANCES: Final = {torch.float64: 1e-7, torch.float32: 1e-4, torch.complex64: 1e-4}
"""Relative to the largest element. A batch of another size may be computed by other kernels."""
_COARSE: Final = 2e-2


class _Run(NamedTuple):
    """One call that succeeded.

    Attributes:
        sizes: Size of each named dimension.
        outputs: Descriptions of the outputs.
        values: The outputs by path.
    """

    sizes: Mapping[str, int]
    outputs: tuple[ValueSpec, ...]
    values: Mapping[tuple[Step, ...], object]


def find_varying_dimensions(
    signature: CallSignature, example: Values, call: Callable[[Values], object]
) -> tuple[CallSignature, tuple[str, ...]]:
    """Find the dimensions that may vary.

    The inputs' first dimension is tried with sizes 1, 2, and another one, if all input tensors
    share it. Each stated dimension is tried with one other size, to see which dimensions of the
    outputs follow it. If a call fails, the dimensions are left as they were.

    Args:
        signature: The call signature of the example.
        example: The values of the example.
        call: Function that calls the object.

    Returns:
        The call signature with these dimensions, and a sentence for each stated dimension with
        which the call failed.
    """
    variations = _Variations(signature, example, call)
    return variations.find(), tuple(variations.failures)


@dataclass
class _Variations:
    _signature: CallSignature
    _example: Values
    _call: Callable[[Values], object]
    failures: list[str] = field(default_factory=list)

    @cached_property
    def _base(self) -> dict[str, int]:
        """The sizes of the stated dimensions in the example."""
        return {
            label: tensor.shape[dimension]
            for spec, tensor in self._tensors()
            for dimension, label in enumerate(spec.shape or ())
            if isinstance(label, str)
        }

    def find(self) -> CallSignature:
        signature = self._signature
        stated = [label for label in self._base if label != signature.batch]
        runs = [self._run_resized(label) for label in stated]
        inputs, batch = self._batch_inputs()
        batching: Batching = "untested"
        if batch is not None:
            batch_runs, batching = self._vary_batch(inputs, batch)
            runs += batch_runs
            # A batch that was only tried is dropped if a call fails. A stated one stays.
            if not batch_runs and signature.batch is None:
                inputs, batch = signature.inputs, None
        sizes = dict(self._base)
        if batch is not None:
            sizes[batch] = self._count_rows()
        # The recorded call first: the outputs keep its sizes where no call differs.
        done = [_Run(sizes, signature.outputs, {}), *(run for run in runs if run is not None)]
        outputs = tuple(_merge_outputs([r._replace(sizes={**sizes, **r.sizes}) for r in done]))
        if batching == "independent" and not _have_rows(outputs, batch):
            batching = "dependent"
        return signature._replace(inputs=inputs, outputs=outputs, batch=batch, batching=batching)

    def _tensors(self) -> Iterator[tuple[ValueSpec, torch.Tensor]]:
        for spec in self._signature.inputs:
            if spec.shape is not None:
                yield spec, cast(torch.Tensor, self._example[spec.name])

    def _count_rows(self) -> int:
        return next(self._tensors())[1].shape[0]

    def _batch_inputs(self) -> tuple[tuple[ValueSpec, ...], str | None]:
        """Return the inputs with a batch dimension, and its name, or None if there is none."""
        inputs, stated = self._signature.inputs, self._signature.batch
        if stated is not None:
            return inputs, stated
        first = {spec.shape[:1] for spec, _ in self._tensors() if spec.shape is not None}
        size = next(iter(next(iter(first))), None) if len(first) == 1 else None
        # A scalar has no first dimension, a stated one has a name in place of a size, and without
        # a row there is none to make others of.
        if not isinstance(size, int) or size == 0:
            return inputs, None
        label = _BATCH
        while label in self._base:
            label += "_0"
        changed = tuple(
            spec if spec.shape is None else spec._replace(shape=(label, *spec.shape[1:]))
            for spec in inputs
        )
        return changed, shared_batch(changed)

    def _run(self, values: Values, sizes: Mapping[str, int]) -> _Run | None:
        """Call the object. Return None if it fails, or if the outputs have another structure."""
        try:
            output = self._call(values)
            described = describe_outputs(self._signature, output)
            flat = flatten_values(output, objects=True).values
        except Exception as failure:
            self._report(sizes, f"{type(failure).__name__}: {failure}".partition("\n")[0])
            return None
        kinds = [_kind(spec) for spec in self._signature.outputs]
        if [_kind(spec) for spec in described.outputs] != kinds:
            self._report(sizes, "the outputs have another structure")
            return None
        return _Run(sizes, described.outputs, flat)

    def _report(self, sizes: Mapping[str, int], reason: str) -> None:
        """Report that a call failed, if the user stated that the dimension varies."""
        for label, size in sizes.items():
            if label in self._base:
                self.failures.append(f"dimension {label!r} with size {size}: {reason}")

    def _run_resized(self, label: str) -> _Run | None:
        """Call the object with another size of a stated dimension."""
        size = self._base[label]
        # A larger size may exceed a limit of the model, such as its number of positions.
        new = size - 1 if size > 1 else 2
        values = dict(self._example)
        try:
            for spec, tensor in self._tensors():
                for dimension, each in enumerate(spec.shape or ()):
                    if each == label:
                        index = torch.arange(new, device=tensor.device) % size
                        tensor = _like(tensor.detach().index_select(dimension, index), tensor)
                values[spec.name] = tensor
        except (RuntimeError, IndexError):  # of a dtype without this operation
            return None
        return self._run(values, {label: new})

    def _vary_batch(
        self, inputs: Sequence[ValueSpec], batch: str
    ) -> tuple[list[_Run | None], Batching]:
        """Call the object with other numbers of rows.

        Returns:
            The calls, or none if one of them failed; and whether rows influence each other.
        """
        # One of the three sizes is not the example's, whatever that is.
        count = 4 if self._count_rows() == 3 else 3
        try:
            rows, are_distinct = self._make_rows(count)
        except RuntimeError:  # of a dtype without these operations
            return [], "untested"
        runs = [self._run(_join(rows[:n]), {batch: n}) for n in (1, 2, count)]
        if None in runs:
            return [], "dependent"
        # Equal rows agree, whatever the model does with them.
        if not are_distinct:
            return [*runs], "untested"
        # Shapes do not show whether rows influence each other, as in a batch normalization that
        # trains. A server may join the rows of different callers only if they do not.
        alone = [runs[0], *(self._run(_join([row]), {batch: 1}) for row in rows[1:])]
        found = [run for run in alone if run is not None]
        joint = cast(_Run, runs[2])
        if len(found) == count and _are_rows(joint, found):
            return [*runs], "independent"
        return [*runs], "dependent"

    def _make_rows(self, count: int) -> tuple[list[dict[str, object]], bool]:
        """Return rows of the example, and whether all of them differ.

        Additional rows are rows of the example with their elements rotated. If rows are equal,
        floating-point numbers are changed, too.
        """
        tensors = [(spec.name, tensor) for spec, tensor in self._tensors()]
        rows: list[dict[str, object]] = []
        for number in range(count):
            row = dict(self._example)
            for name, tensor in tensors:
                turns, index = divmod(number, len(tensor))
                # A clone, because deep copies copy a whole storage.
                part = tensor.detach()[index : index + 1].clone()
                turned = part.reshape(-1).roll(turns).reshape(part.shape) if turns else part
                row[name] = _like(turned, tensor)
            rows.append(row)
        names = [name for name, _ in tensors]
        if not _are_distinct(rows, names):
            for number, row in enumerate(rows):
                for name, tensor in tensors:
                    if tensor.is_floating_point():
                        part = cast(torch.Tensor, row[name]).detach()
                        row[name] = _like(part * (1 + number / 8) + number / 8, tensor)
        return rows, _are_distinct(rows, names)


def _like(tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    return tensor.requires_grad_() if original.requires_grad else tensor


def _are_distinct(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bool:
    pairs = combinations(rows, 2)
    return not any(all(torch.equal(a[name], b[name]) for name in names) for a, b in pairs)


def _join(rows: Sequence[Values]) -> dict[str, object]:
    """Return the rows as one batch."""
    joint = dict(rows[0])
    for name, first in rows[0].items():
        if isinstance(first, torch.Tensor) and len(rows) > 1:
            parts = [cast(torch.Tensor, row[name]).detach() for row in rows]
            joint[name] = _like(torch.cat(parts), first)
    return joint


def _kind(spec: ValueSpec) -> tuple[object, ...]:
    return spec.path, spec.type, spec.dtype, len(spec.shape or ())


def _merge_outputs(runs: Sequence[_Run]) -> Iterator[ValueSpec]:
    """Yield the outputs of the first call, with the dimensions that differ in other calls named."""
    for position, spec in enumerate(runs[0].outputs):
        shapes = [run.outputs[position].shape or () for run in runs]
        merged: list[int | str] = []
        for dimension, sizes in enumerate(zip(*shapes, strict=True)):
            labels = (
                label
                for label in runs[0].sizes
                if all(run.sizes[label] == size for run, size in zip(runs, sizes, strict=True))
            )
            own = f"{spec.name}_{dimension}"
            merged.append(sizes[0] if len(set(sizes)) == 1 else next(labels, own))
        yield spec if spec.shape is None else spec._replace(shape=tuple(merged))


def _have_rows(outputs: Sequence[ValueSpec], batch: str | None) -> bool:
    """Return whether all outputs can be split into rows."""
    shapes = [spec.shape for spec in outputs if spec.shape is not None]
    is_data = all(spec.type != "object" for spec in outputs)
    return is_data and bool(shapes) and all(shape[:1] == (batch,) for shape in shapes)


def _are_rows(joint: _Run, alone: Sequence[_Run]) -> bool:
    """Return whether the outputs of a joint call consist of those of its rows."""
    return all(
        _is_row(value, index, run.values[path])
        for path, value in joint.values.items()
        for index, run in enumerate(alone)
    )


def _is_row(joint: object, index: int, alone: object) -> bool:
    if not isinstance(joint, torch.Tensor) or not isinstance(alone, torch.Tensor):
        return type(joint) is type(alone) and repr(joint) == repr(alone)
    if joint.dim() == 0 or joint[index : index + 1].shape != alone.shape:
        return False
    row = joint.detach()[index : index + 1]
    if not row.is_floating_point() and not row.is_complex():
        return torch.equal(row, alone)
    wide = torch.complex128 if row.is_complex() else torch.float64
    row, other = row.to(wide), alone.detach().to(wide)
    finite = other.abs()[other.isfinite()]
    tolerance = _TOLERANCES.get(joint.dtype, _COARSE)
    bound = tolerance * float(finite.max()) if len(finite) else 0.0
    return torch.allclose(row, other, rtol=tolerance, atol=bound, equal_nan=True)
