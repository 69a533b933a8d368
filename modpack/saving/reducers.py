"""Reducers for types that plain pickle rejects or gets wrong.

There is one row per type; docs/reference/objects.md lists the results. Locks and pools are
re-created fresh, because the threads that use them stay behind. A weak reference keeps nothing
alive, in this process or in a package: an object that only weak references reach is not saved,
because nothing would keep it after loading. Such references are dead after loading.
"""

from __future__ import annotations

import collections
import contextvars
import copy
import enum
import functools
import gc
import logging
import operator
import random
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.utils.weak import WeakIdKeyDictionary

from modpack.core.names import namespace_of
from modpack.pickling import remade
from modpack.pickling.remade import load_script_module
from modpack.saving.base import (
    LEAVE_OUT,
    Packaged,
    ReducerRow,
    ReducerTable,
    RefusedError,
    Row,
    UnsupportedType,
)
from modpack.saving.graph_context import ObjectGraph
from modpack.saving.names import ModuleNamed
from modpack.saving.pickle_edits import ReducedObject
from modpack.saving.torch_archives import portable_path, program_bytes, script_bytes
from modpack.saving.unsupported import REFUSED

_STREAMS = ("stdout", "stderr", "stdin", "__stdout__", "__stderr__", "__stdin__")
"""Names of the standard streams in :mod:`sys`."""


def _logger(logger: Any, context: ObjectGraph) -> Any:
    if isinstance(logger, logging.RootLogger):
        return logging.getLogger, ()
    if logging.getLogger(logger.name) is not logger:
        raise RefusedError(
            f"the logger {logger.name!r} is not the one that logging has under this name",
            hint="Create it with logging.getLogger.",
        )
    return Packaged(remade.named_logger, (_own_name(logger.name),))


def _own_name(name: str) -> str:
    """Return a logger's name as the package's code wrote it, without the private namespace."""
    namespace = namespace_of(name)
    rest = name[len(namespace) + 1 :]
    return rest if namespace in sys.modules and rest else name


def _handler(handler: Any, context: ObjectGraph) -> Any:
    return remade.registered_handler, (type(handler),), vars(handler)


def _dict_view(method: Any) -> Any:
    def reduce(view: Any, context: ObjectGraph) -> Any:
        # `view.mapping` is a read-only proxy. Only the collector knows the dict itself.
        return method, (gc.get_referents(view)[0],)

    return reduce


def _property(made: Any, context: ObjectGraph) -> Any:
    doc = made.__doc__ if isinstance(made.__doc__, str) else None
    return remade.property_of, (type(made), made.fget, made.fset, made.fdel, doc)


def _cached(function: Any, context: ObjectGraph) -> Any:
    options = function.cache_parameters()
    # A function that a module binds is found by its name, and shares the cache of the package's
    # code.
    parts = (function.__wrapped__, options["maxsize"], options["typed"])
    return context.reduce_to_name(function) or (remade.lru_cached, parts)


def _descriptor(descriptor: Any, context: ObjectGraph) -> Any:
    return getattr, (descriptor.__objclass__, descriptor.__name__)


def _super(proxy: Any, context: ObjectGraph) -> Any:
    if proxy.__self__ is None:
        return super, (proxy.__thisclass__,)
    return super, (proxy.__thisclass__, proxy.__self__)


def _type_var(variable: Any, context: ObjectGraph) -> Any:
    keywords = {"covariant": variable.__covariant__, "contravariant": variable.__contravariant__}
    if variable.__bound__ is not None:
        keywords["bound"] = variable.__bound__
    name, module = variable.__name__, variable.__module__
    parts = (type(variable), name, module, variable.__constraints__, keywords)
    return context.reduce_to_name(variable) or (remade.type_parameter, parts)


def _param_spec(spec: Any, context: ObjectGraph) -> Any:
    parts: tuple[Any, ...] = (type(spec), spec.__name__, spec.__module__, (), {})
    return context.reduce_to_name(spec) or (remade.type_parameter, parts)


def _new_type(made: Any, context: ObjectGraph) -> Any:
    parts = (made.__name__, made.__qualname__, made.__module__, made.__supertype__)
    return context.reduce_to_name(made) or (remade.new_type, parts)


