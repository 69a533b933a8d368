"""Terms of pickling: rows for special types, script definitions, protocols, and problems.

Plain pickle refuses some objects, and gets others wrong without a word. A row says how to reduce
objects of such a type where there is one right meaning, or why there is none and what to do.

A package holds a module with the definitions of a script. Values that the script computed, and
that the definitions use, are a part of the pickle: they are set in that module before a class
or function is taken from it, so what the script shared stays shared.
"""

from __future__ import annotations

import abc
import pickle
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from modpack.errors import ModpackError, ObjMismatchError, ObjNotFoundError, PicklingError
from modpack.pickling.object_paths import paths_to
from modpack.pickling.rebuild import named_in_packages

if TYPE_CHECKING:
    import torch

    from modpack.pickling.graph_context import ObjectGraph

LEAVE_OUT = (
    "let the object that holds it leave it out (__getstate__) and make it anew when it is used"
)
"""What can be done about any object that cannot be saved."""

Kind = type | str
"""A type, or the dotted path of one that need not be imported to be known."""


class RefusedError(ModpackError):
    """An object has no meaning outside of this process."""


@dataclass(frozen=True)
class Packaged:
    """Stands for ``function(package, *arguments)``, which is called while a package is loaded."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class ReducerRow:
    """A kind of object that has one right meaning elsewhere; docs/reference/objects.md tells which.

    Attributes:
        kinds: their types.
        reduce: its reduction (see :meth:`object.__reduce__`), or a :class:`Packaged`, or None
            to leave it to pickle; may raise :class:`RefusedError`.
        subclasses: whether derived types are reduced alike, unless they have a reduction of
            their own.
        by_name: whether one that a module holds under a name is saved by that name.
    """

    kinds: tuple[Kind, ...]
    reduce: Callable[[Any, ObjectGraph], Any] | None = None
    subclasses: bool = False
    by_name: bool = False


@dataclass(frozen=True)
class UnsupportedType:
    """A kind of object that means nothing elsewhere.

    Attributes:
        what: what users call one, with an article.
        kinds: their types; those derived from them are refused as well.
        why: why it cannot be saved.
        remedy: what to do instead.
        by_name: whether one that a module holds under a name is saved by that name.
        mixin: whether derived types are refused even if they have a reduction of their own, since
            that comes from a class that knows nothing of this one.
    """

    what: str
    kinds: tuple[Kind, ...]
    why: str
    remedy: str
    by_name: bool = True
    mixin: bool = False


Row = ReducerRow | UnsupportedType


class ReducerTable:
    """Finds the row of a type."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_kind: dict[Kind, Row] = {kind: row for row in rows for kind in row.kinds}
        self._abstract: list[tuple[type, Row]] = [
            (kind, row) for kind, row in self._by_kind.items() if isinstance(kind, abc.ABCMeta)
        ]

    def of(self, kind: type) -> Row | None:
        """The row of a type: its own, or one of a base that holds for derived types as well."""
        for base in type.mro(kind):
            dotted = f"{base.__module__}.{base.__qualname__}"
            row = self._by_kind.get(base) or self._by_kind.get(dotted)
            if row is not None and (base is kind or _holds_for(row, kind, base)):
                return row
        # An abstract class says of itself what is derived from it.
        return next((row for base, row in self._abstract if issubclass(kind, base)), None)


