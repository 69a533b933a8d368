"""Scan results: the imports and definitions found in a module's source.

The scanner in :mod:`modpack.discovery` produces these values; the walk turns them into graph edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

Literal: TypeAlias = "bool | int | float | str | list[str] | None"
"""A literal in a source. A list with one string is the ``repr`` of a value that JSON lacks; an
empty list is a value that cannot be read statically."""

Row: TypeAlias = "tuple[int, str, Sequence[Literal], Mapping[str, Literal]]"
"""One binding of a name: line, kind, positional details, and named details.

The details depend on the kind. ``def`` and ``class``: the dotted names of the decorators, and for
``def`` the function's name under an empty key. ``is``: the value. ``holds``: the value, a mutable
container. ``call``: the dotted name of the callee and its positional arguments, and its keyword
arguments.
"""


class Rebinding(IntEnum):
    """When a module's own code rebinds a name that is already defined."""

    AT_IMPORT = 0
    """During the import of the module."""
    RUNNING = 1
    """In methods, or in functions that the module itself calls: internal state."""
    ON_REQUEST = 2
    """In functions for callers: ``def set_flag(value): global FLAG; ...``."""


class Body(NamedTuple):
    """The bindings of a module, or of a class in it.

    Attributes:
        line: Line of the class statement; 0 for a module.
        decorators: Dotted names of the decorators; ``""`` for one that is not a dotted name.
        functions: Lines of functions that are bound once and not decorated, by name.
        values: Lines and literals of names that are bound once, by name.
        others: All bindings, in source order, of each other name that can be read statically.
        unread: Names with a binding that cannot be read statically.
        conditional: Names that only statements in blocks bind, so they may be absent.
    """

    line: int
    decorators: Sequence[str]
    functions: Mapping[str, int]
    values: Mapping[str, tuple[int, Literal]]
    others: Mapping[str, Sequence[Row]]
    unread: Sequence[str] = ()
    conditional: Sequence[str] = ()


class Initializer(NamedTuple):
    """An ``__init__`` that only stores its arguments and literals.

    Attributes:
        parameters: Parameter names after ``self``, each with its default.
        attributes: The stored parameter's name, or an empty name and a literal, by attribute.
        changed: When methods set an attribute later (:class:`Rebinding`), by attribute.
    """

    parameters: Sequence[tuple[str, Literal]]
    attributes: Mapping[str, tuple[str, Literal]]
    changed: Mapping[str, int]


@dataclass(frozen=True)
class Definitions:
    """The definitions in one source.

    Attributes:
        bodies: Bindings of classes by dotted path; ``""`` is the module itself.
        settings: When functions rebind a global, or an attribute (with a leading dot) of a
            non-local object, by name.
        setters: Those names by function, including functions that it calls; ``*`` for a computed
            name.
        called: Last name components of the callees in expression statements at module level.
        is_dynamic: Whether module-level code may bind names that are not in the source text.
        initializers: Initializers by class, for classes that only store arguments and literals.
    """

    bodies: Mapping[str, Body] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    setters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    called: Sequence[str] = ()
    is_dynamic: bool = False
    initializers: Mapping[str, Initializer] = field(default_factory=dict)

    def without_values(self) -> Definitions:
        """Return a copy without values, for a source that contains a secret."""
        bodies = {
            path: body._replace(
                values={},
                others={n: rows for n, rows in body.others.items() if _has_no_value(rows)},
                unread=[*body.unread, *body.values, *body.others],
            )
            for path, body in self.bodies.items()
        }
        return replace(self, bodies=bodies, initializers={})


def _has_no_value(rows: Sequence[Row]) -> bool:
    return all(kind in ("def", "class") for _, kind, _, _ in rows)


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


@dataclass(frozen=True)
class ImportStatement:
    """One imported module at one location in a source.

    Attributes:
        module: Absolute name of the module (relative imports are already resolved).
        names: Names imported by ``from module import a, b``; ``("*",)`` for a star import; empty
            for ``import module``. Each may be a submodule or an attribute.
        kind: Strength of the dependency.
        line: 1-based line in the source.
        is_optional: Whether a condition around the statement tests for a module, such as a flag
            set in a ``try`` that imports. If the module is absent, it is not required.
        condition_names: Names in other modules of the library (``lib.utils.has_x``) that the
            conditions around the statement use, and that may test for a module.
    """

    module: str
    names: tuple[str, ...]
    kind: ImportKind
    line: int
    is_optional: bool = False
    condition_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class BrokenImport:
    """A relative import beyond the top-level package, which always fails.

    Attributes:
        statement: Statement as written, shortened to one line.
        line: 1-based line in the source.
    """

    statement: str
    line: int


@dataclass(frozen=True)
class DynamicImport:
    """A dynamic import whose argument is known only at run time.

    Attributes:
        call: Call as written, shortened to one line.
        line: 1-based line in the source.
        guarded: Whether the code handles a failure of the import.
    """

    call: str
    line: int
    guarded: bool = False


class ReadKind(Enum):
    """How much of a data file's path can be read from the source."""

    FILE = "file"
    """The whole path."""
    FOLDER = "folder"
    """Only the folder; the file in it is known only at run time."""
    NAME = "name"
    """A string that may be a file name, in a module that uses its own file's path."""


@dataclass(frozen=True)
class FileRead:
    """An expression that may read a file next to the code.

    Attributes:
        kind: How much of the path is known.
        path: Path relative to the module's folder, with ``/`` and ``..``; ``""`` is that folder.
        line: 1-based line in the source.
        module: Python package or module whose folder the path is relative to, if it is not the
            scanned module.
    """

    kind: ReadKind
    path: str
    line: int
    module: str | None = None


@dataclass(frozen=True)
class FolderListing:
    """An expression that lists a folder of code, in a module that may import the listed names.

    Attributes:
        path: Folder relative to the module's folder, with ``/`` and ``..``.
        is_deep: Whether subfolders are listed as well.
        line: 1-based line in the source.
        module: Python package or module whose folder the path is relative to, if it is not the
            scanned module.
    """

    path: str
    is_deep: bool
    line: int
    module: str | None = None


@dataclass(frozen=True)
class ScanFailure:
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
        broken_imports: Relative imports that always fail, unless the code handles the failure.
        bound: Names that module-level code binds. Imported with ``from module import name``, such
            a name is an attribute and not a submodule.
        binds_dynamically: Whether the module may have names that are not in ``bound``: it has a
            star import or a ``__getattr__``, or changes its own dictionary.
        exported: The literal ``__all__``; None if there is none or it is computed.
        failure: Parse error. All other fields are then empty.
        reads: Expressions that may read files next to the code.
        listings: Folders of code that the source lists and may import from.
        defined: Definitions, for comparison with the live module.
        is_clean: Whether a secret scan of the source found nothing.
    """

    imports: tuple[ImportStatement, ...] = ()
    unreadable: tuple[DynamicImport, ...] = ()
    broken_imports: tuple[BrokenImport, ...] = ()
    bound: frozenset[str] = field(default_factory=frozenset)
    binds_dynamically: bool = False
    exported: tuple[str, ...] | None = None
    failure: ScanFailure | None = None
    reads: tuple[FileRead, ...] = ()
    listings: tuple[FolderListing, ...] = ()
    defined: Definitions = field(default_factory=Definitions, compare=False)
    is_clean: bool = field(default=False, compare=False)
