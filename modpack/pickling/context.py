"""What pickling asks of those who use it, and what it tells them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Protocol

import torch

from modpack.pickling.definitions import ScriptSource

__all__ = ["Observer", "PickleContext", "Reference"]


@dataclass(frozen=True)
class Reference:
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

    def resolve(self, obj: object, name: str) -> Reference:
        """Tell how a class or function is named; raises if it cannot be found again."""

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        """Store a storage's bytes, once, and return its key."""

    def add_attachment(self, data: bytes) -> str:
        """Store bytes that torch serialised itself, and return the record's name."""

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
