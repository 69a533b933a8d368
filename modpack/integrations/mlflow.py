"""Packages in MLflow: logged by value, registered, loaded, and scored.

This module is a flavor of MLflow. A logged model contains the package itself, so that it loads on
another machine. The ``MLmodel`` file next to it names this module as the loader of the
``python_function`` flavor, which ``mlflow models serve`` and ``mlflow.models.evaluate`` use.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from packaging.requirements import Requirement

import modpack
from modpack.archive.layout import DETACHED_SIGNATURE
from modpack.archive.reader import open_archive
from modpack.core.call_signature import CallSignature, ValueSpec
from modpack.core.names import normalized
from modpack.core.text import dtype_name
from modpack.errors import InputMismatchError, ModpackError, ModpackWarning, listed
from modpack.report.requirements import requirements_of
from modpack.running.inputs import require_library

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature
    from mlflow.models.model import ModelInfo

__all__ = ["load_model", "log_model", "save_model"]

FLAVOR: Final = "modpack"
_NO_SIGNATURE: Final = "{}: there is no call signature, from which MLflow's signature is made"
_FOLDER: Final = "data"
"""The folder in which MLflow stores the files that a loader reads."""
_PLAIN: Final = {"bool": "boolean", "int": "long", "float": "double", "str": "string"}
"""MLflow's names of the types of plain values."""
_CONFIG: Final = {"policy": None, "verify": "code", "on_mismatch": "warn", "device": None}
"""The options of a load by ``mlflow.pyfunc``. MLflow ignores an option that it did not store."""


def log_model(
    model: object,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    requirements: Sequence[str] = (),
    mlflow_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> ModelInfo:
    """Log a package to MLflow, or a model that becomes one.

    The model belongs to MLflow's active run, if there is one. Its signature, input example, and
    requirements are those of the package.

    Args:
        model: The path of a package, or a model that :func:`modpack.save` packages. It must have a
            call signature, so pass ``example_inputs`` for a model.
        name: Name of the logged model.
        registered_model_name: Name under which MLflow registers the model. None registers none.
        requirements: Requirements for pip, in addition to those of the package, or instead of those
            for the same distribution: ``"modpack @ https://..."``.
        mlflow_options: Further arguments of ``mlflow.models.Model.log``, such as ``metadata``.
        **options: Options of :func:`modpack.save`, for a model that is not a package yet.

    Returns:
        MLflow's description of the logged model. Its ``model_uri`` is the address for
        :func:`load_model`.

    Raises:
        TypeError: If there are options of :func:`modpack.save`, but the model is a package.
        ArchiveError: If the file does not exist, or is not a package.
        ModpackError: If there is no call signature, MLflow cannot describe it, or MLflow is not
            installed.
    """
    mlflow = require_library("mlflow", "logged models", "mlflow")
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, (str, os.PathLike)):
            package = Path(model)
            if options:
                given = ", ".join(options)
                raise TypeError(f"{given}: options of modpack.save, but {package} is a package")
        else:
            if options.get("example_inputs") is None and options.get("example_kwargs") is None:
                raise ModpackError(_NO_SIGNATURE.format("the model"), hint="Pass example_inputs.")
            package = Path(folder, "model.modpack")
            modpack.save(model, package, **options)
        return mlflow.models.Model.log(
            artifact_path=None,
            name=name,
            flavor=sys.modules[__name__],
            registered_model_name=registered_model_name,
            package=package,
            requirements=requirements,
            **(mlflow_options or {}),
        )


