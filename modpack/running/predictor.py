"""A packaged object that is called with named values, alone or in batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from modpack.archive.manifest import package_digest
from modpack.core.call_signature import CallSignature, build_arguments
from modpack.core.process import gc_paused
from modpack.errors import ModpackError
from modpack.importer import PackageImporter
from modpack.options import (
    HookOptions,
    OpenOptions,
    PredictorOptions,
    select_options,
    takes_options,
)
from modpack.running.values import check_inputs, flatten_result, signature_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Predictor:
    """A loaded package's object, called with named values.

    The object keeps the mode (training or evaluation) in which it was saved.

    Args:
        path: A package file, or the folder of an unzipped package.
        device: Device of the tensors, such as ``"cuda:0"``. None keeps the devices on which they
            were saved.
        compile: Whether to compile the object with :func:`torch.compile`.
        **options: See :class:`modpack.options.PredictorOptions`.

    Attributes:
        path: The package, as the user named it.
        digest: The package digest in hexadecimal.
        model: The loaded object.
        signature: Its call signature. If the package has none, it knows only the names of the
            arguments.
        device: The device of the inputs.

    Raises:
        TypeError: If an argument has the wrong type.
        ModpackError: If the package cannot be loaded, or the device does not exist.
    """

    path: str
    digest: str
    model: Any
    signature: CallSignature
    device: str

    @takes_options(PredictorOptions)
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        compile: bool = False,
        **options: Unpack[PredictorOptions],
    ) -> None:
        package, resource = options["package"], options["resource"]
        if (package is None) != (resource is None):
            raise TypeError("package and resource must be given together")
        location = _find_device(device)
        self.path = os.fspath(path)
        with gc_paused():
            importer = PackageImporter(path, **select_options(OpenOptions, options))
            try:
                if package is None or resource is None:
                    package, resource = importer.main_resource()
                chosen = select_options(HookOptions, options)
                self.model = importer.load_model(package, resource, location, **chosen)
                if not callable(self.model):
                    kind = type(self.model).__name__
                    raise ModpackError(f"{self.path}: the object, a {kind}, cannot be called")
                found = importer.call_signature(package, resource)
                self.signature = found or signature_of(self.model, (package, resource))
            except BaseException:
                importer.close()
                raise
        self.digest = package_digest(importer._archive)
        self._importer = importer
        self._device = location or _device_of(self.model)
        self.device = str(self._device)
        self._call = torch.compile(self.model) if compile else self.model

    def predict(self, values: Mapping[str, object]) -> dict[str, object]:
        """Call the object once.

        Args:
            values: Tensors, NumPy arrays, and plain values, by the names of the call signature.

        Returns:
            The outputs by name, tensors on the CPU.

        Raises:
            InputMismatchError: If the values do not fit the call signature.
            RuntimeError: If the object calls :func:`sys.exit`. Its other exceptions pass through.
        """
        return self._run(self._checked(values))

    def predict_many(
        self, calls: Sequence[Mapping[str, object]], max_rows: int
    ) -> list[dict[str, object] | Exception]:
        """Call the object for several sets of values, jointly where possible.

        If the rows of a batch are independent, calls whose other dimensions and plain values agree
        are concatenated, and larger ones are split.

        Args:
            calls: The values of each call, as for :meth:`predict`.
            max_rows: Maximum number of rows of a joint call.

        Returns:
            The outputs of each call, or its exception.
        """
        results: dict[int, dict[str, object] | Exception] = {}
        groups: dict[object, list[tuple[int, dict[str, object]]]] = {}
        for index, call in enumerate(calls):
            try:
                values = self._checked(call)
                key = self._group_key(values)
            except Exception as failure:
                results[index] = failure
                continue
            groups.setdefault(index if key is None else key, []).append((index, values))
        for shared, group in groups.items():
            results.update(self._run_group(group, max_rows, can_join=isinstance(shared, tuple)))
        return [results[index] for index in range(len(calls))]

    def close(self) -> None:
        """Close the package. The object keeps working as long as it imports no more modules."""
        self._importer.close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _checked(self, values: Mapping[str, object]) -> dict[str, object]:
        converted = {name: _as_tensor(value) for name, value in values.items()}
        check_inputs(self.signature, converted)
        return converted

    def _run(self, values: Mapping[str, object]) -> dict[str, object]:
        moved = {
            name: value.to(self._device) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        args, kwargs = build_arguments(self.signature, moved)
        with torch.inference_mode():
            try:
                result = self._call(*args, **kwargs)
            except SystemExit as failure:  # would end the caller, perhaps as if it had succeeded
                ended = RuntimeError(f"it called sys.exit({failure.code!r})")
                raise ended.with_traceback(failure.__traceback__) from failure
            return flatten_result(self.signature, result)

    def _group_key(self, values: Mapping[str, object]) -> tuple[object, ...] | None:
        """Return a key that is equal for calls that can be joined, or None if none can."""
        if self.signature.batch is None or self.signature.batching != "independent":
            return None
        return tuple(
            (name, *value.shape[1:]) if isinstance(value, torch.Tensor) else (name, repr(value))
            for name, value in sorted(values.items())
        )

    def _run_group(
        self, group: Sequence[tuple[int, dict[str, object]]], max_rows: int, can_join: bool
    ) -> Iterable[tuple[int, dict[str, object] | Exception]]:
        if can_join:
            rows = [_count_rows(values) for _, values in group]
            if len(group) > 1 or rows[0] > max_rows:
                try:
                    joint = self._run_chunks([values for _, values in group], sum(rows), max_rows)
                    parts = _split_rows(joint, rows)
                    return [(i, part) for (i, _), part in zip(group, parts, strict=True)]
                except Exception:
                    if len(group) > 1:  # find the calls that fail
                        return [
                            each
                            for one in group
                            for each in self._run_group([one], max_rows, can_join)
                        ]
        results: list[tuple[int, dict[str, object] | Exception]] = []
        for index, values in group:
            try:
                results.append((index, self._run(values)))
            except Exception as failure:
                results.append((index, failure))
        return results

    def _run_chunks(
        self, calls: Sequence[dict[str, object]], rows: int, max_rows: int
    ) -> dict[str, object]:
        """Return the outputs for the rows of all calls, from calls of at most ``max_rows``."""
        joint = _concatenate(calls)
        outputs: list[dict[str, object]] = []
        for start in range(0, rows, max_rows):
            size = min(max_rows, rows - start)
            chunk = self._run(_slice_rows(joint, start, size))
            if any(each.shape[:1] != (size,) for each in _tensors(chunk)):
                raise ValueError(f"an output does not have {size} rows, although the inputs do")
            outputs.append(chunk)
        return _concatenate(outputs)


def _find_device(device: str | None) -> torch.device | None:
    """Return a device of this machine.

    Raises:
        ModpackError: If this machine does not have it.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as failure:
        reason = str(failure).partition("\n")[0]
        raise ModpackError(f"device {device!r} cannot be used: {reason}") from failure
    return found


