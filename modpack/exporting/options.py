"""The options of saving, each declared once; see :mod:`modpack.options`.

There is no ``from __future__ import annotations`` here, because the annotations are evaluated.
Types that are expensive to import are quoted.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from modpack.discovery.importers import Importer, sys_importer
from modpack.options import Option, ProgressOptions

if TYPE_CHECKING:
    from modpack.hooks.describe import HookChoice

SelfTest = Literal[True, False, "warn"]
Preset = Literal["none", "pinned", "hermetic"]

DEFAULT_PROTOCOL = 3
"""The pickle protocol that torch.package writes."""


class ExporterOptions(TypedDict, total=False):
    """Options of :class:`modpack.PackageExporter`."""

    self_test: Annotated[
        SelfTest,
        Option(
            True,
            "Whether to test a package with example inputs before it replaces the target: in an "
            "interpreter that cannot import what the package interns, the model must load and "
            "compute the same output. ``'warn'`` writes a package that fails, with a warning; "
            "False runs no test.",
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
            "variables, attributes, and bound arguments. The live hooks keep theirs.",
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