def save_model(
    package: str | os.PathLike[str],
    path: str | os.PathLike[str],
    mlflow_model: Model | None = None,
    *,
    requirements: Sequence[str] = (),
) -> None:
    """Write a package to a new folder, as a model in MLflow's format.

    Args:
        package: The package.
        path: The folder.
        mlflow_model: MLflow's description of the model, which is completed. None is a new one.
        requirements: See :func:`log_model`.

    Raises:
        ArchiveError: If the file does not exist, or is not a package.
        ModpackError: If the package has no call signature, MLflow cannot describe it, or MLflow is
            not installed.
    """
    mlflow = require_library("mlflow", "logged models", "mlflow")
    source = Path(package).resolve()
    with open_archive(source) as archive:
        shards = [shard.name for shard in archive.shards()]
    call = modpack.call_signature(source)
    if call is None:
        raise ModpackError(_NO_SIGNATURE.format(package), hint="Save it with example_inputs.")
    described = mlflow_model if mlflow_model is not None else mlflow.models.Model()
    described.add_flavor(FLAVOR, package=source.name, modpack_version=modpack.__version__)
    mlflow.pyfunc.save_model(
        path=os.fspath(path),
        mlflow_model=described,
        loader_module=__name__,
        data_path=str(source),
        signature=_describe(call, str(package)),
        input_example=_example(call, modpack.example_inputs(source)),
        pip_requirements=_requirements(source, requirements),
        model_config=dict(_CONFIG),
    )
    for name in (source.name + DETACHED_SIGNATURE, *shards):
        if source.with_name(name).exists():
            shutil.copyfile(source.with_name(name), Path(path, _FOLDER, name))


def load_model(model_uri: str, *, dst_path: str | None = None, **options: Any) -> Any:
    """Load the model of a logged package, as :func:`modpack.load` does.

    Args:
        model_uri: Address of the logged model, such as ``"models:/net/1"``.
        dst_path: Existing folder for the files. None is a temporary folder.
        **options: Options of :func:`modpack.load`, such as ``policy``, which are checked before any
            code of the package runs. Nothing else that MLflow stored is executed.

    Raises:
        ModpackError: If the logged model is not a package, the package cannot be loaded, or MLflow
            is not installed.
    """
    mlflow = require_library("mlflow", "logged models", "mlflow")
    folder = mlflow.artifacts.download_artifacts(artifact_uri=model_uri, dst_path=dst_path)
    flavors = mlflow.models.Model.load(folder).flavors
    if FLAVOR not in flavors:
        raise ModpackError(
            f"{model_uri}: the logged model is not a package; its flavors are {listed(flavors)}",
            hint="Log it with modpack.integrations.mlflow.log_model.",
        )
    # Only the last part of the name: MLmodel may come from anyone, and must not name other files.
    name = Path(str(flavors[FLAVOR].get("package"))).name
    return modpack.load(Path(folder, _FOLDER, name), **options)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> PackagedFunction:
    """Load a package for ``mlflow.pyfunc.load_model``."""
    config: dict[str, Any] = {**_CONFIG, **(model_config or {})}
    if isinstance(config["policy"], (str, os.PathLike)):
        config["policy"] = modpack.TrustPolicy.from_toml(config["policy"])
    return PackagedFunction(modpack.Predictor(path, **config))


class PackagedFunction:
    """A loaded package as MLflow calls it.

    Args:
        predictor: The package's object.
    """

    def __init__(self, predictor: modpack.Predictor) -> None:
        self._predictor = predictor
        self._inputs = predictor.signature.inputs

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Call the model.

        Args:
            model_input: One array, arrays by the names of the inputs, or, for a call without
                tensors, a data frame with a call in each row. MLflow has compared it with the
                signature.
            params: Plain values by name. None is no value.

        Returns:
            The output as an array or a plain value; several by their names. For a data frame, a
            list with those of each row.

        Raises:
            MlflowException: If the values do not fit the call signature.
        """
        if hasattr(model_input, "to_dict"):
            return [self._call(row) for row in model_input.to_dict("records")]
        if not isinstance(model_input, Mapping):
            (name,) = (each.name for each in self._inputs if each.type == "tensor")
            model_input = {name: model_input}
        return self._call({**model_input, **(params or {})})

    def get_raw_model(self) -> Any:
        """Return the loaded object."""
        return self._predictor.model

    def _call(self, given: Mapping[str, Any]) -> Any:
        import numpy as np
        from mlflow.exceptions import MlflowException

        values: dict[str, object] = {s.name: None for s in self._inputs if s.type == "none"}
        for name, value in given.items():
            if isinstance(value, np.ndarray):  # torch shares only memory that it may write to
                values[name] = np.require(value, requirements=["C", "W"])
            elif value is not None:
                values[name] = value.item() if isinstance(value, np.generic) else value
        try:
            outputs = self._predictor.predict(values)
        except InputMismatchError as failure:  # MLflow's server answers with 400
            raise MlflowException.invalid_parameter_value(str(failure)) from failure
        found = {name: _as_array(value) for name, value in outputs.items()}
        return next(iter(found.values())) if len(found) == 1 else found


def _describe(call: CallSignature, location: str) -> ModelSignature:
    """Return a call signature as MLflow's signature.

    Raises:
        ModpackError: If MLflow has no type for an input.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    tensors = [spec for spec in call.inputs if spec.type == "tensor"]
    plain = [spec for spec in call.inputs if spec.type in _PLAIN]
    known = ("tensor", "none", *_PLAIN)
    unknown = [s for s in call.inputs if s.type not in known and s.required]
    unknown += [s for s in tensors if _numpy_dtype(s.dtype) != s.dtype]
    if unknown:
        raise ModpackError(
            f"{location}: MLflow cannot describe the input {unknown[0].name!r}: {unknown[0]}",
            hint="Package a module that takes tensors of NumPy's dtypes, and plain values.",
        )
    if not tensors:  # a row of a data frame is a call
        columns = [ColSpec(_PLAIN[s.type], s.name, required=s.required) for s in plain]
        return ModelSignature(Schema(columns))
    params = [ParamSpec(spec.name, _PLAIN[spec.type], None) for spec in plain]
    are_arrays = call.outputs and all(spec.type == "tensor" for spec in call.outputs)
    outputs = _tensor_schema(call.outputs) if are_arrays else None
    return ModelSignature(_tensor_schema(tensors), outputs, ParamSchema(params) if params else None)