def _device_of(model: object) -> torch.device:
    """Return the device of a model's first parameter or buffer."""
    if isinstance(model, torch.nn.Module):
        for each in (*model.parameters(), *model.buffers()):
            return each.device
    return torch.device("cpu")


def _as_tensor(value: object) -> object:
    """Return a NumPy array as a tensor, and other values unchanged."""
    if not isinstance(value, torch.Tensor) and hasattr(value, "__array_interface__"):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError):  # an array of objects or strings
            return value
    return value


def _tensors(values: Mapping[str, object]) -> list[torch.Tensor]:
    return [value for value in values.values() if isinstance(value, torch.Tensor)]


def _count_rows(values: Mapping[str, object]) -> int:
    return _tensors(values)[0].shape[0]


def _concatenate(calls: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the values of all calls with the rows of their tensors concatenated.

    Raises:
        ValueError: If plain values differ.
    """
    first = calls[0]
    if len(calls) == 1:
        return dict(first)
    joint: dict[str, object] = {}
    for name, value in first.items():
        parts = [call[name] for call in calls]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        if len(tensors) == len(parts):
            joint[name] = torch.cat(tensors)
        elif any(repr(part) != repr(value) for part in parts):
            raise ValueError(f"the values of {name!r} differ between batches")
        else:
            joint[name] = value
    return joint


def _slice_rows(values: Mapping[str, object], start: int, size: int) -> dict[str, object]:
    return {
        name: value[start : start + size] if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _split_rows(values: Mapping[str, object], rows: Sequence[int]) -> list[dict[str, object]]:
    parts: list[dict[str, object]] = []
    start = 0
    for size in rows:
        parts.append(_slice_rows(values, start, size))
        start += size
    return parts
