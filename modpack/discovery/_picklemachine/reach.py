"""Values that lead further when somebody else calls them later.

The calls that a pickle makes itself are followed. But an object may be given a function to call,
and be made to call it while the pickle is still being loaded: as its ``__setstate__``, as the
``keys`` of what is made a dictionary, ... With which arguments, nobody can tell. So functions that
reach anything with the right arguments must not be given to anybody.
"""

from __future__ import annotations

from typing import Final

from modpack.core.knownmethods import is_harmless_method
from modpack.core.knownnames import (
    is_known,
    is_method_of_value,
    is_standard,
    special_attribute,
)
from modpack.discovery._picklemachine.makers import REMADE
from modpack.discovery._picklemachine.values import Made, Named, Recorder, Value
from modpack.discovery.pickledvalues import FlawKind, NameUse

__all__ = ["give", "give_method", "is_attribute_harmless", "put", "require_callable"]

_ONLY_CALLED: Final = frozenset(
    {("builtins", "getattr"), ("modpack.hooks.parametrized", "fill_parametrized")}
    | {("functools", "update_wrapper"), ("functools", "wraps")}
    | {(module, name) for module in ("operator", "_operator") for name in ("attrgetter",)}
    | {(module, name) for module in ("operator", "_operator") for name in ("methodcaller",)}
    | {("modpack.pickling.definitions", name) for name in ("defined", "set_in_script")}
    | {("modpack.pickling.functions", name) for name in ("make_function", "fill_function")}
    | {("modpack.pickling.classes", name) for name in ("make_class", "fill_class")}
    | {(REMADE, name) for name in ("operator_of", "set_state", "fill_cell", "registered_handler")}
    | {("torch.fx.graph_module", "reduce_graph_module"), ("torch._utils", "_set_obj_state")}
    | {("torch", "_TorchCompileInductorWrapper"), ("torch._dynamo.eval_frame", "OptimizedModule")}
)
_FOR_PACKAGES: Final = frozenset(
    {(REMADE, "exported_program"), ("modpack.pickling.torchscript", "load_script_module")}
    | {("torch.fx.graph_module", "reduce_package_graph_module")}
    | {("torch.jit._script", "unpackage_script_module")}
)
"""They read the package that they are given; a pickle must leave that to the unpickler."""
_ADDERS: Final = frozenset({"append", "extend", "add"})
"""Methods of whatever it is that items are added to."""
_TARGET: Final = "target"
"""Where the nodes of graphs hold what they call."""
_DATA: Final = frozenset(
    {"__annotations__", "__doc__", "__match_args__", "__module__", "__name__", "__orig_bases__"}
    | {"__orig_class__", "__parameters__", "__qualname__", "__signature__", "__slots__"}
    | {"__constants__", "__type_params__", "__wrapped__", "__dataclass_fields__", "__origin__"}
    | {"__args__", "__bound__", "__constraints__", "__default__", "__supertype__", "__version__"}
    | {"__required_keys__", "__optional_keys__", "__readonly_keys__", "__mutable_keys__"}
)
"""Attributes with such names that nobody calls."""
_OF_CONTAINERS: Final = frozenset({"copy", "pop", "remove", "replace"})
_TEXTS: Final = frozenset({("builtins", "str"), ("torch.torch_version", "TorchVersion")})
_WRAPPERS: Final = frozenset(
    {("builtins", name) for name in ("property", "staticmethod", "classmethod")}
    | {(module, name) for module in ("functools", "_functools") for name in ("partial",)}
    | {("functools", "partialmethod"), ("types", "MethodType"), (REMADE, "property_of")}
    | {(REMADE, "lru_cached"), ("modpack.pickling.functions", "make_method")}
)
"""What they make calls what they are given."""
_HARMLESS: Final = frozenset(
    {("modpack.pickling.functions", "make_function"), (REMADE, "fresh_rlock")}
    | {("modpack.pickling.classes", "make_class"), ("modpack.pickling.generated", "make_enum")}
    | {("modpack.pickling.generated", "make_named_tuple")}
)
"""What they make is told of elsewhere, or does nothing."""


def give(to: Recorder, values: list[Value]) -> None:
    """Follow how values become a part of something, where somebody may find and call them.

    Args:
        to: is told what is wrong with it.
        values: the parts.
    """
    package = bool(values) and values[0] == "reduce_package"
    for at, each in enumerate(values):
        if each.__class__ is Named:
            key = (each.module, each.name)
            if key in _ONLY_CALLED or (
                key in _FOR_PACKAGES and not (package and at == len(values) - 2)
            ):
                to.flaw(FlawKind.CALLS, f"it gives {each} away, which reaches whatever it is told")


def put(to: Recorder, values: list[Value]) -> None:
    """Follow how keys get values: those of dictionaries, which may become attributes.

    Args:
        to: is told what is wrong with it.
        values: keys and values in turn.
    """
    for key, value in zip(values[::2], values[1::2], strict=False):
        if value.__class__ is Named or value.__class__ is Made:
            if key != _TARGET:
                give(to, [value])
            if key.__class__ is str:
                if key in _ADDERS:
                    to.sets_adder()
                if key.startswith("__") and key.endswith("__") and key not in _DATA:
                    require_callable(to, value, f"as {key}")
            elif isinstance(key, Made) and (key.by.module, key.by.name) in _TEXTS:
                text = f"it sets {value}, under a name that is made while it runs"
                to.flaw(FlawKind.UNRESOLVED, text)


def require_callable(to: Recorder, value: Value, use: str) -> None:
    """Follow what may be called on the way, with arguments that nobody knows.

    Args:
        to: is told what is wrong with it.
        value: a function, or something that wraps one.
        use: what it is used as, to be told.
    """
    if isinstance(value, Named):
        if not value.name:
            to.flaw(FlawKind.REACHES, f"it sets the module {value} {use}")
        elif not is_known(value.module, value.name) and not is_standard(value.module):
            to.used(value, NameUse.CALLED)
    elif isinstance(value, Made):
        key = (value.by.module, value.by.name)
        if key in _WRAPPERS:
            for each in value.arguments or ():
                require_callable(to, each, use)
        elif key not in _HARMLESS and (is_standard(value.by.module) or not value.by.module):
            to.flaw(FlawKind.REACHES, f"it sets what {value.by} has made {use}")


def give_method(to: Recorder, name: Value) -> None:
    """Follow ``methodcaller(name, ...)``, which calls a method of whatever it is given."""
    if not (isinstance(name, str) and is_harmless_method(name)):
        told = repr(name)[:100] if isinstance(name, str) else "a name that is made while it runs"
        to.flaw(FlawKind.REACHES, f"it makes something that calls the method {told}")


def is_attribute_harmless(owner: Value, name: str) -> bool:
    """Whether an attribute may be taken of something of which only its maker is known."""
    if is_harmless_method(name):
        return True
    if not isinstance(owner, Made):
        return isinstance(owner, (str, int, tuple)) or name in _OF_CONTAINERS
    by = owner.by
    if by.module.startswith("torch."):
        return is_known("torch", f"Tensor.{name}")
    if not by.module:
        return False
    if is_method_of_value(by.module, f"{by.name}.{name}"):
        return True
    if by.module.startswith("numpy.random"):
        return special_attribute(name) is None
    is_listed = is_standard(by.module) or is_known(by.module, by.name)
    return not is_listed and owner.arguments is None
