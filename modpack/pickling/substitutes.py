"""What is saved of objects of the standard library that plain pickle refuses."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import logging
import random
import sys
import types
import typing
from typing import Any

from modpack.pickling import remade
from modpack.pickling.rows import Packaged, RefusedError, Row, Substitute, Surroundings

__all__ = ["STANDARD", "STREAMS"]

STREAMS = ("stdout", "stderr", "stdin", "__stdout__", "__stderr__", "__stdin__")
"""The standard streams, by their names in :mod:`sys`."""


def _logger(logger: Any, around: Surroundings) -> Any:
    if isinstance(logger, logging.RootLogger):
        return logging.getLogger, ()
    if logging.getLogger(logger.name) is not logger:
        raise RefusedError(
            f"the logger {logger.name!r} is not the one that logging knows under this name. "
            "Remedy: get it with logging.getLogger"
        )
    return Packaged(remade.named_logger, (_own_name(logger.name),))


def _own_name(name: str) -> str:
    """A logger's name as the code of its package wrote it, without the namespace in front."""
    head, _, rest = name.partition(".")
    package = getattr(sys.modules.get(head), "__dict__", {}).get("__modpack__")
    is_private = rest and package is not None and package.id() == head
    return rest if is_private else name


def _handler(handler: Any, around: Surroundings) -> Any:
    return remade.registered_handler, (type(handler),), vars(handler)


def _dict_view(method: Any) -> Any:
    def reduce(view: Any, around: Surroundings) -> Any:
        return method, (remade.only_referent(view),)

    return reduce


def _proxied(proxy: Any, around: Surroundings) -> Any:
    return remade.mapping_proxy, (remade.only_referent(proxy),)


def _memory_view(view: memoryview, around: Surroundings) -> Any:
    base: Any = view.obj
    whole = memoryview(base)
    if not view.c_contiguous or view.nbytes != whole.nbytes:
        if not whole.readonly:
            raise RefusedError(
                "a memoryview of a part of an object cannot be saved. Remedy: save the object, "
                "and make the view when it is used"
            )
        base = view.tobytes()
    return remade.memory_view, (base, view.format, list(view.shape or ()), view.readonly)


def _wrapped(wrapper: Any, around: Surroundings) -> Any:
    return type(wrapper), (wrapper.__func__,)


def _property(made: Any, around: Surroundings) -> Any:
    doc = made.__doc__ if isinstance(made.__doc__, str) else None
    return remade.property_of, (type(made), made.fget, made.fset, made.fdel, doc)


def _cached(function: Any, around: Surroundings) -> Any:
    options = function.cache_parameters()
    parts = (function.__wrapped__, options["maxsize"], options["typed"])
    return around.named(function) or (remade.lru_cached, parts)


def _manager(manager: Any, around: Surroundings) -> Any:
    if not hasattr(manager, "func") or inspect.getgeneratorstate(manager.gen) != "GEN_CREATED":
        raise RefusedError(
            "a context manager that has been entered cannot be saved. Remedy: make it where it "
            "is entered"
        )
    return remade.resumed_manager, (type(manager), manager.func, manager.args, manager.kwds)


def _descriptor(descriptor: Any, around: Surroundings) -> Any:
    return getattr, (descriptor.__objclass__, descriptor.__name__)


def _super(proxy: Any, around: Surroundings) -> Any:
    if proxy.__self__ is None:
        return super, (proxy.__thisclass__,)
    return super, (proxy.__thisclass__, proxy.__self__)


def _struct(layout: Any, around: Surroundings) -> Any:
    return type(layout), (layout.format,)


def _entropy(source: Any, around: Surroundings) -> Any:
    return type(source), ()


def _type_var(variable: Any, around: Surroundings) -> Any:
    keywords = {"covariant": variable.__covariant__, "contravariant": variable.__contravariant__}
    if variable.__bound__ is not None:
        keywords["bound"] = variable.__bound__
    name, module = variable.__name__, variable.__module__
    parts = (type(variable), name, module, variable.__constraints__, keywords)
    return around.named(variable) or (remade.type_parameter, parts)