def _holds_for(row: Row, kind: type, base: type) -> bool:
    if isinstance(row, ReducerRow) and not row.subclasses:
        return False
    if isinstance(row, UnsupportedType) and row.mixin:
        return True
    return all(
        getattr(kind, name, None) is getattr(base, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


SCRIPT_MARK = "__modpack_script__"
"""The name by which a module of definitions says which script they are from."""

FILLED = "__modpack_filled__"
"""The name under which such a module keeps what was set in it: attribute paths."""


@dataclass(frozen=True, eq=False)
class Filling:
    """A value to be set in a module of definitions.

    Attributes:
        path: where: a name, or the path of an attribute of a class or function.
        value: the value.
    """

    path: tuple[str, ...]
    value: Any


class ScriptSource(Protocol):
    """A script whose definitions are taken along."""

    @property
    def module(self) -> str:
        """The path of the module in the package that holds them."""

    def holds(self, name: str, obj: object) -> bool:
        """Whether an object is what the script binds to a name at its top level."""

    def require_current(self, name: str, obj: object) -> None:
        """Refuse a class that the script has defined anew since (ObjMismatchError)."""

    def take(self, name: str) -> Sequence[Filling] | None:
        """Take a definition, and all that it needs.

        Args:
            name: the name in the script; may be dotted.

        Returns:
            The values that it needs; None if it cannot be taken, which was noted.
        """

    def take_all(self, names: Sequence[str]) -> Sequence[Filling]:
        """Take what a function of the script uses that is not itself a definition."""


def is_of_script(namespace: dict[str, Any]) -> bool:
    """Whether globals are those of a module of definitions."""
    return SCRIPT_MARK in namespace


def fillings_of(namespace: dict[str, Any]) -> list[Filling]:
    """What was set in a module of definitions, as it is now: to save it again."""
    found = []
    for path in namespace.get(FILLED, ()):
        owner, last = _owner(namespace, path), path[-1]
        held = owner if isinstance(owner, dict) else vars(owner)
        found.append(Filling(path, held[last] if last in held else getattr(owner, last)))
    return found


@named_in_packages
def defined(module: ModuleType, name: str, *filled: None) -> Any:
    """A class, function or other object of a module of definitions.

    Args:
        module: the module.
        name: the name in it; may be dotted.
        *filled: nothing; but what was set in the module before.
    """
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


@named_in_packages
def script_module(module: ModuleType, *filled: None) -> ModuleType:
    """The module of definitions itself, for functions that use its globals; see :func:`defined`."""
    return module


@named_in_packages
def set_in_script(module: ModuleType, path: tuple[str, ...], value: Any) -> None:
    """Set a value in a module of definitions.

    Args:
        module: the module.
        path: where; see :class:`Filling`.
        value: the value.
    """
    if not is_of_script(vars(module)):
        raise ValueError(f"{module.__name__} is no module of definitions")
    owner = _owner(vars(module), path)
    if isinstance(owner, dict):
        owner[path[0]] = value
    else:
        setattr(owner, path[-1], value)
    vars(module).setdefault(FILLED, {})[path] = None


def _owner(namespace: dict[str, Any], path: tuple[str, ...]) -> Any:
    """What holds the last name of a path: the module's globals, a class, or a function."""
    owner: Any = namespace
    for part in path[:-1]:
        owner = owner[part] if isinstance(owner, dict) else vars(owner)[part]
        owner = owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner
    return owner


@dataclass(frozen=True)
class GlobalReference:
    """A class, function or constant that a pickle names.

    Attributes:
        module: the module path that the pickle names.
        name: the attribute path in that module.
        live_module: the module path under which it lives in this process; differs from
            ``module`` if it was loaded from a package.
    """

    module: str
    name: str
    live_module: str


class PickleContext(Protocol):
    """What the saving side provides while an object is pickled."""

    def resolve(self, obj: object, name: str) -> GlobalReference:
        """Tell how a class or function is named; raises if it cannot be found again."""

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Store a storage's bytes, once, and return its key."""

    def add_attachment(self, data: bytes) -> str:
        """Store bytes that torch serialized itself, and return the record's name."""

    def next_reduce_id(self) -> int:
        """A number for the next object that packages itself."""

    def module_name(self, module: ModuleType) -> str:
        """The module path by which a live module is imported after loading."""

    def home_of(self, function: FunctionType) -> ModuleType | None:
        """The importable module whose globals a function uses; None for ``__main__``."""

    def is_importable(self, function: FunctionType) -> bool:
        """Whether a function can be named, so that its source need not travel."""

    def script(self, module: str) -> ScriptSource | None:
        """A script whose definitions are taken along; None for a module that is only named."""

    @property
    def exporter(self) -> object:
        """What ``__reduce_package__`` is called with."""


class Observer(Protocol):
    """Sees what the pickler meets, and may change what is written of it."""

    def reducer(self, kind: type) -> Callable[[Any, Any], Any] | None:
        """For a type: what turns (object, its own reduction) into the one to write, or None.

        The second argument makes the object's own reduction when it is called.
        """

    def stand_in(self, kind: type) -> Callable[[Any], tuple[Any, ...] | None] | None:
        """For a type: what tells of an object how to make another in its place, or None.

        The place is taken by ``function(package, *arguments)`` for ``(function, arguments)``;
        for None the object itself is pickled.
        """

    def packaged(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """See an object that packages itself (``__reduce_package__``).

        Args:
            obj: the object.
            parts: its own reduction: a function and its arguments.

        Returns:
            The one to write.
        """

    def whereabouts(self, obj: object) -> tuple[str, str] | None:
        """Where an object hangs that could not be pickled, and what else can be done about it.

        None to search the saved object.
        """

    @property
    def has_payload(self) -> bool:
        """Whether there is something to pickle after the object, whatever that holds."""

    def next_payload(self) -> object | None:
        """What else to pickle after the object itself; None when there is nothing more."""


@dataclass(frozen=True)
class PicklingProblem:
    """Something that cannot be saved.

    Attributes:
        obj: the object.
        failure: what was raised.
        place: where it hangs, and what else can be done, if that is known already.
    """

    obj: object
    failure: Exception
    place: tuple[str, str] | None = None


class UnnamedObjectError(PicklingError, ObjNotFoundError):
    """A class or function in a saved object is not found under its name."""


class MisnamedObjectError(PicklingError, ObjMismatchError):
    """The name of a class or function in a saved object leads to another one."""


def problems_as_error(
    problems: Sequence[PicklingProblem],
    resource: str,
    root: object,
    name: str,
    globals_along: Sequence[tuple[str, object]] = (),
) -> PicklingError:
    """The error that tells of all problems, of the kind of the first.

    Args:
        problems: one or more.
        resource: what was being saved.
        root: the saved object.
        name: what to call it in paths.
        globals_along: values of scripts that come along, each with its name.
    """
    searched = [problem.obj for problem in problems if problem.place is None]
    paths = paths_to(root, searched, name)
    for label, value in globals_along:
        missing = [obj for obj in searched if id(obj) not in paths]
        paths = {**paths_to(value, missing, label), **paths} if missing else paths
    told: dict[tuple[str | None, str], None] = {}
    for problem in problems:
        path = problem.place[0] if problem.place else paths.get(id(problem.obj))
        told[path, _reason(problem)] = None
    (path, reason), *_ = told
    kind, failure = PicklingError, problems[0].failure
    if isinstance(failure, ObjMismatchError):
        kind = MisnamedObjectError
    elif isinstance(failure, ObjNotFoundError):
        kind = UnnamedObjectError
    return kind(resource, reason, path, tuple(told))


_EXPECTED = (ModpackError, pickle.PicklingError, TypeError, AttributeError, NotImplementedError)


def _reason(problem: PicklingProblem) -> str:
    failure, elsewhere = problem.failure, problem.place[1] if problem.place else ""
    if not isinstance(failure, _EXPECTED):
        raised = traceback.extract_tb(failure.__traceback__)[-1]
        place = f"raised at {raised.filename}:{raised.lineno}"
        return f"{type(failure).__name__}: {failure} ({place})"
    reason = str(failure) or type(failure).__name__
    if "Remedy: " in reason:
        return f"{reason}, or {elsewhere}" if elsewhere else reason
    remedy = LEAVE_OUT
    if isinstance(failure, ModpackError) and problem.place is None:
        remedy = ""  # the error says all that is known
    elif isinstance(problem.obj, type):
        remedy = "define the class at the top level of a module"
    remedies = ", or ".join(each for each in (remedy, elsewhere) if each)
    return f"{reason}. Remedy: {remedies}" if remedies else reason