def _enum_member(member: Any, context: ObjectGraph) -> Any:
    """Reduce an enum member by name, because an equal value may not identify it after loading.

    Combined flags are reduced to the members that they combine. Only members without a name, such
    as those that ``_missing_`` creates, are reduced by value.
    """
    kind, name = type(member), member._name_
    if kind.__members__.get(name) is member:
        # The loader uses getattr, which may find something other than the member of this name.
        if getattr(kind, name, None) is member:
            return getattr, (kind, name)
    elif issubclass(kind, enum.Flag):
        parts = [each for each in kind.__members__.values() if each._value_]
        parts = [each for each in parts if each._value_ & member._value_ == each._value_]
        if len(parts) > 1 and functools.reduce(operator.or_, parts) is member:
            combined: Any
            combined, *middle, last = parts
            for each in middle:
                combined = ReducedObject((operator.or_, (combined, each)))
            return operator.or_, (combined, last)
    return member.__reduce_ex__(_PROTOCOL)


_ordered = collections.OrderedDict[str, int]()

STANDARD: tuple[Row, ...] = (
    ReducerRow((logging.Logger, logging.RootLogger), _logger, subclasses=True),
    ReducerRow((logging.Handler,), _handler, subclasses=True, by_name=True),
    ReducerRow((type({}.keys()), type(_ordered.keys())), _dict_view(dict.keys)),
    ReducerRow((type({}.values()), type(_ordered.values())), _dict_view(dict.values)),
    ReducerRow((type({}.items()), type(_ordered.items())), _dict_view(dict.items)),
    ReducerRow(
        (types.MappingProxyType,),
        lambda proxy, context: (remade.mapping_proxy, (gc.get_referents(proxy)[0],)),
    ),
    ReducerRow((enum.Enum, enum.Flag), _enum_member, subclasses=True),
    ReducerRow((property,), _property, subclasses=True),
    ReducerRow(
        (staticmethod, classmethod), lambda wrapper, context: (type(wrapper), (wrapper.__func__,))
    ),
    ReducerRow((type(functools.lru_cache(len)),), _cached),
    ReducerRow((types.GetSetDescriptorType,), _descriptor),
    ReducerRow((super,), _super),
    ReducerRow(("_struct.Struct",), lambda layout, context: (type(layout), (layout.format,))),
    ReducerRow((random.SystemRandom,), lambda source, context: (type(source), ())),
    ReducerRow((typing.TypeVar,), _type_var),
    ReducerRow((typing.ParamSpec,), _param_spec),
    ReducerRow((typing.NewType,), _new_type),
    ReducerRow(
        (typing.ForwardRef,), lambda ref, context: (remade.forward_ref, (ref.__forward_arg__,))
    ),
    ReducerRow(("dataclasses._FIELD_BASE",), subclasses=True, by_name=True),
)
"""Rows for the standard library."""


# What the containers themselves set, in contrast to the attributes of derived classes.
_BOOKKEEPING = {"data", "ref_type", "_remove", "_pending_removals", "_iterating", "_dirty_len"}


def _kept(referent: Any, context: ObjectGraph) -> tuple[Any, ...]:
    return (referent,) if referent is not None and context.is_kept_alive(referent) else ()


def _reference(ref: Any, context: ObjectGraph) -> Any:
    return remade.weak_reference, (type(ref), _kept(ref(), context), ref.__callback__)


def _method(ref: Any, context: ObjectGraph) -> Any:
    method = ref()
    if method is None or not context.is_kept_alive(method.__self__):
        return remade.weak_method, ((), remade.the_same)
    return remade.weak_method, ((method.__self__,), method.__func__)


def _proxy(proxy: Any, context: ObjectGraph) -> Any:
    callback = next(iter(gc.get_referents(proxy)), None)
    try:  # a proxy forwards attributes: a bound method reveals the referent
        referent = proxy.__init__.__self__
    except ReferenceError:
        return remade.weak_proxy, ((), callback)
    except AttributeError as failure:
        raise RefusedError(
            "a weak proxy of an object that overrides attribute access cannot be saved",
            hint="Use weakref.ref instead.",
        ) from failure
    return remade.weak_proxy, (_kept(referent, context), callback)


