"""What the calls in a pickle come to.

Functions that lead to something else (``getattr``), that call what they are given (``map``,
``partial``), or that change it, are followed; others only make an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from modpack.core.knownnames import is_standard
from modpack.discovery._picklemachine.attributes import (
    attribute,
    defined,
    getter,
    operator_of,
    set_in_script,
    taken_attribute,
)
from modpack.discovery._picklemachine.codemaking import (
    graph_module,
    make_function,
    read_from_package,
    run_graph,
)
from modpack.discovery._picklemachine.compiled import compiled_module
from modpack.discovery._picklemachine.makers import (
    ATTRIBUTE_GETTERS,
    FUNCTIONALS,
    INSTANCE,
    MAKES_CLASSES,
    MAKES_FUNCTIONS,
    MAPPINGS,
    METACLASSES,
    METHOD_GETTERS,
    OPERATORS,
    PARTIALS,
    REMADE,
    WRAPPERS,
)
from modpack.discovery._picklemachine.making import (
    encode,
    filling,
    first_again,
    getitem,
    kept,
    one_argument,
    only_item,
    wrapping,
)
from modpack.discovery._picklemachine.reach import give
from modpack.discovery._picklemachine.values import OPAQUE, Arguments, Made, Named, Recorder, Value
from modpack.discovery.pickledvalues import FlawKind, NameUse

__all__ = ["call", "instantiate"]

_Rule = Callable[[Recorder, Named, Arguments], Value]


def call(to: Recorder, called: Value, arguments: Arguments) -> Value:
    """Follow a call.

    Args:
        to: is told what it does.
        called: what is called.
        arguments: with what; None if that is not known.
    """
    give(to, list(arguments or ()))
    if isinstance(called, Named):
        if not called.name:
            to.flaw(FlawKind.CALLS, f"it calls the module {called.module}")
            return OPAQUE
        to.used(called, NameUse.CALLED)
        rule = _RULES.get((called.module, called.name))
        if rule is not None:
            return rule(to, called, arguments)
        return called.made if _is_told(called, arguments) else Made(called, arguments or (OPAQUE,))
    if isinstance(called, Made):
        return _call_of_made(to, called, arguments)
    to.flaw(FlawKind.CALLS, "it calls something of which it is not known what it is")
    return OPAQUE


def _is_told(called: Named, arguments: Arguments) -> bool:
    """Whether what is made can only be what its maker is made for; some return their argument."""
    if is_standard(called.module):
        return True
    return arguments is not None and not any(
        isinstance(each, (Named, Made, tuple)) for each in arguments
    )


def _call_of_made(to: Recorder, made: Made, arguments: Arguments) -> Value:
    key = (made.by.module, made.by.name)
    if key in MAKES_CLASSES:
        return Made(INSTANCE, made.arguments)
    if key in PARTIALS and made.arguments and arguments is not None:
        first, *bound = made.arguments
        return call(to, first, (*bound, *arguments))
    if key in ATTRIBUTE_GETTERS and made.arguments and arguments and len(arguments) == 1:
        found = arguments[0]
        for path in made.arguments:
            found = attribute(to, arguments[0], path)
        return found if len(made.arguments) == 1 else OPAQUE
    to.flaw(FlawKind.CALLS, f"it calls what {made.by} has made")
    return OPAQUE


def instantiate(to: Recorder, kind: Value, arguments: Arguments) -> Value:
    """Follow the making of an instance without a call of ``__init__``."""
    give(to, list(arguments or ()))
    if isinstance(kind, Named) and kind.name:
        to.used(kind, NameUse.BUILT)
        key = (kind.module, kind.name)
        if key in PARTIALS:
            return Made(kind, arguments)
        if key in _RULES or key in METHOD_GETTERS:
            return _RULES.get(key, _plain)(to, kind, arguments)
        return kind.made
    if isinstance(kind, Made) and (kind.by.module, kind.by.name) in MAKES_CLASSES:
        return Made(INSTANCE, kind.arguments)
    to.flaw(FlawKind.CALLS, "it makes an instance of something of which it is not known what it is")
    return OPAQUE


# -- functions that call what they are given, or make an instance of it -------------------------


def _calling_all(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """Whatever can be called among the arguments may be, with anything."""
    if arguments is None:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
        return OPAQUE
    for each in arguments:
        if isinstance(each, (Named, Made)) and not _is_data(each):
            call(to, each, None)
    return Made(called, None)


def _is_data(value: Named | Made) -> bool:
    """Whether something made is certainly no function."""
    return isinstance(value, Made) and (value.by.module, value.by.name) in _DATA


_DATA: Final = frozenset(
    {("builtins", name) for name in ("bytearray", "range", "iter", "set", "frozenset", "slice")}
    | {("collections", name) for name in ("OrderedDict", "deque", "Counter")}
    | {("itertools", name) for name in ("count", "repeat", "chain", "cycle", "islice")}
)


def _first_is_called(to: Recorder, called: Named, arguments: Arguments) -> Value:
    if not arguments:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
        return OPAQUE
    if _is_class_maker(arguments[0]):
        return Made(called, None)
    call(to, arguments[0], None)
    return Made(called, None)


def _is_class_maker(value: Value) -> bool:
    return isinstance(value, Named) and (value.module, value.name) in METACLASSES


def _second_is_called(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """For functions that get the package first."""
    return _first_is_called(to, called, arguments[1:] if arguments else None)


def _kinds_are_built(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``weak_container(kind, base, arguments)``: both are classes."""
    if arguments is None or len(arguments) < 2:
        return _first_is_built(to, called, None)
    instantiate(to, arguments[0], None)
    instantiate(to, arguments[1], None)
    return Made(called, None)


