"""What makes what: functions and classes whose products are followed further."""

from __future__ import annotations

from typing import Final

from modpack.discovery._picklemachine.values import Named

__all__ = [
    "ATTRIBUTE_GETTERS",
    "DESCRIPTORS",
    "FUNCTIONALS",
    "INSTANCE",
    "MAKES_CLASSES",
    "MAKES_FUNCTIONS",
    "MAPPINGS",
    "METACLASSES",
    "METHOD_GETTERS",
    "OPERATORS",
    "PARTIALS",
    "REMADE",
    "WRAPPERS",
]

REMADE: Final = "modpack.pickling.remade"
OPERATORS: Final = ("operator", "_operator")
FUNCTIONALS: Final = ("functools", "_functools")

PARTIALS: Final = frozenset((module, "partial") for module in FUNCTIONALS) | {
    ("types", "MethodType"),
    ("modpack.pickling.functions", "make_method"),
}
ATTRIBUTE_GETTERS: Final = frozenset((module, "attrgetter") for module in OPERATORS)
METHOD_GETTERS: Final = frozenset((module, "methodcaller") for module in OPERATORS)
MAKES_CLASSES: Final = frozenset(
    {("modpack.pickling.classes", "make_class")}
    | {
        ("modpack.pickling.generated", name)
        for name in ("make_enum", "make_named_tuple", "make_typed_dict")
    }
)
MAKES_FUNCTIONS: Final = frozenset({("modpack.pickling.functions", "make_function")})
METACLASSES: Final = frozenset(
    {("builtins", "type"), ("abc", "ABCMeta"), ("enum", "EnumMeta"), ("enum", "EnumType")}
)
WRAPPERS: Final = (
    *(("builtins", name) for name in ("property", "staticmethod", "classmethod")),
    (REMADE, "property_of"),
)
DESCRIPTORS: Final = frozenset(
    {("functools", name) for name in ("cached_property", "partialmethod", "singledispatchmethod")}
    | {("types", "DynamicClassAttribute"), ("enum", "property"), *WRAPPERS}
)
MAPPINGS: Final = frozenset({("builtins", "dict"), ("collections", "OrderedDict")})
INSTANCE: Final = Named("", "a class of the pickle's own")