def _container(base: type, filled: Any) -> Any:
    def reduce(container: Any, context: ObjectGraph) -> Any:
        arguments = (container.ref_type,) if hasattr(container, "ref_type") else ()
        extra = {k: v for k, v in vars(container).items() if k not in _BOOKKEEPING}
        state = (filled(container, context), extra)
        made = (type(container), base, arguments)
        return remade.weak_container, made, state, None, None, remade.fill_weak_container

    return reduce


def _kept_pairs(weak: int) -> Any:
    """Return a reducer's filter for mappings that refer weakly to keys (0) or values (1)."""
    # A copy, because an entry disappears when its referent dies.
    return lambda mapping, context: [
        pair for pair in list(mapping.items()) if context.is_kept_alive(pair[weak])
    ]


def _kept_members(members: Any, context: ObjectGraph) -> list[Any]:
    kept = [member for member in list(members) if context.is_kept_alive(member)]
    return context.sort(kept) or kept


WEAK: tuple[Row, ...] = (
    ReducerRow((weakref.ref,), _reference, subclasses=True, by_name=True),
    ReducerRow((weakref.WeakMethod,), _method),
    ReducerRow((weakref.ProxyType, weakref.CallableProxyType), _proxy),
    *(
        ReducerRow((kind,), _container(kind, kept), subclasses=True, by_name=True)
        for kind, kept in (
            (weakref.WeakValueDictionary, _kept_pairs(1)),
            (weakref.WeakKeyDictionary, _kept_pairs(0)),
            (WeakIdKeyDictionary, _kept_pairs(0)),
            (weakref.WeakSet, _kept_members),
        )
    ),
    ReducerRow((weakref.finalize,)),
)
"""Rows for weak references and their containers."""


def _executor(pool: Any, context: ObjectGraph) -> Any:
    if pool._work_queue.qsize() or pool._shutdown:
        state = "has been shut down" if pool._shutdown else "has pending work"
        raise RefusedError(f"a thread pool that {state} cannot be saved", hint=LEAVE_OUT)
    name = pool._thread_name_prefix
    name = "" if re.fullmatch(_COUNTED, name) else name  # a new pool numbers itself
    return remade.fresh_executor, (pool._max_workers, name, pool._initializer, pool._initargs)


_COUNTED = r"ThreadPoolExecutor-\d+"
"""The default name of a thread pool, which contains the number of pools in the process."""


def _context_var(variable: Any, context: ObjectGraph) -> Any:
    try:
        # In an empty context, the variable has its default and not the value of this thread.
        default: tuple[Any, ...] = (contextvars.Context().run(variable.get),)
    except LookupError:
        default = ()
    return remade.fresh_context_var, (variable.name, default)


THREADS: tuple[Row, ...] = (
    ReducerRow(
        (type(threading.Lock()),), lambda lock, context: (remade.fresh_lock, ()), by_name=True
    ),
    ReducerRow(
        (type(threading.RLock()),), lambda lock, context: (remade.fresh_rlock, ()), by_name=True
    ),
    ReducerRow(
        (threading.Condition,),
        lambda condition, context: (remade.fresh_condition, (condition._lock,)),
        by_name=True,
    ),
    ReducerRow((threading.Event, threading.Semaphore, threading.Barrier), by_name=True),
    ReducerRow(
        (threading.BoundedSemaphore,),
        lambda semaphore, context: (remade.fresh_semaphore, (semaphore._initial_value,)),
        by_name=True,
    ),
    ReducerRow(
        (threading.local,),
        lambda local, context: (remade.thread_local, (type(local),), dict(vars(local))),
        subclasses=True,
        by_name=True,
    ),
    ReducerRow((ThreadPoolExecutor,), _executor, by_name=True),
    ReducerRow((contextvars.ContextVar,), _context_var, by_name=True),
)
"""Rows for locks, queues, pools, and thread-local data."""


def _holds(value: object, graph: Graph) -> bool:
    """Return whether a container contains a Graph, at any depth."""
    if isinstance(value, dict):
        return _holds(list(value.values()), graph)
    if isinstance(value, (list, tuple)):
        return any(part is graph or _holds(part, graph) for part in value)
    return False


def _overload(operator: Any, context: ObjectGraph) -> Any:
    return remade.operator_of, (*operator._schema.name.split("::"), operator._overloadname)


