"""Re-creation of classes that cannot be imported: made in functions or at run time.

Loading takes two steps, so that the class may refer to itself: its metaclass creates an empty
class, then the attributes are set. The functions of dataclasses and named tuples are
generated again.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import types
from typing import Any

from modpack.pickling.rebuild import named_in_packages


@named_in_packages
def make_named_tuple(
    name: str, qualname: str, module: Any, fields: tuple[str, ...], defaults: dict[str, Any]
) -> type:
    """Create a named tuple class.

    Args:
        name: Its ``__name__``.
        qualname: Its ``__qualname__``.
        module: The module that it claims to be defined in, or that module's path.
        fields: The field names.
        defaults: The defaults of the last fields.
    """
    last = [defaults[field] for field in fields if field in defaults]
    made = collections.namedtuple(name, fields, defaults=last, module=_path(module))  # type: ignore[misc]
    made.__qualname__ = qualname
    return made


def _path(module: Any) -> str:
    return module.__name__ if isinstance(module, types.ModuleType) else str(module)


def regenerate_dataclass(cls: type, parts: dict[str, Any]) -> None:
    """Generate again what :func:`dataclasses.dataclass` generated.

    Raises:
        ValueError: If a field's name is not an identifier. :mod:`dataclasses` inserts the names
            into source that it executes.
    """
    for name in (*parts["fields"], *vars(cls).get("__annotations__", ())):
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"{name!r} is not a valid field name for {cls.__qualname__}")
    slots = {n: v for n, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType)}
    for name, options in parts["fields"].items():
        type.__setattr__(cls, name, dataclasses.field(**options))
    dataclasses.dataclass(cls, **parts["options"])
    # A field and its slot share one attribute, and `dataclass` removes or replaces it.
    for name, slot in slots.items():
        type.__setattr__(cls, name, slot)


@named_in_packages
def make_class(
    kind: Any, name: str, qualname: str, module: Any, bases: tuple[type, ...], at_once: Any
) -> type:
    """Create an empty class.

    Args:
        kind: Its metaclass.
        name: Its ``__name__``.
        qualname: Its ``__qualname__``.
        module: The module that it claims to be defined in, or that module's path.
        bases: Its bases.
        at_once: Attributes that must exist at creation, such as ``__slots__``.
    """
    namespace = {**at_once, "__module__": _path(module), "__qualname__": qualname}
    return types.new_class(name, bases, {"metaclass": kind}, lambda body: body.update(namespace))


@named_in_packages
def fill_class(cls: type, state: dict[str, Any]) -> None:
    """Set a class's attributes; see :func:`make_class`."""
    # A metaclass may define `__setattr__`, which is code of the package or rejects names.
    for name, value in state["attributes"].items():
        type.__setattr__(cls, name, value)
    # After the attributes: `dataclass` reads annotations and keeps methods that are defined.
    if state.get("dataclass") is not None:
        regenerate_dataclass(cls, state["dataclass"])
    if isinstance(cls, abc.ABCMeta):  # the empty class had no methods to find
        abc.update_abstractmethods(cls)  # type: ignore[arg-type]
