"""What a module's source says about imports, and what it defines, as values.

The scanner in :mod:`modpack.discovery` produces these; the walk turns them into graph edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import NamedTuple, TypeAlias

Literal: TypeAlias = "bool | int | float | str | list[str] | None"
"""A value as a source spells it: itself; in a list the text of one that JSON does not have; and
an empty list where the source alone does not tell."""

Row: TypeAlias = "tuple[int, str, Sequence[Literal], Mapping[str, Literal]]"
"""How one statement binds a name: its line, one of the kinds below, and what belongs to it.

``def`` and ``class``: the decorators, dotted; behind an empty name that of the function. ``is``:
the value. ``holds``: the value, a container that code may add to. ``call``: the dotted name of what
is called, then the arguments, those with names apart.
"""


class Rebinding(IntEnum):
    """When a module's own code sets a name anew that is defined already."""

    AT_IMPORT = 0
    """While it is imported."""
    RUNNING = 1
    """In functions that it calls itself, or in methods: state of its own."""
    ON_REQUEST = 2
    """In functions that others call for that: ``def set_flag(value): global FLAG; ...``."""


class Body(NamedTuple):
    """What a module, or a class in it, binds.

    Attributes:
        line: of a class statement; 0 for a module.
        decorators: its decorators, dotted; ``""`` for one that is no dotted name.
        functions: by name the line of each function that nothing decorates or binds again.
        values: by name the line and the literal that nothing binds again.
        others: by name, in order, all ways in which any other name is bound that can be read off.
        unread: the other names.
        conditional: the names that only statements in blocks bind: they may be absent.
    """

    line: int
    decorators: Sequence[str]
    functions: Mapping[str, int]
    values: Mapping[str, tuple[int, Literal]]
    others: Mapping[str, Sequence[Row]]
    unread: Sequence[str] = ()
    conditional: Sequence[str] = ()


class Initializer(NamedTuple):
    """What calling a class makes of its arguments, where that can be read off.

    Attributes:
        parameters: their names after ``self``, each with its default.
        attributes: by name the parameter that is kept in it, or its literal.
        changed: attributes that methods set later, and when.
    """

    parameters: Sequence[tuple[str, Literal]]
    attributes: Mapping[str, tuple[str, Literal]]
    changed: Mapping[str, int]


@dataclass(frozen=True)
class Definitions:
    """What one source defines.

    Attributes:
        bodies: by dotted path the bodies of classes; ``""`` is the module itself.
        settings: names that functions declare ``global`` and set, and, behind a dot, attributes
            of what is no local name: when that happens.
        setters: by function the names that it sets so, itself or by others that it calls; ``*``
            for names that it computes.
        called: the last names of what is called in statements of their own at module level.
        is_dynamic: whether module-level code sets names that the source does not spell.
        initializers: by class, where calling it only keeps arguments and literals.
    """

    bodies: Mapping[str, Body] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    setters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    called: Sequence[str] = ()
    is_dynamic: bool = False
    initializers: Mapping[str, Initializer] = field(default_factory=dict)

    def without_values(self) -> Definitions:
        """The same without any value, for a source whose texts must not be kept."""
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
    """How strongly a module depends on another: the evidence behind one edge."""

    REQUIRED = "required"
    """A statement at module level, or in a class body: runs when the module is imported."""
    FUNCTION = "function"
    """A statement inside a function: runs when, and if, the function is called."""
    GUARDED = "guarded"
    """The code copes with its absence (``try``/``except ImportError``, ``find_spec`` tests,
    branches on the Python version or the platform)."""
    TYPE_CHECKING = "type-checking"
    """Never runs: under ``if TYPE_CHECKING`` or ``if False``. Not a dependency."""
    DYNAMIC = "dynamic"
    """``importlib.import_module("a.b")`` or ``__import__("a.b")`` with a constant argument."""
    PARENT = "parent"
    """A package that contains an imported module: its ``__init__`` runs first."""
    PICKLE = "pickle"
    """A pickled object's class or function lives there."""
    SAVED = "saved"
    """The user saved it by name."""
    LOADED = "loaded"
    """It is loaded in the process that exports, below a package whose code imports by names
    that are known at run time only."""
    SELF_TEST = "self_test"
    """A self-test asked for it."""

    @property
    def is_dependency(self) -> bool:
        """Whether code of this kind can ever run."""
        return self is not ImportKind.TYPE_CHECKING

    @property
    def runs_at_once(self) -> bool:
        """Whether it runs, and must succeed, whenever the importing code is imported."""
        return self not in (
            ImportKind.FUNCTION,
            ImportKind.GUARDED,
            ImportKind.TYPE_CHECKING,
            ImportKind.DYNAMIC,
        )

    @property
    def may_be_absent(self) -> bool:
        """Whether the importing code copes with the module being absent."""
        return self in (ImportKind.GUARDED, ImportKind.TYPE_CHECKING)


