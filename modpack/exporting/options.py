"""The options of saving, each declared once; see :mod:`modpack.options`.

There is no ``from __future__ import annotations`` here, because the annotations are evaluated.
Types that are expensive to import are quoted.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, cast

from modpack.core.json_values import require_type
from modpack.discovery.importers import Importer, sys_importer
from modpack.options import Option, ProgressOptions

if TYPE_CHECKING:
    from modpack.hooks.describe import HookChoice

SelfTest = Literal[True, False, "warn"]
Preset = Literal["none", "pinned", "hermetic"]

DEFAULT_PROTOCOL = 3
"""The pickle protocol that torch.package writes."""


def _require_dynamic(dynamic: object, argument: str) -> None:
    """Check that an argument maps names to dimensions, and those to names.

    Raises:
        TypeError: If it does not.
    """
    expected = "a mapping such as {'x': {0: 'batch'}}"
    if dynamic is None:
        return
    require_type(dynamic, Mapping, argument, expected)
    for name, dimensions in cast("Mapping[object, object]", dynamic).items():
        require_type(name, str, f"a key of {argument}", "the name of an argument")
        require_type(dimensions, Mapping, f"{argument}[{name!r}]", "a mapping such as {0: 'batch'}")
        for dimension, label in cast("Mapping[object, object]", dimensions).items():
            require_type(dimension, int, f"a key of {argument}[{name!r}]", "a dimension (int)")
            require_type(label, str, f"{argument}[{name!r}][{dimension}]", "a name (str)")
            if not str(label).isidentifier():
                raise ValueError(f"{argument}[{name!r}][{dimension}] is not a name: {label!r}")


def _require_device(device: object, argument: str) -> None:
    """Check that an argument names a device.

    Raises:
        TypeError: If it is neither a string nor None.
        ValueError: If torch does not know the device.
    """
    if device is None:
        return
    require_type(device, str, argument, "the name of a device, such as 'cpu'")
    import torch

    try:
        torch.device(cast("str", device))
    except RuntimeError as failure:
        raise ValueError(f"{argument} {device!r} is not a device: {failure}") from failure


def is_tested_by_default(has_example: bool) -> bool:
    """Return whether a package is tested if the caller did not choose."""
    chosen = os.environ.get("MODPACK_SELF_TEST")
    return chosen != "0" and (has_example or chosen != "examples")


class ExporterOptions(TypedDict, total=False):
    """Options of :class:`modpack.PackageExporter`."""

    self_test: Annotated[
        SelfTest | None,
        Option(
            None,
            "Whether to test the package before it replaces the target: in an interpreter that "
            "cannot import the interned modules, the saved objects must load and be equal to the "
            "live ones, and compute the same output for example inputs. ``'warn'`` writes a "
            "package that fails, with a warning. By default, :func:`modpack.save` tests all "
            "packages, and PackageExporter those with example inputs. The environment variable "
            "``MODPACK_SELF_TEST`` changes the default: ``0`` tests none, ``examples`` only those "
            "with example inputs.",
        ),
    ]
    self_test_device: Annotated[
        str | None,
        Option(
            None,
            "Device on which the self-test runs the example inputs, such as ``'cpu'``. By default, "
            "tensors are loaded to the devices that they were saved on. Numbers that another kind "
            "of device computed are compared with the tolerances of "
            ":func:`torch.testing.assert_close`.",
            _require_device,
        ),
    ]
    lazy: Annotated[
        bool,
        Option(
            False,
            "Whether to find the imports that can wait until a name is looked up, which lets the "
            "package start faster. This needs example inputs and a self-test that passes.",
        ),
    ]
    allow_secrets_in: Annotated[
        str | Iterable[str],
        Option(
            (),
            "Locations that may contain possible secrets: patterns of module paths, or of records "
            "if they contain ``/``. A pattern with ``#`` and a fingerprint, as shown in the "
            "PackagingError, allows only that text.",
        ),
    ]


class ModelOptions(TypedDict, total=False):
    """Options of everything that saves a model."""

    hooks: Annotated[
        "HookChoice",
        Option(True, "Hooks to capture: True, False, names, or a predicate over HookSpecs."),
    ]
    global_hooks: Annotated[bool, Option(False, "Whether to capture process-wide hooks.")]
    reset_hook_state: Annotated[
        "HookChoice",
        Option(
            False,
            "Hooks whose collected state is saved empty: True, False, names, or a predicate over "
            "HookSpecs. The state consists of the lists, dicts, sets, and deques among closure "
            "variables, attributes, and bound arguments. The live hooks keep their state.",
        ),
    ]
    example_inputs: Annotated[
        object,
        Option(
            None,
            "Inputs for the self-test. A tuple contains the positional arguments of one call; a "
            "mapping of parameter names contains keyword arguments; any other object is the only "
            "argument.",
        ),
    ]
    example_kwargs: Annotated[object, Option(None, "Additional keyword arguments of that call.")]
    dynamic: Annotated[
        Mapping[str, Mapping[int, str]] | None,
        Option(
            None,
            "Names for the input dimensions that may vary, by argument and dimension: "
            "``{'x': {0: 'batch', 1: 'length'}}``. Dimensions with the same name have the same "
            "size. The self-test finds the batch dimension without this option if all tensors "
            "share their first dimension.",
            _require_dynamic,
        ),
    ]
    pickle_protocol: Annotated[
        int,
        Option(DEFAULT_PROTOCOL, "Pickle protocol, from 2 to 5. torch.package reads 3 and 4."),
    ]


class SaveModelOptions(ModelOptions, total=False):
    """Options of :meth:`modpack.PackageExporter.save_model`."""

    dependencies: Annotated[
        bool, Option(True, "Whether to follow the classes and functions that the model refers to.")
    ]


class RuleOptions(TypedDict, total=False):
    """Rules as options: patterns of modules, and a preset for modules that no pattern matches."""

    intern: Annotated[
        str | Iterable[str],
        Option(
            (),
            "Patterns of modules whose sources are included. Rules apply in the order deny, mock, "
            "extern, intern; use PackageExporter for another order.",
        ),
    ]
    extern: Annotated[
        str | Iterable[str],
        Option((), "Patterns of modules to import from the loading environment."),
    ]
    mock: Annotated[str | Iterable[str], Option((), "Patterns of modules to replace with mocks.")]
    deny: Annotated[
        str | Iterable[str], Option((), "Patterns of modules that the package must not need.")
    ]
    preset: Annotated[
        Preset,
        Option(
            "pinned",
            "Rules for modules that no pattern matches. ``'pinned'``: installed distributions are "
            "extern, all other code is interned. ``'hermetic'``: pure-Python distributions are "
            "interned, too. ``'none'``: such modules are an error.",
        ),
    ]
    intern_native: Annotated[
        bool,
        Option(
            False,
            "Whether the ``'hermetic'`` preset interns native extensions. The package then loads "
            "only on the same platform and Python version.",
        ),
    ]


class SaveOptions(RuleOptions, ModelOptions, ExporterOptions, ProgressOptions, total=False):
    """Options of :func:`modpack.save`."""

    importer: Annotated[
        Importer | Sequence[Importer],
        Option(sys_importer, "Importers of objects and modules, in order."),
    ]
    debug: Annotated[
        bool, Option(False, "Whether a PackagingError shows the import chain of each module.")
    ]
    optimizer: Annotated[
        object, Option(None, "The model's optimizer, which is saved with its own hooks.")
    ]
