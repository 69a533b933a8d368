"""Scan results: the imports and file names found in a module's source.

The scanner in :mod:`modpack.discovery` produces these values; the walk turns them into graph edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class ImportKind(str, Enum):
    """The evidence behind one edge, and how strong the dependency is."""

    REQUIRED = "required"
    """A statement at module level or in a class body. Runs when the module is imported."""
    FUNCTION = "function"
    """A statement inside a function. Runs only if the function is called."""
    GUARDED = "guarded"
    """A statement that may fail: under ``try``/``except ImportError``, a ``find_spec`` test, or a
    branch on the Python version or the platform."""
    TYPE_CHECKING = "type-checking"
    """A statement under ``if TYPE_CHECKING`` or ``if False``. Never runs; not a dependency."""
    DYNAMIC = "dynamic"
    """``importlib.import_module("a.b")`` or ``__import__("a.b")`` with a constant argument."""
    PARENT = "parent"
    """A Python package that contains an imported module. Its ``__init__`` runs first."""
    PICKLE = "pickle"
    """A module that defines a pickled object's class or function."""
    EXPLICIT = "explicit"
    """A module that the user saved by name."""
    LIVE_MODULE = "live-module"
    """A module that is loaded in the exporting process, below a Python package whose code imports
    names that are known only at run time."""
    SELF_TEST = "self-test"
    """A module that the self-test imported."""

    @property
    def is_dependency(self) -> bool:
        """Whether an import of this kind can ever run."""
        return self is not ImportKind.TYPE_CHECKING

    @property
    def runs_at_once(self) -> bool:
        """Whether the import runs, and must succeed, whenever its importer is imported."""
        return self not in (
            ImportKind.FUNCTION,
            ImportKind.GUARDED,
            ImportKind.TYPE_CHECKING,
            ImportKind.DYNAMIC,
        )

    @property
    def may_be_absent(self) -> bool:
        """Whether the importer works without the module."""
        return self in (ImportKind.GUARDED, ImportKind.TYPE_CHECKING)


class ImportStatement(NamedTuple):
    """One imported module at one location in a source.

    Attributes:
        module: Absolute name of the module (relative imports are already resolved).
        names: Names imported by ``from module import a, b``; ``("*",)`` for a star import; empty
            for ``import module``. Each may be a submodule or an attribute.
        kind: Strength of the dependency.
        line: 1-based line in the source.
        is_optional: Whether the statement runs only under a condition. If the module is absent, it
            is not required.
    """

    module: str
    names: tuple[str, ...]
    kind: ImportKind
    line: int
    is_optional: bool = False


class DynamicImport(NamedTuple):
    """A dynamic import whose argument is known only at run time.

    Attributes:
        call: Call as written, shortened to one line.
        line: 1-based line in the source.
        guarded: Whether the code handles a failure of the import.
    """

    call: str
    line: int
    guarded: bool = False


class FileName(NamedTuple):
    """A string constant that may name files or a folder, in a module that uses its own path.

    Attributes:
        text: The string, without a leading ``/``.
        line: 1-based line in the source.
    """

    text: str
    line: int


class ScanFailure(NamedTuple):
    """The reason that a source could not be parsed.

    Attributes:
        reason: The parser's message, on one line.
        line: 1-based line of the error, if known.
    """

    reason: str
    line: int | None = None


@dataclass(frozen=True)
class ModuleScan:
    """The result of scanning one source.

    Attributes:
        imports: All imports in source order.
        unreadable: Dynamic imports that cannot be read statically.
        bound: Names that module-level code binds. Imported with ``from module import name``, such
            a name is an attribute and not a submodule.
        exported: The literal ``__all__``; None if there is none or it is computed.
        failure: Parse error. All other fields are then empty.
        file_names: String constants that may name files next to the code, in source order.
        imports_listed: Whether the source may import the modules that it finds in a folder.
        is_clean: Whether a secret scan of the source found nothing.
    """

    imports: tuple[ImportStatement, ...] = ()
    unreadable: tuple[DynamicImport, ...] = ()
    bound: frozenset[str] = field(default_factory=frozenset)
    exported: tuple[str, ...] | None = None
    failure: ScanFailure | None = None
    file_names: tuple[FileName, ...] = ()
    imports_listed: bool = False
    is_clean: bool = field(default=False, compare=False)
