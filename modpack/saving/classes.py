"""Reduction of classes that cannot be imported: made in functions or at run time.

Source alone cannot re-create such a class, because names in it refer to variables of a call that
has ended. The class is therefore saved in parts. Its functions are saved by their source like any
others. The generated functions of dataclasses and named tuples have no source; the input that they
are generated from is saved.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import inspect
import sys
import types
import typing
from typing import Any

from modpack.pickling.classes import (
    fill_class,
    make_class,
    make_named_tuple,
)
from modpack.saving.base import RefusedError
from modpack.saving.function_source import find_live_object, is_made_by_python


def _reduce_named_tuple(cls: Any, module: Any) -> tuple[Any, ...]:
    fields, defaults = cls._fields, dict(cls._field_defaults)
    # Compared with a new one: what both have is generated again at load.
    plain = vars(make_named_tuple(cls.__name__, cls.__qualname__, "", fields, defaults))
    attributes = {
        name: value
        for name, value in vars(cls).items()
        if name not in plain or (name == "__doc__" and value != plain[name])
    }
    attributes.update(_own_functions(cls, plain))
    arguments = (cls.__name__, cls.__qualname__, module, fields, defaults)
    return make_named_tuple, arguments, {"attributes": attributes}, None, None, fill_class


def _own_functions(cls: type, plain: Any) -> dict[str, Any]:
    """Return the functions that the class's author wrote in place of generated ones."""
    found = {}
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if name in plain and isinstance(function, types.FunctionType):
            if function.__module__ == cls.__module__ and not _is_generated(function):
                found[name] = value
    return found


def _is_generated(function: Any) -> bool:
    """Return whether a function was compiled from generated source."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    generators = (collections.__file__, dataclasses.__file__)
    return code is not None and (
        code.co_filename.startswith("<string>") or code.co_filename in generators
    )


_OPTIONS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")


_GENERATED = frozenset(
    {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"}
    | {"__lt__", "__le__", "__gt__", "__ge__"}
)


_FIELD_OPTIONS = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata")


def dataclass_parts(cls: type) -> tuple[dict[str, Any] | None, frozenset[str]]:
    """Return the input that a dataclass is generated from, and the attributes generated from it.

    Returns:
        Options and fields, or None if the class itself is not a dataclass.
    """
    if "__dataclass_params__" not in vars(cls):
        return None, frozenset()
    params = vars(cls)["__dataclass_params__"]
    options = {name: getattr(params, name) for name in _OPTIONS}
    options["match_args"] = "__match_args__" in vars(cls)
    own = vars(cls).get("__annotations__", {})
    fields = {
        name: _field_parts(field)
        for name, field in vars(cls)["__dataclass_fields__"].items()
        # Inherited fields come from the base classes again, and class variables are attributes.
        if name in own and field._field_type is not dataclasses._FIELD_CLASSVAR  # type: ignore[attr-defined]
    }
    generated = {
        name
        for name, value in vars(cls).items()
        if name in _GENERATED and isinstance(value, types.FunctionType) and _is_generated(value)
    }
    return {"options": options, "fields": fields}, frozenset(
        generated | {"__dataclass_params__", "__dataclass_fields__"}
    )


def has_generated_doc(cls: type) -> bool:
    """Return whether a dataclass's docstring is its generated signature."""
    try:
        signature = str(inspect.signature(cls)).replace(" -> None", "")
    except (TypeError, ValueError):  # as in dataclasses
        signature = ""
    return cls.__doc__ == cls.__name__ + signature


def _field_parts(field: Any) -> dict[str, Any]:
    parts = {name: getattr(field, name) for name in _FIELD_OPTIONS}
    parts["metadata"] = dict(field.metadata)
    parts["kw_only"] = field.kw_only
    return {name: value for name, value in parts.items() if value is not dataclasses.MISSING}


_CREATION_ATTRIBUTES = ("__slots__", "__doc__", "__orig_bases__")
"""Attributes that must exist when a class is created; the others are set afterwards."""


_CREATED_BY_PYTHON = frozenset(
    {"__dict__", "__weakref__", "__module__", "__qualname__", "__abstractmethods__", "_abc_impl"}
)


_CREATED_BY_TORCH = frozenset({"_backward_cls", "_compiled_autograd_backward_state"})
"""Attributes that the metaclass of autograd functions adds to each class."""


def is_dynamic(cls: type) -> bool:
    """Return whether a class that is not found under its name was made at run time.

    If the name leads to another object, the class comes from another version of its library. But
    a class may share the name of its own base, if a decorator derived it.
    """
    if "<locals>" in cls.__qualname__:
        return True
    found = find_live_object(cls.__module__, cls.__qualname__)
    return cls.__module__ in sys.modules and (found is None or found in type.mro(cls)[1:])


def reduce_class(cls: type, importable: types.ModuleType | None) -> tuple[Any, ...]:
    """Return a class's six-part reduction; see :meth:`object.__reduce__`.

    Args:
        cls: The class.
        importable: The importable module that it claims to be defined in, or None.

    Raises:
        RefusedError: If a class of this kind cannot be re-created.
    """
    module: Any = cls.__module__ if importable is None else importable
    is_enum = isinstance(cls, enum.EnumMeta)
    if is_enum or typing.is_typeddict(cls):
        # Python makes both from the body of their definition, which no longer exists.
        kind = "enum" if is_enum else "typed dictionary"
        raise RefusedError(
            f"the {kind} {cls.__qualname__} is not found under its name",
            hint="Define it at the top level of a module.",
        )
    if cls.__bases__ == (tuple,) and isinstance(vars(cls).get("_fields"), tuple):
        return _reduce_named_tuple(cls, module)
    if not _is_of_python(cls):
        raise RefusedError(f"{cls!r} is built in and is not found under its name")
    own = dict(vars(cls))
    at_once = {name: own.pop(name) for name in _CREATION_ATTRIBUTES if name in own}
    parts, replaced = dataclass_parts(cls)
    if parts is not None and has_generated_doc(cls):
        # `dataclass` writes it again at load.
        at_once.pop("__doc__", None)
    state = {
        "attributes": {
            n: v for n, v in own.items() if n not in replaced and not _is_created(cls, n, v)
        },
        "dataclass": parts,
    }
    arguments = (type(cls), cls.__name__, cls.__qualname__, module, cls.__bases__, at_once)
    return make_class, arguments, state, None, None, fill_class


def _is_of_python(cls: type) -> bool:
    """Return whether Python code created a class; classes created in C have no parts to save."""
    has_dict = any("__dict__" in vars(base) for base in type.mro(cls))
    return is_made_by_python(cls) and (has_dict or "__slots__" in vars(cls))


def _is_created(cls: type, name: str, value: Any) -> bool:
    """Return whether creating the class creates this attribute."""
    if name in _CREATED_BY_PYTHON or (
        name in _CREATED_BY_TORCH and "torch" in type(cls).__module__
    ):
        return True
    return isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls
