"""A packaged object that is called with named values, alone or in batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from modpack.archive.manifest import package_digest
from modpack.core.call_signature import CallSignature
from modpack.core.process import gc_paused
from modpack.errors import ModpackError
from modpack.importer import PackageImporter
from modpack.options import (
    NamespaceKind,
    OnMismatch,
    VerifyLevel,
    require_object_choice,
    require_options,
)
from modpack.predicting.rows import (
    count_rows,
    join,
    joint_key,
    layout_of,
    run_together,
    split,
    split_outputs,
)
from modpack.predicting.values import CallForm, signature_of

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy
    from modpack.hooks.choice import HookChoice


class Predictor:
    """A loaded package's object, called with named values.

    The object keeps the mode (training or evaluation) in which it was saved.

    Args:
        path: A package file, or the folder of an unzipped package.
        device: Device of the tensors, such as ``"cuda:0"``. None keeps the devices on which they
            were saved.
        compile: Whether to compile the object with :func:`torch.compile`.
        package: Package of the saved object; see :func:`modpack.load`.
        resource: Name of the saved object in ``package``.
        hooks: Hooks to register: True, False, names, or a predicate over HookSpecs.
        global_hooks: Whether to register the process-wide hooks that were captured.
        policy: Trust policy; see :func:`modpack.load`.
        verify: Records to compare with their digests first; see :func:`modpack.load`.
        on_mismatch: Reaction if the environment differs; see :func:`modpack.load`.
        namespace: Names of the package's modules in ``sys.modules``; see :func:`modpack.load`.

    Attributes:
        path: The package, as the user named it.
        digest: The package digest in hexadecimal.
        model: The loaded object.
        signature: Its call signature. If the package has none, it knows only the names of the
            arguments.
        form: The call signature, prepared for many calls.
        device: The device of the inputs.

    Raises:
        TypeError: If an argument has the wrong type.
        ModpackError: If the package cannot be loaded, or the device does not exist.

    >>> import tempfile, modpack
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = torch.nn.Flatten()
    ...     _ = modpack.save(model, f"{folder}/flat.modpack", example_inputs=torch.ones(1, 2, 2))
    ...     with modpack.Predictor(f"{folder}/flat.modpack") as predictor:
    ...         print(predictor.signature)
    ...         predictor.predict({"input": torch.zeros(3, 2, 2)})["output"].shape
    (input: float32 (batch, 2, 2)) -> output: float32 (batch, 4)
    torch.Size([3, 4])
    """

    path: str
    digest: str
    model: Any
    signature: CallSignature
    form: CallForm
    device: str

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        compile: bool = False,
        package: str | None = None,
        resource: str | None = None,
        hooks: HookChoice = True,
        global_hooks: bool = False,
        policy: TrustPolicy | None = None,
        verify: VerifyLevel = "code",
        on_mismatch: OnMismatch = "warn",
        namespace: NamespaceKind = "auto",
    ) -> None:
        require_object_choice(package, resource)
        require_options(global_hooks=global_hooks)
        location = _find_device(device)
        self.path = os.fspath(path)
        with gc_paused():
            importer = PackageImporter(
                path, policy=policy, verify=verify, on_mismatch=on_mismatch, namespace=namespace
            )
            try:
                if package is None or resource is None:
                    package, resource = importer.main_resource()
                self.model = importer.load_model(
                    package, resource, location, hooks=hooks, global_hooks=global_hooks
                )
                if not callable(self.model):
                    kind = type(self.model).__name__
                    raise ModpackError(
                        f"{self.path}: the object, of the type {kind}, cannot be called",
                        hint="Export a module or a function, not its weights or other data.",
                    )
                found = importer.call_signature(package, resource)
                self.signature = found or signature_of(self.model, (package, resource))
            except BaseException:
                importer._discard()  # unlike close(), executes no imports that wait
                raise
        self.digest = package_digest(importer._archive)
        self._importer = importer
        self._device = location or _device_of(self.model)
        self.device = str(self._device)
        self.form = CallForm(self.signature)
        self._layout = layout_of(self.signature, None)
        # Requests are joined only if the self-test has shown that their rows do not influence each
        # other.
        self._rows = self._layout.rows if self.signature.batching == "independent" else frozenset()
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
        self, calls: Sequence[Mapping[str, object]], report: Callable[[str], None]
    ) -> list[dict[str, object] | Exception]:
        """Call the object for several sets of values, jointly where possible.

        If the rows of a batch are independent, calls whose other dimensions and plain values agree
        are one call of the object. If that call fails, each is a call of its own.

        Args:
            calls: The values of each call, as for :meth:`predict`.
            report: Receives the problem of a joint call that none of its calls has alone.

        Returns:
            The outputs of each call, or its exception.
        """
        if len(calls) == 1 or not self._rows:
            return [self._try(call) for call in calls]
        results: dict[int, dict[str, object] | Exception] = {}
        groups: dict[object, list[tuple[int, dict[str, object], int]]] = {}
        for index, call in enumerate(calls):
            try:
                values = self._checked(call)
                rows = count_rows(values, self._rows)
                # A call without rows is a group of its own.
                key = index if rows is None else joint_key(values, self._rows)
            except Exception as failure:
                results[index] = failure
                continue
            groups.setdefault(key, []).append((index, values, rows or 0))
        for group in groups.values():
            indexes, parts, sizes = zip(*group, strict=True)
            joint, name = join(parts, self._rows), f"{len(group)} requests computed together"
            found: list[dict[str, object] | Exception] = []
            for each, _ in run_together(self._run_parts, joint, sizes, self._rows, name, report):
                found += [each] if isinstance(each, Exception) else each
            results.update(zip(indexes, found, strict=True))
        return [results[index] for index in range(len(calls))]

    def import_waiting(self) -> None:
        """Execute the imports of the package that wait, so that no call does."""
        self._importer._namespace.end_deferral(self._importer)

    def close(self) -> None:
        """Close the package. The object keeps working as long as it imports no more modules."""
        self._importer.close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _try(self, call: Mapping[str, object]) -> dict[str, object] | Exception:
        try:
            return self.predict(call)
        except Exception as failure:  # the model may raise anything
            return failure

    def _checked(self, values: Mapping[str, object]) -> dict[str, object]:
        converted = {name: _as_tensor(value) for name, value in values.items()}
        self.form.check(converted)
        return converted

    def _run(self, values: Mapping[str, object]) -> dict[str, object]:
        moved = {
            name: value.to(self._device) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        args, kwargs = self.form.arguments(moved)
        with torch.inference_mode():
            try:
                result = self._call(*args, **kwargs)
            except SystemExit as failure:  # would end the caller, perhaps as if it had succeeded
                ended = RuntimeError(f"it called sys.exit({failure.code!r})")
                raise ended.with_traceback(failure.__traceback__) from failure
            return self.form.outputs(result)

    def _run_parts(
        self, values: Mapping[str, object], sizes: Sequence[int]
    ) -> list[dict[str, object]]:
        """Return the outputs of each part of a joint call.

        Raises:
            ModpackError: If an output cannot be split.
        """
        outputs = self._run(values)
        if len(sizes) == 1:
            return [outputs]
        found = split_outputs(outputs, sum(sizes), self._layout)
        for name, value in found.whole.items():
            # Each request would receive the tensor of all requests.
            if isinstance(value, torch.Tensor):
                raise ModpackError(f"the output {name!r} does not have one value per row")
        return list(split(outputs, sizes, found.rows))


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
        # A model may change its inputs, and Ray's arrays are in memory that cannot be written.
        _, is_read_only = value.__array_interface__.get("data") or (0, False)
        try:
            return torch.tensor(value) if is_read_only else torch.as_tensor(value)
        except (TypeError, ValueError):  # an array of objects or strings
            return value
    return value
