"""Classes that cannot be imported: made in functions, or on the spot.

Such a class is taken apart, for its text alone would not do: names in it stood for variables
of a call that is over. Its functions travel by their source like any other, and the class is
made again in two steps, so that it may refer to itself: first an empty one, by its metaclass,
then what stands in it.
"""

from __future__ import annotations

import abc
import sys
import types
from typing import Any

from modpack.pickling.generated import (
    dataclass_parts,
    has_generated_doc,
    make_dataclass_again,
    reduce_generated,
)
from modpack.pickling.rebuild import named_in_packages
from modpack.pickling.rows import RefusedError
from modpack.pickling.surroundings import live_object

__all__ = ["fill_class", "is_dynamic", "make_class", "parts_of_class"]

_AT_ONCE = ("__slots__", "__doc__", "__orig_bases__")
"""What has to stand in a class when it is made; the rest is filled in."""

_MADE_AGAIN = frozenset(
    {"__dict__", "__weakref__", "__module__", "__qualname__", "__abstractmethods__", "_abc_impl"}
)
_MADE_BY_TORCH = frozenset({"_backward_cls", "_compiled_autograd_backward_state"})
"""What the metaclass of autograd functions puts into each class."""


def is_dynamic(cls: type) -> bool:
    """Whether a class that is not found under its name was made on the spot.

    One of another version of its library was not: its name leads to something else. But a class
    may have the name of its own base, from which something derived it.
    """
    if "<locals>" in cls.__qualname__:
        return True
    found = live_object(cls.__module__, cls.__qualname__)
    return cls.__module__ in sys.modules and (found is None or found in type.mro(cls)[1:])


def parts_of_class(cls: type, home: types.ModuleType | None) -> tuple[Any, ...]:
    """What pickle needs to make a class again (the six-part form of ``__reduce__``).

    Args:
        cls: the class.
        home: the importable module that it says it lives in; None if there is none.

    Raises:
        RefusedError: it is of a kind that cannot be made again.
    """
    module: Any = cls.__module__ if home is None else home
    generated = reduce_generated(cls, module)
    if generated is not None:
        function, arguments, attributes = generated
        return function, arguments, {"attributes": attributes}, None, None, fill_class
    if not _is_of_python(cls):
        raise RefusedError(f"{cls!r} is built in and not found under its name")
    own = dict(vars(cls))
    at_once = {name: own.pop(name) for name in _AT_ONCE if name in own}
    parts, replaced = dataclass_parts(cls)
    if parts is not None and has_generated_doc(cls):
        at_once.pop("__doc__", None)
    state = {
        "attributes": {n: v for n, v in own.items() if n not in replaced and not _made(cls, n, v)},
        "dataclass": parts,
    }
    arguments = (type(cls), cls.__name__, cls.__qualname__, module, cls.__bases__, at_once)
    return make_class, arguments, state, None, None, fill_class


def _is_of_python(cls: type) -> bool:
    """Whether a class was made by Python code; those made in C cannot be taken apart."""
    has_dict = any("__dict__" in vars(base) for base in type.mro(cls))
    return bool(cls.__flags__ & _IS_ON_THE_HEAP) and (has_dict or "__slots__" in vars(cls))


_IS_ON_THE_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _made(cls: type, name: str, value: Any) -> bool:
    """Whether making the class puts an attribute there."""
    if name in _MADE_AGAIN or (name in _MADE_BY_TORCH and "torch" in type(cls).__module__):
        return True
    return isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls


@named_in_packages
def make_class(
    kind: Any, name: str, qualname: str, module: Any, bases: tuple[type, ...], at_once: Any
) -> type:
    """Make a class with nothing in it yet.

    Args:
        kind: its metaclass.
        name: its ``__name__``.
        qualname: its ``__qualname__``.
        module: the module that it says it lives in, or that module's path.
        bases: its bases.
        at_once: what has to stand in it when it is made, such as ``__slots__``.
    """
    path = module.__name__ if isinstance(module, types.ModuleType) else module
    namespace = {**at_once, "__module__": path, "__qualname__": qualname}
    return types.new_class(name, bases, {"metaclass": kind}, lambda body: body.update(namespace))


@named_in_packages
def fill_class(cls: type, state: dict[str, Any]) -> None:
    """Fill in what stands in a class; see :func:`make_class`."""
    for name, value in state["attributes"].items():
        type.__setattr__(cls, name, value)
    if state.get("dataclass") is not None:
        make_dataclass_again(cls, state["dataclass"])
    if isinstance(cls, abc.ABCMeta):
        abc.update_abstractmethods(cls)  # type: ignore[arg-type]