def _packet(packet: Any, context: ObjectGraph) -> Any:
    return remade.operator_of, tuple(packet._qualified_op_name.split("::"))


def _script_function(function: Any, context: ObjectGraph) -> Any:
    return Packaged(load_script_module, (context.attach(script_bytes(function)),))


def _graph(graph: Any, context: ObjectGraph) -> Any:
    function, arguments, state, *rest = graph.__reduce_ex__(2)
    # The code of the traced function has the path of its file on this machine.
    made = state.get("_co_fields") if isinstance(state, dict) else None
    if isinstance(made, dict) and isinstance(made.get("co_filename"), str):
        path = portable_path(made["co_filename"])
        state = {**state, "_co_fields": {**made, "co_filename": path}}
    owner = graph.owning_module
    if owner is not None and _holds(vars(owner), graph):  # the owner does not exist yet at load
        state = {**state, "_owning_module": None}
    return function, arguments, state, *rest


def _compiling(box: Any, context: ObjectGraph) -> Any:
    """Re-create torch.compile's bookkeeping empty."""
    return type(box), ()


def _compiler(compiler: Any, context: ObjectGraph) -> Any:
    """Save the caller of compiled code without the local folders in its copy of all settings."""
    made, arguments, state = compiler.__reduce__()
    settings = state.get("compiler_config")
    if isinstance(settings, dict):
        kept = {
            name: value
            for name, value in settings.items()
            if not (isinstance(value, str) and PurePath(value).is_absolute())
        }
        state = {**state, "compiler_config": kept}
    return made, arguments, state


def _program(program: Any, context: ObjectGraph) -> Any:
    return Packaged(remade.exported_program, (context.attach(program_bytes(program)),))


TORCH: tuple[Row, ...] = (
    ReducerRow((torch.Generator,), by_name=True),
    ReducerRow(
        (torch.memory_format,),
        lambda constant, context: (getattr, (torch, str(constant).rpartition(".")[2])),
    ),
    ReducerRow(
        (torch.finfo, torch.iinfo),
        lambda info, context: (type(info), (getattr(torch, info.dtype),)),
    ),
    ReducerRow(("torch._ops.OpOverload",), _overload, subclasses=True),
    ReducerRow(("torch._ops.OpOverloadPacket",), _packet, subclasses=True),
    ReducerRow(
        ("torch._ops._OpNamespace",),
        lambda namespace, context: (remade.operator_of, (namespace.name,)),
    ),
    ReducerRow((torch.jit.ScriptFunction,), _script_function, by_name=True),
    ReducerRow(("torch.export.exported_program.ExportedProgram",), _program),
    ReducerRow(("torch.fx.graph.Graph",), _graph),
    ReducerRow(("torch._dynamo.convert_frame.ConvertFrameBox",), _compiling),
    ReducerRow(("torch._dynamo.eval_frame.OptimizeContext",), _compiler),
)
"""Rows for torch."""


ALL_ROWS: tuple[Row, ...] = (*THREADS, *WEAK, *STANDARD, *TORCH, *REFUSED)
"""All rows, in the order of the documentation."""

ROWS = ReducerTable(ALL_ROWS)
"""All rows by type."""


def reduce_by_row(row: Row, obj: Any, context: ObjectGraph, plain: Callable[[Any], Any]) -> Any:
    """Reduce an object by its row.

    Args:
        row: The row of its type.
        obj: The object.
        context: The graph that it is saved in.
        plain: Reduces the object as pickle does, for rows without a reducer.

    Raises:
        RefusedError: If the object has no meaning outside this process.
    """
    # Before the refusal: a module's own lock or thread is found by its name at load time.
    if row.by_name and (named := context.reduce_to_attribute(obj)) is not None:
        return named
    if isinstance(row, UnsupportedType):
        kind = type(obj)
        raise RefusedError(
            f"{row.what} ({kind.__module__}.{kind.__qualname__}) cannot be saved: {row.why}",
            hint=row.hint,
        )
    if row.reduce is None:
        return plain(obj)
    reduced = row.reduce(obj, context)
    return (remade.the_same, (reduced,)) if isinstance(reduced, Packaged) else reduced


def reduce_constant(obj: Any, reduced: Any, context: ObjectGraph) -> Any:
    """Reduce a stateless object to its name if it is a module attribute."""
    return (context.reduce_to_attribute(obj) if is_stateless(reduced) else None) or reduced