def _param_spec(spec: Any, around: Surroundings) -> Any:
    parts: tuple[Any, ...] = (type(spec), spec.__name__, spec.__module__, (), {})
    return around.named(spec) or (remade.type_parameter, parts)


def _new_type(made: Any, around: Surroundings) -> Any:
    parts = (made.__name__, made.__qualname__, made.__module__, made.__supertype__)
    return around.named(made) or (remade.new_type, parts)


def _forward_ref(ref: Any, around: Surroundings) -> Any:
    return remade.forward_ref, (ref.__forward_arg__,)


_ordered = collections.OrderedDict[str, int]()

STANDARD: tuple[Row, ...] = (
    Substitute(
        "`logging.Logger`",
        (logging.Logger, logging.RootLogger),
        "its name; levels and handlers belong to the process",
        "the logger that the package's code has made under that name; else that of the process",
        _logger,
        subclasses=True,
    ),
    Substitute(
        "`logging.Handler` and classes derived from it",
        (logging.Handler,),
        "its attributes",
        "a handler with a fresh lock; one of a standard stream writes to that of its process",
        _handler,
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "views of a dictionary (`keys()`, `values()`, `items()`)",
        (type({}.keys()), type(_ordered.keys())),
        "the dictionary",
        "a view of the same dictionary of the loaded ones",
        _dict_view(dict.keys),
    ),
    Substitute("", (type({}.values()), type(_ordered.values())), "", "", _dict_view(dict.values)),
    Substitute("", (type({}.items()), type(_ordered.items())), "", "", _dict_view(dict.items)),
    Substitute(
        "`types.MappingProxyType`",
        (types.MappingProxyType,),
        "the mapping behind it",
        "a proxy of the same mapping of the loaded ones",
        _proxied,
    ),
    Substitute(
        "`memoryview` of a whole object",
        (memoryview,),
        "the object",
        "a view of the same object of the loaded ones",
        _memory_view,
    ),
    Substitute(
        "`property`, `staticmethod`, `classmethod` objects",
        (property,),
        "their functions",
        "the same",
        _property,
        subclasses=True,
    ),
    Substitute("", (staticmethod, classmethod), "", "", _wrapped),
    Substitute(
        "functions behind `functools.lru_cache`, `functools.cache`",
        (type(functools.lru_cache(len)),),
        "their name, if their module has them; else the function inside and the size",
        "the same, behind an empty cache",
        _cached,
    ),
    Substitute(
        "`@contextlib.contextmanager` objects, not entered yet",
        (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager),
        "the function and its arguments",
        "one that can be entered",
        _manager,
        subclasses=True,
    ),
    Substitute(
        "attribute descriptors of built-in types, such as `torch.Tensor.T`",
        (types.GetSetDescriptorType,),
        "type and name",
        "the same",
        _descriptor,
    ),
    Substitute("`super()` objects", (super,), "class and object", "the same", _super),
    Substitute("`struct.Struct`", ("_struct.Struct",), "its format", "the same", _struct),
    Substitute(
        "`random.SystemRandom`", (random.SystemRandom,), "nothing", "one of that process", _entropy
    ),
    Substitute(
        "`typing.TypeVar`, `ParamSpec`, `NewType`",
        (typing.TypeVar,),
        "their name, if their module has them; else their parts",
        "the same",
        _type_var,
    ),
    Substitute("", (typing.ParamSpec,), "", "", _param_spec),
    Substitute("", (typing.NewType,), "", "", _new_type),
    Substitute("`typing.ForwardRef`", (typing.ForwardRef,), "its text", "the same", _forward_ref),
    Substitute(
        "constants such as `dataclasses.MISSING`, and objects without any state (`object()`)",
        ("dataclasses._FIELD_BASE",),
        "their name, if a module of the model holds them: `is` goes on working",
        "the object of that name",
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "`sys.stdout`, `sys.stderr`, `sys.stdin`, and their buffers",
        (),
        "their name",
        "those of the process that loads",
    ),
    Substitute(
        "`random.Random`, `numpy.random.Generator`",
        (),
        "their state",
        "one that goes on with the same numbers",
    ),
)
"""Rows for the standard library; those without a title belong to the row above them."""
