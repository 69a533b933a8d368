"""Shared definitions: reducer rows, values of script definitions, protocols, and problems.

Plain pickle rejects some objects and silently breaks others. A row for a type either says how to
reduce its objects, where that has one right meaning, or why they cannot be saved and what to do.
"""

from __future__ import annotations

import abc
import pickle
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from modpack.errors import (
    ModpackError,
    ObjMismatchError,
    ObjNotFoundError,
    PicklingError,
    with_hint,
)
from modpack.pickling.scripts import FILLED, owner_of
from modpack.saving.object_paths import paths_to

if TYPE_CHECKING:
    import torch

    from modpack.saving.graph_context import ObjectGraph

LEAVE_OUT = "Exclude it from its owner's state (__getstate__), and re-create it on first use."
"""The hint for any object that cannot be saved."""

Kind = type | str
"""A type, or its dotted path if modpack need not import it to recognize it."""


class RefusedError(ModpackError):
    """An object has no meaning outside this process."""


@dataclass(frozen=True)
class Packaged:
    """A call ``function(package, *arguments)`` that the loader makes in place of an object."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class ReducerRow(NamedTuple):
    """How to reduce objects of a type; docs/reference/objects.md lists the results.

    Attributes:
        kinds: The types.
        reduce: Returns the reduction (see :meth:`object.__reduce__`) or a :class:`Packaged`.
            May raise :class:`RefusedError`. None leaves the object to pickle.
        subclasses: Whether the row applies to derived types that have no reduction of their own.
        by_name: Whether an object that is a module attribute is saved by its name.
    """

    kinds: tuple[Kind, ...]
    reduce: Callable[[Any, ObjectGraph], Any] | None = None
    subclasses: bool = False
    by_name: bool = False


class UnsupportedType(NamedTuple):
    """A type whose objects cannot be saved.

    Attributes:
        what: The user's name for such an object, with an article.
        kinds: The types. Types derived from them are rejected too.
        why: The reason, as a clause.
        hint: How to fix it, in complete sentences.
        by_name: Whether an object that is a module attribute is saved by its name.
        mixin: Whether derived types are rejected even if they have a reduction of their own. That
            reduction comes from a class that does not know this one.
    """

    what: str
    kinds: tuple[Kind, ...]
    why: str
    hint: str
    by_name: bool = True
    mixin: bool = False


Row = ReducerRow | UnsupportedType


class ReducerTable:
    """Reducer rows, indexed by type."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_kind: dict[Kind, Row] = {kind: row for row in rows for kind in row.kinds}
        self._abstract: list[tuple[type, Row]] = [
            (kind, row) for kind, row in self._by_kind.items() if isinstance(kind, abc.ABCMeta)
        ]

    def find(self, kind: type) -> Row | None:
        """Return a type's row: its own, or that of a base class that covers derived types."""
        # Not `kind.mro`, which a metaclass may override.
        for base in type.mro(kind):
            dotted = f"{base.__module__}.{base.__qualname__}"
            row = self._by_kind.get(base) or self._by_kind.get(dotted)
            if row is not None and (base is kind or _covers_derived(row, kind, base)):
                return row
        # Abstract classes decide through __subclasshook__ and register() what is derived from them.
        return next((row for base, row in self._abstract if issubclass(kind, base)), None)