def is_stateless(reduced: Any) -> bool:
    """Return whether a reduction contains only a class, and no state."""
    if not isinstance(reduced, tuple) or len(reduced) < 2 or len(reduced[1]) != 1:
        return False
    return reduced[0].__name__ == "__newobj__" and not any(reduced[2:])


def reduce_stream(obj: object) -> Any:
    """Reduce a standard stream of this process to its name; return None for other objects."""
    for name in _STREAMS:
        stream = getattr(sys, name, None)
        if stream is not None and obj is stream:
            return remade.standard_stream, (name, False)
        if stream is not None and obj is getattr(stream, "buffer", None):
            return remade.standard_stream, (name, True)
    return None


def is_kind_of_stream(kind: type) -> bool:
    """Return whether one of the standard streams is of this type."""
    streams = [getattr(sys, name, None) for name in _STREAMS]
    return any(kind in (type(s), type(getattr(s, "buffer", None))) for s in streams if s)


PYBIND11_MODULE = "pybind11_builtins"
"""The ``__module__`` of the types of such owners."""

_PROTOCOL = 3
_IMPORT = r"__import__\('importlib'\)\.import_module\('([\w.]+)'\)"


def reduce_pybind11_owner(owner: Any) -> Any:
    """Reduce the owner of pybind11 functions to its module, so that pickles need no ``eval``.

    Python reaches a pybind11 function, such as those of ``torch._C``, as an attribute of an owner
    that is not a module. The owner's own reduction is a string for ``eval`` that imports the
    module.
    """
    reduced = owner.__reduce_ex__(_PROTOCOL)
    function, arguments = reduced[:2]
    found = re.fullmatch(_IMPORT, str(*arguments)) if function is eval else None
    return reduced if found is None else (remade.the_same, (ModuleNamed(found[1]),))


def reduce_pybind11_function(function: Any) -> Any:
    """Reduce a function of pybind11 before 3, whose owner is a capsule, to a module's attribute.

    Returns:
        NotImplemented for other built-in functions, which pickle reduces.
    """
    if type(function.__self__).__name__ != "PyCapsule":
        return NotImplemented
    module = ReducedObject((remade.the_same, (ModuleNamed(function.__module__),)))
    return getattr, (module, function.__name__)


_MADE_BY_TORCH = "GraphModuleImpl"
"""The class that torch creates for each GraphModule, so that each can have its own forward."""


class GraphModules:
    """Reduces the GraphModules of one pickle that torch would not save completely.

    torch saves a GraphModule's code and traces it again at load time. That turns an object of a
    derived class into a plain GraphModule. A Graph in one of its attributes leads back to the
    module, which does not exist yet at that time.
    """

    def __init__(self) -> None:
        self._plain: dict[int, tuple[Graph, GraphModule]] = {}

    def reduction(self, module: object) -> tuple[Any, ...] | None:
        """Return a function of :mod:`.remade` with arguments; None to leave the module to torch.

        Args:
            module: Any object with a ``__reduce_package__``.
        """
        # A class that replaces torch's reduction decides itself what is saved.
        own = getattr(type(module), "__reduce_package__", None)
        if not isinstance(module, GraphModule) or own is not GraphModule.__reduce_package__:
            return None
        names = ((base, base.__qualname__.rpartition(".")[2]) for base in type(module).__mro__)
        kind = next(base for base, name in names if name != _MADE_BY_TORCH)
        held = vars(module)
        graphs = {name: value for name, value in held.items() if isinstance(value, Graph)}
        if kind is GraphModule and len(graphs) == 1:
            return None
        state = {name: value for name, value in held.items() if name not in graphs}
        plain = {name: self._plain_module(module, graph) for name, graph in graphs.items()}
        return remade.graph_module, (kind, type(module).__name__, plain, state)

    def _plain_module(self, module: GraphModule, graph: Graph) -> GraphModule:
        """Return a module that torch saves in place of a Graph, with the same parts."""
        if id(graph) not in self._plain:
            # A copy, so that the live Graph keeps its owner.
            self._plain[id(graph)] = (graph, GraphModule(module, copy.deepcopy(graph)))
        return self._plain[id(graph)][1]