def _tensor_schema(specs: Sequence[ValueSpec]) -> Any:
    """Return the schema of tensors. A single one has no name, so that MLflow accepts an array."""
    import numpy as np
    from mlflow.types import Schema, TensorSpec

    def convert(spec: ValueSpec) -> TensorSpec:
        shape = [size if isinstance(size, int) else -1 for size in spec.shape or ()]
        name = spec.name if len(specs) > 1 else None
        return TensorSpec(np.dtype(_numpy_dtype(spec.dtype)), shape, name)

    return Schema([convert(spec) for spec in specs])


def _numpy_dtype(dtype: str | None) -> str:
    """Return the name of a dtype of NumPy: float32 for short floats that NumPy lacks."""
    name = dtype or ""
    return "float32" if name.startswith(("bfloat16", "float8_", "float4_")) else name


def _example(call: CallSignature, values: Mapping[str, object] | None) -> Any:
    """Return example inputs in the form that MLflow stores: with one row, because it is JSON."""
    if values is None:
        return None
    arrays = {
        spec.name: _as_array(value[:1] if spec.shape[:1] == (call.batch,) else value)
        for spec in call.inputs
        if isinstance(value := values[spec.name], torch.Tensor) and spec.shape is not None
    }
    plain = {spec.name: values[spec.name] for spec in call.inputs if spec.type in _PLAIN}
    data = next(iter(arrays.values())) if len(arrays) == 1 else arrays or plain
    return (data, plain) if arrays and plain else data


def _requirements(package: Path, given: Iterable[str]) -> list[str]:
    """Return what pip has to install. A warning lists the distributions that it cannot install."""
    found = requirements_of(package)
    needed = {r.distribution: r.requirement for r in found.requirements if not r.is_optional}
    needed.update({each.distribution: each.requirement for each in found.imported})
    needed = {normalized(name): text for name, text in needed.items()}
    # Of an editable installation, pip knows no requirement.
    needed["modpack"] = needed.get("modpack") or f"modpack=={modpack.__version__}"
    needed.update({normalized(Requirement(text).name): text for text in given})
    missing = [*(name for name, text in needed.items() if text is None), *found.unrecorded]
    if missing:
        warnings.warn(
            f"{package}: pip cannot install {listed(missing)}. Pass requirements to replace them.",
            ModpackWarning,
            stacklevel=2,
        )
    return [text for text in needed.values() if text is not None]


def _as_array(value: Any) -> Any:
    """Return a tensor as an array, and other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    dtype = getattr(torch, _numpy_dtype(dtype_name(value.dtype)))
    return value.detach().to(dtype).numpy(force=True)