@dataclass(frozen=True)
class ImportStatement:
    """One module that one place in a source asks for.

    Attributes:
        module: absolute name of the module (relative imports are already resolved).
        names: names taken from it by ``from module import a, b``; ``("*",)`` for a star
            import; empty for ``import module``. Each may be a submodule or an attribute.
        kind: how strongly the source depends on it.
        line: 1-based line in the source.
        is_optional: whether a condition around it tells what is there, such as a flag of a ``try``
            that imports: what is absent then is not needed.
        asked: names of other modules of the library (``lib.utils.has_x``) that the conditions
            around it ask: one of them may tell the same.
    """

    module: str
    names: tuple[str, ...]
    kind: ImportKind
    line: int
    is_optional: bool = False
    asked: tuple[str, ...] = ()


@dataclass(frozen=True)
class BrokenImport:
    """A relative import that leads beyond the top-level package: it fails wherever it runs.

    Attributes:
        statement: the statement as written, shortened to one line.
        line: 1-based line in the source.
    """

    statement: str
    line: int


@dataclass(frozen=True)
class DynamicImport:
    """A dynamic import whose argument is known at run time only.

    Attributes:
        call: the call as written, shortened to one line.
        line: 1-based line in the source.
        guarded: whether the code copes with its failure.
    """

    call: str
    line: int
    guarded: bool = False


class ReadKind(Enum):
    """How much of a path beside the code can be read off the source."""

    FILE = "file"
    """All of it."""
    FOLDER = "folder"
    """The folder; what is read in it is known at run time only."""
    NAME = "name"
    """A text that may name a file, in a module that knows where its own file is."""


@dataclass(frozen=True)
class FileRead:
    """A place in a source that may read a file beside the code.

    Attributes:
        kind: how much of the path is known.
        path: it, relative to the folder of the module, with ``/`` and ``..``; ``""`` is that
            folder itself.
        line: 1-based line in the source.
        module: the package or module whose folder is meant, where it is not the scanned one.
    """

    kind: ReadKind
    path: str
    line: int
    module: str | None = None


@dataclass(frozen=True)
class FolderListing:
    """A place in a source that lists a folder of code, in a module that imports by such names.

    Attributes:
        path: the folder, relative to that of the module, with ``/`` and ``..``.
        is_deep: whether the folders in it are listed as well.
        line: 1-based line in the source.
        module: the package or module whose folder is meant, where it is not the scanned one.
    """

    path: str
    is_deep: bool
    line: int
    module: str | None = None


@dataclass(frozen=True)
class ScanFailure:
    """Why a source could not be read as Python.

    Attributes:
        reason: the parser's message, in one line.
        line: 1-based line where it stopped, if known.
    """

    reason: str
    line: int | None = None


@dataclass(frozen=True)
class ModuleScan:
    """Everything that one pass over a source tells about its imports.

    Attributes:
        imports: every import in source order.
        unreadable: dynamic imports that cannot be read statically.
        astray: relative imports that cannot succeed, where the code does not cope with that.
        bound: names that module-level code binds (assignments, definitions, imports): such a
            name, taken with ``from module import name``, is an attribute and not a submodule.
        binds_unseen: whether it may have other names than ``bound``: it takes ``*`` from another
            module, has a ``__getattr__``, or changes its own dictionary.
        exported: the literal ``__all__``, or None if there is none or it is computed.
        failure: set if the source does not parse; all else is then empty.
        reads: places that may read files beside the code.
        listings: folders of code whose modules are imported by names that are listed.
        defined: what it defines, to be compared with the module that runs.
        is_clean: whether it is known that nothing in the source looks like a secret.
    """

    imports: tuple[ImportStatement, ...] = ()
    unreadable: tuple[DynamicImport, ...] = ()
    astray: tuple[BrokenImport, ...] = ()
    bound: frozenset[str] = field(default_factory=frozenset)
    binds_unseen: bool = False
    exported: tuple[str, ...] | None = None
    failure: ScanFailure | None = None
    reads: tuple[FileRead, ...] = ()
    listings: tuple[FolderListing, ...] = ()
    defined: Definitions = field(default_factory=Definitions, compare=False)
    is_clean: bool = field(default=False, compare=False)
