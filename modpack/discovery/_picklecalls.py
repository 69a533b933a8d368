"""What the calls in a pickle come to.

Functions that lead to something else (``getattr``), that call what they are given (``map``,
``partial``), or that change it, are followed; others only make an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from modpack.core.knownnames import is_standard, special_attribute
from modpack.discovery._picklecompiled import (
    check_options,
    compiled_module,
    has_options,
    is_compiled_module,
)
from modpack.discovery._picklereach import (
    give,
    give_method,
    is_attribute_harmless,
    require_callable,
)
from modpack.discovery._picklestackvalues import OPAQUE, Made, Named, Recorder, Table, Value
from modpack.discovery.graphcode import odd_part
from modpack.discovery.pickledvalues import FlawKind, NameUse

__all__ = ["call", "change", "instantiate", "mutate"]


_Arguments = tuple[Value, ...] | None
_Rule = Callable[[Recorder, Named, _Arguments], Value]


def call(to: Recorder, called: Value, arguments: _Arguments) -> Value:
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


def _is_told(called: Named, arguments: _Arguments) -> bool:
    """Whether what is made can only be what its maker is made for; some return their argument."""
    if is_standard(called.module):
        return True
    return arguments is not None and not any(
        isinstance(each, (Named, Made, tuple)) for each in arguments
    )


def _call_of_made(to: Recorder, made: Made, arguments: _Arguments) -> Value:
    key = (made.by.module, made.by.name)
    if key in _MAKES_CLASSES:
        return Made(_INSTANCE, made.arguments)
    if key in _PARTIALS and made.arguments and arguments is not None:
        first, *bound = made.arguments
        return call(to, first, (*bound, *arguments))
    if key in _ATTRIBUTE_GETTERS and made.arguments and arguments and len(arguments) == 1:
        found = arguments[0]
        for path in made.arguments:
            found = _attribute(to, arguments[0], path)
        return found if len(made.arguments) == 1 else OPAQUE
    to.flaw(FlawKind.CALLS, f"it calls what {made.by} has made")
    return OPAQUE


def instantiate(to: Recorder, kind: Value, arguments: _Arguments) -> Value:
    """Follow the making of an instance without a call of ``__init__``."""
    give(to, list(arguments or ()))
    if isinstance(kind, Named) and kind.name:
        to.used(kind, NameUse.BUILT)
        key = (kind.module, kind.name)
        if key in _PARTIALS:
            return Made(kind, arguments)
        if key in _RULES or key in _METHOD_GETTERS:
            return _RULES.get(key, _plain)(to, kind, arguments)
        return kind.made
    if isinstance(kind, Made) and (kind.by.module, kind.by.name) in _MAKES_CLASSES:
        return Made(_INSTANCE, kind.arguments)
    to.flaw(FlawKind.CALLS, "it makes an instance of something of which it is not known what it is")
    return OPAQUE


def mutate(to: Recorder, target: Value) -> None:
    """Follow an opcode that adds something to what is on the stack."""
    if isinstance(target, Table):
        to.flaw(FlawKind.CHANGES, "it changes options after they were given")
    elif isinstance(target, (Named, str, tuple)):
        what = target if isinstance(target, Named) else "a constant"
        to.flaw(FlawKind.CHANGES, f"it changes {what}, which it only names")


def change(to: Recorder, target: Value, state: Value) -> None:
    """Follow BUILD, which gives an object its state."""
    mutate(to, target)
    if (
        isinstance(state, Made)
        and state.arguments
        and (state.by.module, state.by.name) in _MAPPINGS
    ):
        to.flaw(FlawKind.UNRESOLVED, "it gives an object a state that is made while it runs")
    if isinstance(target, Made):
        key = (target.by.module, target.by.name)
        if key in _PARTIALS:
            given = state if isinstance(state, tuple) else ()
            more = given[1] if len(given) > 1 else OPAQUE
            known = given and isinstance(more, tuple)
            target.arguments = (given[0], *more) if known and isinstance(more, tuple) else ()
        elif key in _DESCRIPTORS:
            for each in state.given if isinstance(state, Table) else (state,):
                require_callable(to, each, f"in a {target.by.name}")
        elif has_options(target):
            check_options(to, state)
        elif key in _MAKES_CLASSES or key in _MAKES_FUNCTIONS or is_compiled_module(target):
            to.flaw(FlawKind.CHANGES, f"it gives a state to what {target.by} has made")


# -- functions that are followed --------------------------------------------------------------


def _plain(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    return called.made


def _kept(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """What is made depends on the arguments."""
    return Made(called, arguments)


def _getattr(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    if arguments is None or len(arguments) not in (2, 3):
        to.flaw(FlawKind.UNRESOLVED, "it takes an attribute of which it is not known what it is")
        return OPAQUE
    return _attribute(to, arguments[0], arguments[1])


def _attribute(to: Recorder, owner: Value, name: Value) -> Value:
    if not isinstance(name, str):
        to.flaw(FlawKind.UNRESOLVED, "it takes an attribute by a name that is made while it runs")
        return OPAQUE
    special = special_attribute(name)
    if special is not None:
        to.flaw(FlawKind.REACHES, f"it takes the attribute {special} of {_told(owner)}")
        return OPAQUE
    if isinstance(owner, Named):
        return to.named(owner.module, f"{owner.name}.{name}" if owner.name else name)
    if isinstance(owner, Made):
        last = owner.by.name.rpartition(".")[2]
        if last[:1].isupper() or last.lstrip("_")[:1].isupper():  # a method of an instance
            to.named(owner.by.module, f"{owner.by.name}.{name}")
            return Made(_METHOD, None)  # or whatever the instance was given under that name
        if owner.by is _INSTANCE:
            return _attribute_of_instance(to, owner, name)
    if not is_attribute_harmless(owner, name):
        to.flaw(FlawKind.REACHES, f"it takes the attribute {name[:100]!r} of {_told(owner)}")
    return Made(_METHOD, None)


def _attribute_of_instance(to: Recorder, owner: Made, name: str) -> Value:
    """Of an instance of a class that the pickle makes: what it has from its bases."""
    for base in owner.arguments or ():
        if not isinstance(base, Named):
            continue
        if is_standard(base.module) and not base.module.startswith("torch"):
            to.named(base.module, f"{base.name}.{name}")
    return Made(_METHOD, None)


_METHOD: Final = Named("", "a method")
_INSTANCE: Final = Named("", "a class of the pickle's own")


def _told(value: Value) -> str:
    return repr(value)[:100] if isinstance(value, (Named, Made)) else "a value"


def _getter(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``attrgetter`` and ``methodcaller``: names that are taken later."""
    names = arguments or ()
    if called.name == "methodcaller" and names:
        give_method(to, names[0])
    for name in names[:1] if called.name == "methodcaller" else names:
        special = special_attribute(name) if isinstance(name, str) else None
        if special is not None:
            to.flaw(FlawKind.REACHES, f"it makes something that takes the attribute {special}")
    if not names or not all(isinstance(name, str) for name in names[:1]):
        to.flaw(FlawKind.UNRESOLVED, "it takes an attribute by a name that is made while it runs")
    return Made(called, arguments)