def _first_is_built(to: Recorder, called: Named, arguments: Arguments) -> Value:
    if not arguments:
        to.flaw(FlawKind.CALLS, f"it is not known of what {called} makes an instance")
        return OPAQUE
    kind, *given = arguments
    return instantiate(to, kind, tuple(given))


def _first_is_built_alike(to: Recorder, called: Named, arguments: Arguments) -> Value:
    _first_is_built(to, called, arguments)
    return Made(called, None)


def _reconstructor(to: Recorder, called: Named, arguments: Arguments) -> Value:
    if arguments is None or len(arguments) < 2:
        to.flaw(FlawKind.CALLS, f"it is not known of what {called} makes an instance")
        return OPAQUE
    if arguments[0] is not arguments[1]:
        instantiate(to, arguments[1], None)
    return instantiate(to, arguments[0], None)


def _manager(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``resumed_manager(kind, function, arguments, keywords)`` calls a generator function."""
    given = arguments[2] if arguments and len(arguments) > 2 else None
    if arguments is None or len(arguments) < 2:
        return _first_is_called(to, called, None)
    kind, function = arguments[:2]
    instantiate(to, kind, None)
    if not (
        isinstance(function, Made) and (function.by.module, function.by.name) in MAKES_FUNCTIONS
    ):
        call(to, function, given if isinstance(given, tuple) else None)
    return Made(called, None)


def _retyped(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``_rebuild_from_type_v2(function, type, arguments, state)``."""
    if arguments is None or len(arguments) != 4:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
        return OPAQUE
    function, kind, given, _ = arguments
    call(to, function, given if isinstance(given, tuple) else None)
    return instantiate(to, kind, None)


def _class_made(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``make_class(metaclass, name, qualified name, module, bases, ...)``."""
    _first_is_called(to, called, arguments)
    bases = arguments[4] if arguments and len(arguments) > 4 else ()
    found: list[Value] = []
    for base in bases if isinstance(bases, tuple) else ():
        is_made = isinstance(base, Made) and (base.by.module, base.by.name) in MAKES_CLASSES
        found += (base.arguments or ()) if is_made and isinstance(base, Made) else [base]
    return Made(called, tuple(dict.fromkeys(found)))


def _plain(to: Recorder, called: Named, arguments: Arguments) -> Value:
    return called.made


_HIGHER: Final = (
    *(("builtins", name) for name in ("map", "filter")),
    *((module, "reduce") for module in FUNCTIONALS),
    *(
        ("itertools", name)
        for name in ("accumulate", "dropwhile", "filterfalse", "groupby", "starmap", "takewhile")
    ),
)
_KINDS_FIRST: Final = (*((REMADE, name) for name in ("type_parameter", "weak_reference")),)
_RETURNS_FIRST: Final = (
    (REMADE, "the_same"),
    ("modpack.hooks.ddp", "unwrapped"),
    ("modpack.pickling.definitions", "script_module"),
)
_RULES: Final[Mapping[tuple[str, str], _Rule]] = {
    **dict.fromkeys(PARTIALS, kept),
    **dict.fromkeys(ATTRIBUTE_GETTERS | METHOD_GETTERS, getter),
    **dict.fromkeys(_HIGHER, _calling_all),
    **dict.fromkeys(((module, "getitem") for module in OPERATORS), getitem),
    **dict.fromkeys(_KINDS_FIRST, _first_is_called),
    **dict.fromkeys(_RETURNS_FIRST, first_again),
    **{
        (module, name): filling
        for module, names in (
            ("modpack.pickling.classes", ("fill_class",)),
            ("modpack.pickling.functions", ("fill_function",)),
            ("modpack.hooks.parametrized", ("fill_parametrized",)),
            (REMADE, ("fill_cell", "fill_weak_container", "set_state")),
            ("torch._utils", ("_set_obj_state",)),
        )
        for name in names
    },
    **dict.fromkeys(WRAPPERS, wrapping),
    **dict.fromkeys(MAPPINGS, kept),
    ("modpack.pickling.classes", "make_class"): _class_made,
    ("modpack.pickling.generated", "make_enum"): _class_made,
    ("modpack.pickling.torchscript", "load_script_module"): read_from_package,
    (REMADE, "exported_program"): read_from_package,
    (REMADE, "referent_of"): only_item,
    ("builtins", "getattr"): taken_attribute,
    ("builtins", "object.__new__"): _first_is_built,
    ("builtins", "type"): one_argument,
    ("builtins", "iter"): one_argument,
    ("_codecs", "encode"): encode,
    ("copyreg", "_reconstructor"): _reconstructor,
    ("copyreg", "__newobj__"): _first_is_built,
    ("copyreg", "__newobj_ex__"): _first_is_built,
    ("numpy.ma.core", "_mareconstruct"): _kinds_are_built,
    ("torch._C", "TensorBase._make_subclass"): _first_is_built,
    ("torch._dynamo.eval_frame", "OptimizedModule"): compiled_module,
    ("torch._tensor", "_rebuild_from_type_v2"): _retyped,
    ("torch.fx.graph_module", "reduce_graph_module"): run_graph,
    ("torch.fx.graph_module", "reduce_package_graph_module"): graph_module,
    ("modpack.hooks.parametrized", "make_parametrized"): _first_is_built,
    ("modpack.hooks.resetting", "fresh"): _second_is_called,
    ("modpack.pickling.definitions", "defined"): defined,
    ("modpack.pickling.definitions", "set_in_script"): set_in_script,
    ("modpack.pickling.functions", "make_function"): make_function,
    (REMADE, "operator_of"): operator_of,
    (REMADE, "registered_handler"): _first_is_built_alike,
    (REMADE, "resumed_manager"): _manager,
    (REMADE, "thread_local"): _first_is_built_alike,
    (REMADE, "weak_container"): _kinds_are_built,
}
"""Functions that do more than to make an object of their arguments."""