def _covers_derived(row: Row, kind: type, base: type) -> bool:
    if isinstance(row, ReducerRow) and not row.subclasses:
        return False
    if isinstance(row, UnsupportedType) and row.mixin:
        return True
    own = getattr(base, "__reduce_ex__", None)
    if own is not object.__reduce_ex__:  # it alone decides
        return getattr(kind, "__reduce_ex__", None) is own
    return all(
        getattr(kind, name, None) is getattr(base, name, None)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


@dataclass(frozen=True, eq=False)
class Filling:
    """A value to set in a module of script definitions.

    Attributes:
        path: A name, or the attribute path of a class or function.
        value: The value.
    """

    path: tuple[str, ...]
    value: Any


class ScriptSource(Protocol):
    """A script whose definitions are packaged."""

    @property
    def module(self) -> str:
        """Path of the packaged module with the definitions."""

    def holds(self, name: str, obj: object) -> bool:
        """Return whether the script binds this object to a name at its top level."""

    def require_current(self, name: str, obj: object) -> None:
        """Raise ObjMismatchError if the script has redefined the class since."""

    def take(self, name: str) -> Sequence[Filling] | None:
        """Package a definition and everything that it needs.

        Args:
            name: The name in the script, possibly dotted.

        Returns:
            The values that it needs, or None if the definition cannot be packaged. The reason
            is recorded.
        """

    def take_all(self, names: Sequence[str]) -> Sequence[Filling]:
        """Package what a script's function uses if the function itself is not a definition."""


def collect_fillings(namespace: dict[str, Any]) -> list[Filling]:
    """Return the values that were set in a module of script definitions, to save them again."""
    found = []
    for path in namespace.get(FILLED, ()):
        owner, last = owner_of(namespace, path), path[-1]
        held = owner if isinstance(owner, dict) else vars(owner)
        found.append(Filling(path, held[last] if last in held else getattr(owner, last)))
    return found


class GlobalReference(NamedTuple):
    """A class, function, or constant that a pickle names.

    Attributes:
        module: Module path in the pickle.
        name: Attribute path in that module.
        live_module: Module path in this process. It differs from ``module`` if the module was
            loaded from a package.
    """

    module: str
    name: str
    live_module: str


class PickleContext(Protocol):
    """The exporter's services while an object is pickled."""

    def resolve(self, obj: object, name: str) -> GlobalReference:
        """Return a class's or function's reference; raise if no importer finds it by name."""

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Store a storage's bytes, unless they are stored already, and return its key."""

    def add_attachment(self, data: bytes) -> str:
        """Store bytes that torch serialized, and return the record's name."""

    def next_reduce_id(self) -> int:
        """Return a number for the next object with a ``__reduce_package__``."""

    def module_name(self, module: ModuleType) -> str:
        """Return the module path by which the loader imports a live module."""

    def is_importable(self, function: FunctionType) -> bool:
        """Return whether a function can be saved by name, without its source."""

    def script(self, module: str) -> ScriptSource | None:
        """Return the script with this module name, or None if it is not a packaged script."""

    def script_additions(self, kind: type) -> Sequence[Filling]:
        """Return what scripts have set on a class of another packaged module."""

    @property
    def exporter(self) -> object:
        """The argument for ``__reduce_package__``."""


class Observer(Protocol):
    """Receives the objects that the pickler visits, and may replace what is written for them."""

    def reducer(self, kind: type) -> Callable[[Any, Any], Any] | None:
        """Return a function that turns (object, own reduction) of a type into the one to write.

        Its second argument is a callable that computes the object's own reduction. None leaves
        the type alone.
        """

    def on_packaged(self, obj: object, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Receive an object with a ``__reduce_package__``, and return the reduction to write.

        Args:
            obj: The object.
            parts: Its own reduction: a function and its arguments.
        """

    def locate(self, obj: object) -> tuple[str, str] | None:
        """Return the path of an object that could not be pickled, and an additional hint.

        None makes the pickler search the saved object.
        """

    @property
    def has_payload(self) -> bool:
        """Whether another object is to be pickled, whatever the first one contains."""

    def next_payload(self) -> object | None:
        """Return the next additional object to pickle, or None after the last."""


class PicklingProblem(NamedTuple):
    """An object that cannot be saved.

    Attributes:
        obj: The object.
        failure: The exception that was raised.
        location: Its path and an additional hint, if the observer knows them.
    """

    obj: object
    failure: Exception
    location: tuple[str, str] | None = None


class UnnamedObjectError(PicklingError, ObjNotFoundError):
    """No importer finds a class or function of a saved object under its name."""


class MisnamedObjectError(PicklingError, ObjMismatchError):
    """The name of a saved object's class or function leads to a different one."""


def problems_as_error(
    problems: Sequence[PicklingProblem],
    resource: str,
    root: object,
    name: str,
    script_values: Sequence[tuple[str, object]] = (),
) -> PicklingError:
    """Return an error that lists all problems; its class is that of the first problem.

    Args:
        problems: One or more problems.
        resource: The resource being saved.
        root: The saved object.
        name: The saved object's name in paths.
        script_values: Packaged values of scripts, each with its name.
    """
    searched = [problem.obj for problem in problems if problem.location is None]
    paths = paths_to(root, searched, name)
    for label, value in script_values:
        # Paths in the saved object come first. Values of scripts are searched for the rest only.
        missing = [obj for obj in searched if id(obj) not in paths]
        paths = {**paths_to(value, missing, label), **paths} if missing else paths
    listed: dict[tuple[str | None, str], None] = {}
    for problem in problems:
        path = problem.location[0] if problem.location else paths.get(id(problem.obj))
        listed[path, _reason(problem)] = None
    kind, failure = PicklingError, problems[0].failure
    if isinstance(failure, ObjMismatchError):
        kind = MisnamedObjectError
    elif isinstance(failure, ObjNotFoundError):
        kind = UnnamedObjectError
    return kind(resource, tuple(listed))


_EXPECTED = (ModpackError, pickle.PicklingError, TypeError, AttributeError, NotImplementedError)


def _reason(problem: PicklingProblem) -> str:
    failure, location_hint = problem.failure, problem.location[1] if problem.location else ""
    if not isinstance(failure, _EXPECTED):
        # Code of the object raised it, so its place helps more than a hint.
        raised = traceback.extract_tb(failure.__traceback__)[-1]
        location = f"raised at {raised.filename}:{raised.lineno}"
        return f"{type(failure).__name__}: {failure} ({location})"
    hint = LEAVE_OUT
    if isinstance(failure, ModpackError) and (failure.hint or problem.location is None):
        hint = ""  # the text of the error is complete
    elif isinstance(problem.obj, type):
        hint = "Define the class at the top level of a module."
    hints = " ".join(each for each in (hint, location_hint) if each)
    return with_hint(str(failure) or type(failure).__name__, hints)