def _partial(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    return Made(called, arguments)


def _calling_all(to: Recorder, called: Named, arguments: _Arguments) -> Value:
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


def _one_argument(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``type`` and ``iter``, which do something else with more arguments."""
    if arguments is None or len(arguments) != 1:
        to.flaw(FlawKind.CALLS, f"it calls {called} with other than one argument")
    return Made(called, None)


def _first_is_called(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    if not arguments:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
        return OPAQUE
    if _is_class_maker(arguments[0]):
        return Made(called, None)
    call(to, arguments[0], None)
    return Made(called, None)


def _is_class_maker(value: Value) -> bool:
    return isinstance(value, Named) and (value.module, value.name) in _METACLASSES


def _second_is_called(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """For functions that get the package first."""
    return _first_is_called(to, called, arguments[1:] if arguments else None)


def _kinds_are_built(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``weak_container(kind, base, arguments)``: both are classes."""
    if arguments is None or len(arguments) < 2:
        return _first_is_built(to, called, None)
    instantiate(to, arguments[0], None)
    instantiate(to, arguments[1], None)
    return Made(called, None)


def _first_is_built_alike(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    _first_is_built(to, called, arguments)
    return Made(called, None)


def _first_is_built(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    if not arguments:
        to.flaw(FlawKind.CALLS, f"it is not known of what {called} makes an instance")
        return OPAQUE
    kind, *given = arguments
    return instantiate(to, kind, tuple(given))


def _reconstructor(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    if arguments is None or len(arguments) < 2:
        to.flaw(FlawKind.CALLS, f"it is not known of what {called} makes an instance")
        return OPAQUE
    if arguments[0] is not arguments[1]:
        instantiate(to, arguments[1], None)
    return instantiate(to, arguments[0], None)


def _manager(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``resumed_manager(kind, function, arguments, keywords)`` calls a generator function."""
    given = arguments[2] if arguments and len(arguments) > 2 else None
    if arguments is None or len(arguments) < 2:
        return _first_is_called(to, called, None)
    kind, function = arguments[:2]
    instantiate(to, kind, None)
    if not (
        isinstance(function, Made) and (function.by.module, function.by.name) in _MAKES_FUNCTIONS
    ):
        call(to, function, given if isinstance(given, tuple) else None)
    return Made(called, None)


def _retyped(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``_rebuild_from_type_v2(function, type, arguments, state)``."""
    if arguments is None or len(arguments) != 4:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
        return OPAQUE
    function, kind, given, _ = arguments
    call(to, function, given if isinstance(given, tuple) else None)
    return instantiate(to, kind, None)


def _class_made(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``make_class(metaclass, name, qualified name, module, bases, ...)``."""
    _first_is_called(to, called, arguments)
    bases = arguments[4] if arguments and len(arguments) > 4 else ()
    found: list[Value] = []
    for base in bases if isinstance(bases, tuple) else ():
        is_made = isinstance(base, Made) and (base.by.module, base.by.name) in _MAKES_CLASSES
        found += (base.arguments or ()) if is_made and isinstance(base, Made) else [base]
    return Made(called, tuple(dict.fromkeys(found)))


def _wrapping(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """Properties and the like, which call what they are given when an attribute is taken."""
    if arguments is None:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
    for each in arguments or ():
        require_callable(to, each, f"in a {called.name}")
    return Made(called, arguments)


def _read_from_package(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``load_script_module(package, record)``: an archive, which is looked at where it lies."""
    record = arguments[1] if arguments and len(arguments) == 2 else None
    is_packages = arguments is not None and arguments[0] is OPAQUE
    if not is_packages or not isinstance(record, str) or not record.startswith(_ATTACHED):
        to.flaw(FlawKind.UNRESOLVED, f"it is not known what {called} reads")
    return called.made


def _only_item(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``referent_of((referent,))``."""
    given = arguments[0] if arguments else None
    if not isinstance(given, tuple) or len(given) > 1:
        to.flaw(FlawKind.UNRESOLVED, f"it is not known what {called} returns")
        return OPAQUE
    return given[0] if given else OPAQUE


def _first_again(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """Functions that return their first argument."""
    return arguments[0] if arguments else OPAQUE


def _filling(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """Functions that fill what another one has made, and must not be given anything else."""
    target = arguments[0] if arguments else OPAQUE
    makers = _FILLED_BY[called.name]
    is_made = isinstance(target, Made) and (not makers or target.by.name in makers)
    if not is_made or (isinstance(target, Made) and has_options(target)):
        to.flaw(FlawKind.CHANGES, f"it has {called} change {_told(target)}")
    return OPAQUE


_FILLED_BY: Final[Mapping[str, frozenset[str]]] = {
    "fill_cell": frozenset({"make_cell"}),
    "fill_class": frozenset({"make_class", "make_enum", "make_named_tuple", "make_typed_dict"}),
    "fill_function": frozenset({"make_function"}),
    "fill_parametrized": frozenset(),
    "fill_weak_container": frozenset({"weak_container"}),
    "set_state": frozenset(),
}


def _make_function(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    fields = arguments[0] if arguments else None
    identity = arguments[1] if arguments and len(arguments) > 1 else None
    text = fields[0] if isinstance(fields, tuple) and fields else None
    name = identity[1] if isinstance(identity, tuple) and len(identity) > 1 else ""
    line = fields[-1] if isinstance(fields, tuple) and fields else 1
    if isinstance(text, str):
        told = name if isinstance(name, str) else ""
        to.function_text(text, told, line if isinstance(line, int) else 1)
    else:
        to.flaw(FlawKind.UNRESOLVED, "it makes a function from a source made while it runs")
    return Made(called, None)


def _defined(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    if not arguments or len(arguments) < 2:
        to.flaw(FlawKind.UNRESOLVED, f"it is not known what {called} takes")
        return OPAQUE
    return _attribute(to, arguments[0], arguments[1])


def _set_in_script(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    module, path, value = arguments if arguments and len(arguments) == 3 else (OPAQUE,) * 3
    texts = [each for each in path if isinstance(each, str)] if isinstance(path, tuple) else []
    if not isinstance(module, Named) or module.name or not texts or texts != list(path):  # type: ignore[call-overload]
        to.flaw(FlawKind.CHANGES, f"it is not known what {called} sets")
        return OPAQUE
    if is_standard(module.module):
        to.flaw(FlawKind.CHANGES, f"it sets a name in {module}")
    name = ".".join(texts)
    special = special_attribute(name)
    if special is not None:
        to.flaw(FlawKind.REACHES, f"it sets the attribute {special} in {module}")
    to.filled(module.module, name, value)
    return OPAQUE


def _operator_of(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    texts = [each for each in arguments or () if isinstance(each, str)]
    if not texts or len(texts) != len(arguments or ()):
        to.flaw(FlawKind.UNRESOLVED, "it takes an operator by a name that is made while it runs")
        return OPAQUE
    return to.named("torch.ops", ".".join(texts))


def _graph_module(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``reduce_package_graph_module(package, body, module)`` runs a module of the package."""
    module = arguments[2] if arguments and len(arguments) == 3 else None
    if not isinstance(module, str):
        to.flaw(FlawKind.UNRESOLVED, "it takes a module by a name that is made while it runs")
        return OPAQUE
    to.named(module, "forward")
    return Made(called, None)


def _getitem(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``getitem(List, int)`` is how generic types are pickled; else it might call anything."""
    if not arguments or not isinstance(arguments[0], Named):
        to.flaw(FlawKind.CALLS, f"it calls {called} for something else than a type")
    return Made(called, None)


def _run_graph(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``reduce_graph_module(body, imports)`` runs the code that is in the body."""
    body, imports = arguments if arguments is not None and len(arguments) == 2 else (None, None)
    code = body.code if isinstance(body, Table) and body.is_plain else None
    if not isinstance(code, str) or not isinstance(imports, str):
        to.flaw(FlawKind.CODE, "it runs a text as code that is made while it runs")
    else:
        odd = odd_part(imports, code, to.is_only_torch())
        if odd is not None:
            to.flaw(FlawKind.CODE, f"it runs a text as code that is more than a graph: {odd}")
    return Made(called, None)


def _encode(to: Recorder, called: Named, arguments: _Arguments) -> Value:
    """``_codecs.encode(text, "latin1")`` is how old protocols spell bytes."""
    if arguments is None or len(arguments) != 2 or arguments[1] not in ("latin1", "utf-8"):
        to.flaw(FlawKind.CALLS, f"it calls {called} for something else than bytes")
    return OPAQUE


_REMADE: Final = "modpack.pickling.remade"
_OPERATORS: Final = ("operator", "_operator")
_FUNCTIONALS: Final = ("functools", "_functools")

_PARTIALS: Final = frozenset((module, "partial") for module in _FUNCTIONALS) | {
    ("types", "MethodType"),
    ("modpack.pickling.functions", "make_method"),
}
_ATTRIBUTE_GETTERS: Final = frozenset((module, "attrgetter") for module in _OPERATORS)
_METHOD_GETTERS: Final = frozenset((module, "methodcaller") for module in _OPERATORS)
_MAKES_CLASSES: Final = frozenset(
    {("modpack.pickling.classes", "make_class")}
    | {
        ("modpack.pickling.generated", name)
        for name in ("make_enum", "make_named_tuple", "make_typed_dict")
    }
)
_MAKES_FUNCTIONS: Final = frozenset({("modpack.pickling.functions", "make_function")})
_METACLASSES: Final = frozenset(
    {("builtins", "type"), ("abc", "ABCMeta"), ("enum", "EnumMeta"), ("enum", "EnumType")}
)
_HIGHER: Final = (
    *(("builtins", name) for name in ("map", "filter")),
    *((module, "reduce") for module in _FUNCTIONALS),
    *(
        ("itertools", name)
        for name in ("accumulate", "dropwhile", "filterfalse", "groupby", "starmap", "takewhile")
    ),
)
_KINDS_FIRST: Final = (*((_REMADE, name) for name in ("type_parameter", "weak_reference")),)
_WRAPPERS: Final = (
    *(("builtins", name) for name in ("property", "staticmethod", "classmethod")),
    (_REMADE, "property_of"),
)
_DESCRIPTORS: Final = frozenset(
    {("functools", name) for name in ("cached_property", "partialmethod", "singledispatchmethod")}
    | {("types", "DynamicClassAttribute"), ("enum", "property"), *_WRAPPERS}
)
_MAPPINGS: Final = frozenset({("builtins", "dict"), ("collections", "OrderedDict")})
_ATTACHED: Final = ".data/modpack/torchscript/"
_RETURNS_FIRST: Final = (
    (_REMADE, "the_same"),
    ("modpack.hooks.ddp", "unwrapped"),
    ("modpack.pickling.definitions", "script_module"),
)
_RULES: Final[Mapping[tuple[str, str], _Rule]] = {
    **dict.fromkeys(_PARTIALS, _partial),
    **dict.fromkeys(_ATTRIBUTE_GETTERS | _METHOD_GETTERS, _getter),
    **dict.fromkeys(_HIGHER, _calling_all),
    **dict.fromkeys(((module, "getitem") for module in _OPERATORS), _getitem),
    **dict.fromkeys(_KINDS_FIRST, _first_is_called),
    **dict.fromkeys(_RETURNS_FIRST, _first_again),
    **{
        (module, name): _filling
        for module, names in (
            ("modpack.pickling.classes", ("fill_class",)),
            ("modpack.pickling.functions", ("fill_function",)),
            ("modpack.hooks.parametrized", ("fill_parametrized",)),
            (_REMADE, ("fill_cell", "fill_weak_container", "set_state")),
        )
        for name in names
    },
    **dict.fromkeys(_WRAPPERS, _wrapping),
    **dict.fromkeys(_MAPPINGS, _kept),
    ("modpack.pickling.classes", "make_class"): _class_made,
    ("modpack.pickling.generated", "make_enum"): _class_made,
    ("modpack.pickling.torchscript", "load_script_module"): _read_from_package,
    (_REMADE, "exported_program"): _read_from_package,
    (_REMADE, "referent_of"): _only_item,
    ("builtins", "getattr"): _getattr,
    ("builtins", "object.__new__"): _first_is_built,
    ("builtins", "type"): _one_argument,
    ("builtins", "iter"): _one_argument,
    ("_codecs", "encode"): _encode,
    ("copyreg", "_reconstructor"): _reconstructor,
    ("copyreg", "__newobj__"): _first_is_built,
    ("copyreg", "__newobj_ex__"): _first_is_built,
    ("numpy.ma.core", "_mareconstruct"): _kinds_are_built,
    ("torch._C", "TensorBase._make_subclass"): _first_is_built,
    ("torch._dynamo.eval_frame", "OptimizedModule"): compiled_module,
    ("torch._tensor", "_rebuild_from_type_v2"): _retyped,
    ("torch.fx.graph_module", "reduce_graph_module"): _run_graph,
    ("torch.fx.graph_module", "reduce_package_graph_module"): _graph_module,
    ("modpack.hooks.parametrized", "make_parametrized"): _first_is_built,
    ("modpack.hooks.resetting", "fresh"): _second_is_called,
    ("modpack.pickling.definitions", "defined"): _defined,
    ("modpack.pickling.definitions", "set_in_script"): _set_in_script,
    ("modpack.pickling.functions", "make_function"): _make_function,
    (_REMADE, "operator_of"): _operator_of,
    (_REMADE, "registered_handler"): _first_is_built_alike,
    (_REMADE, "resumed_manager"): _manager,
    (_REMADE, "thread_local"): _first_is_built_alike,
    (_REMADE, "weak_container"): _kinds_are_built,
}
"""Functions that do more than to make an object of their arguments."""
