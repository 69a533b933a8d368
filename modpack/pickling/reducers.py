"""Special objects: how each type that plain pickle refuses, or gets wrong, is reduced.

One row for each type; docs/reference/objects.md says what comes back. Locks and pools come back
fresh, for the threads that hold them stay behind. A weak reference keeps nothing alive, neither
here nor in a package: what is reached by weak references only is not saved, for nobody would keep
it after loading, and the references come back dead.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import functools
import gc
import inspect
import logging
import queue
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

from modpack.pickling import remade
from modpack.pickling.base import (
    LEAVE_OUT,
    Packaged,
    ReducerRow,
    ReducerTable,
    RefusedError,
    Row,
    UnsupportedType,
)
from modpack.pickling.graph_context import ObjectGraph
from modpack.pickling.names import ModuleNamed
from modpack.pickling.torch_archives import (
    load_script_module,
    portable_path,
    program_bytes,
    script_bytes,
)
from modpack.pickling.unsupported import REFUSED

_STREAMS = ("stdout", "stderr", "stdin", "__stdout__", "__stderr__", "__stdin__")
"""The standard streams, by their names in :mod:`sys`."""


def _logger(logger: Any, around: ObjectGraph) -> Any:
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


def _handler(handler: Any, around: ObjectGraph) -> Any:
    return remade.registered_handler, (type(handler),), vars(handler)


def _dict_view(method: Any) -> Any:
    def reduce(view: Any, around: ObjectGraph) -> Any:
        return method, (gc.get_referents(view)[0],)

    return reduce


def _memory_view(view: memoryview, around: ObjectGraph) -> Any:
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


def _property(made: Any, around: ObjectGraph) -> Any:
    doc = made.__doc__ if isinstance(made.__doc__, str) else None
    return remade.property_of, (type(made), made.fget, made.fset, made.fdel, doc)


def _cached(function: Any, around: ObjectGraph) -> Any:
    options = function.cache_parameters()
    parts = (function.__wrapped__, options["maxsize"], options["typed"])
    return around.named(function) or (remade.lru_cached, parts)


def _manager(manager: Any, around: ObjectGraph) -> Any:
    if not hasattr(manager, "func") or inspect.getgeneratorstate(manager.gen) != "GEN_CREATED":
        raise RefusedError(
            "a context manager that has been entered cannot be saved. Remedy: make it where it "
            "is entered"
        )
    return remade.resumed_manager, (type(manager), manager.func, manager.args, manager.kwds)


def _descriptor(descriptor: Any, around: ObjectGraph) -> Any:
    return getattr, (descriptor.__objclass__, descriptor.__name__)


def _super(proxy: Any, around: ObjectGraph) -> Any:
    if proxy.__self__ is None:
        return super, (proxy.__thisclass__,)
    return super, (proxy.__thisclass__, proxy.__self__)


def _type_var(variable: Any, around: ObjectGraph) -> Any:
    keywords = {"covariant": variable.__covariant__, "contravariant": variable.__contravariant__}
    if variable.__bound__ is not None:
        keywords["bound"] = variable.__bound__
    name, module = variable.__name__, variable.__module__
    parts = (type(variable), name, module, variable.__constraints__, keywords)
    return around.named(variable) or (remade.type_parameter, parts)


def _param_spec(spec: Any, around: ObjectGraph) -> Any:
    parts: tuple[Any, ...] = (type(spec), spec.__name__, spec.__module__, (), {})
    return around.named(spec) or (remade.type_parameter, parts)


def _new_type(made: Any, around: ObjectGraph) -> Any:
    parts = (made.__name__, made.__qualname__, made.__module__, made.__supertype__)
    return around.named(made) or (remade.new_type, parts)


_ordered = collections.OrderedDict[str, int]()

STANDARD: tuple[Row, ...] = (
    ReducerRow((logging.Logger, logging.RootLogger), _logger, subclasses=True),
    ReducerRow((logging.Handler,), _handler, subclasses=True, by_name=True),
    ReducerRow((type({}.keys()), type(_ordered.keys())), _dict_view(dict.keys)),
    ReducerRow((type({}.values()), type(_ordered.values())), _dict_view(dict.values)),
    ReducerRow((type({}.items()), type(_ordered.items())), _dict_view(dict.items)),
    ReducerRow(
        (types.MappingProxyType,),
        lambda proxy, around: (remade.mapping_proxy, (gc.get_referents(proxy)[0],)),
    ),
    ReducerRow((memoryview,), _memory_view),
    ReducerRow((property,), _property, subclasses=True),
    ReducerRow(
        (staticmethod, classmethod), lambda wrapper, around: (type(wrapper), (wrapper.__func__,))
    ),
    ReducerRow((type(functools.lru_cache(len)),), _cached),
    ReducerRow(
        (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager),
        _manager,
        subclasses=True,
    ),
    ReducerRow((types.GetSetDescriptorType,), _descriptor),
    ReducerRow((super,), _super),
    ReducerRow(("_struct.Struct",), lambda layout, around: (type(layout), (layout.format,))),
    ReducerRow((random.SystemRandom,), lambda source, around: (type(source), ())),
    ReducerRow((typing.TypeVar,), _type_var),
    ReducerRow((typing.ParamSpec,), _param_spec),
    ReducerRow((typing.NewType,), _new_type),
    ReducerRow(
        (typing.ForwardRef,), lambda ref, around: (remade.forward_ref, (ref.__forward_arg__,))
    ),
    ReducerRow(("dataclasses._FIELD_BASE",), subclasses=True, by_name=True),
)
"""Rows for the standard library."""


_BOOKKEEPING = {"data", "ref_type", "_remove", "_pending_removals", "_iterating", "_dirty_len"}


def _kept(referent: Any, around: ObjectGraph) -> tuple[Any, ...]:
    return (referent,) if referent is not None and around.keeps(referent) else ()


def _reference(ref: Any, around: ObjectGraph) -> Any:
    return remade.weak_reference, (type(ref), _kept(ref(), around), ref.__callback__)


def _method(ref: Any, around: ObjectGraph) -> Any:
    method = ref()
    if method is None or not around.keeps(method.__self__):
        return remade.weak_method, ((), remade.the_same)
    return remade.weak_method, ((method.__self__,), method.__func__)


def _proxy(proxy: Any, around: ObjectGraph) -> Any:
    callback = next(iter(gc.get_referents(proxy)), None)
    try:  # the proxy answers for its referent: a bound method gives that away
        referent = proxy.__init__.__self__
    except ReferenceError:
        return remade.weak_proxy, ((), callback)
    except AttributeError as failure:
        raise RefusedError(
            "a weak proxy of an object that hides itself cannot be saved. Remedy: hold the "
            "object by weakref.ref"
        ) from failure
    return remade.weak_proxy, (_kept(referent, around), callback)


def _container(base: type, filled: Any) -> Any:
    def reduce(container: Any, around: ObjectGraph) -> Any:
        arguments = (container.ref_type,) if hasattr(container, "ref_type") else ()
        extra = {k: v for k, v in vars(container).items() if k not in _BOOKKEEPING}
        state = (filled(container, around), extra)
        made = (type(container), base, arguments)
        return remade.weak_container, made, state, None, None, remade.fill_weak_container

    return reduce


def _kept_pairs(weak: int) -> Any:
    """Pairs of a mapping that refers weakly to one part of each: its keys (0) or values (1)."""
    return lambda mapping, around: [
        pair for pair in list(mapping.items()) if around.keeps(pair[weak])
    ]


def _kept_members(members: Any, around: ObjectGraph) -> list[Any]:
    kept = [member for member in list(members) if around.keeps(member)]
    return around.ordered(kept) or kept


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
"""Rows for weak references and what holds them."""


def _barrier(barrier: Any, around: ObjectGraph) -> Any:
    return remade.fresh_barrier, (barrier.parties, barrier._action, barrier._timeout)


def _executor(pool: Any, around: ObjectGraph) -> Any:
    if pool._work_queue.qsize() or pool._shutdown:
        state = "has been shut down" if pool._shutdown else "has work that waits"
        raise RefusedError(f"a pool of threads that {state} cannot be saved. Remedy: {LEAVE_OUT}")
    name = pool._thread_name_prefix
    name = "" if _COUNTED.fullmatch(name) else name  # it gets one of its own again
    return remade.fresh_executor, (pool._max_workers, name, pool._initializer, pool._initargs)


_COUNTED = re.compile(r"ThreadPoolExecutor-\d+")
"""How a pool is called that nobody named: by the number of such pools in the process."""


def _simple_queue(waiting: Any, around: ObjectGraph) -> Any:
    if not waiting.empty():
        raise RefusedError(
            "a queue.SimpleQueue that holds something cannot be saved, for nothing tells what. "
            "Remedy: empty it, or use a queue.Queue"
        )
    return remade.fresh_simple_queue, ()


def _context_var(variable: Any, around: ObjectGraph) -> Any:
    try:
        default: tuple[Any, ...] = (contextvars.Context().run(variable.get),)
    except LookupError:
        default = ()
    return remade.fresh_context_var, (variable.name, default)


THREADS: tuple[Row, ...] = (
    ReducerRow(
        (type(threading.Lock()),), lambda lock, around: (remade.fresh_lock, ()), by_name=True
    ),
    ReducerRow(
        (type(threading.RLock()),), lambda lock, around: (remade.fresh_rlock, ()), by_name=True
    ),
    ReducerRow(
        (threading.Condition,),
        lambda condition, around: (remade.fresh_condition, (condition._lock,)),
        by_name=True,
    ),
    ReducerRow((threading.Event, threading.Semaphore), by_name=True),
    ReducerRow(
        (threading.BoundedSemaphore,),
        lambda semaphore, around: (remade.fresh_semaphore, (semaphore._initial_value,)),
        by_name=True,
    ),
    ReducerRow((threading.Barrier,), _barrier, by_name=True),
    ReducerRow(
        (threading.local,),
        lambda local, around: (remade.thread_local, (type(local),), dict(vars(local))),
        subclasses=True,
        by_name=True,
    ),
    ReducerRow((ThreadPoolExecutor,), _executor, by_name=True),
    ReducerRow((queue.SimpleQueue,), _simple_queue, by_name=True),
    ReducerRow((contextvars.ContextVar,), _context_var, by_name=True),
)
"""Rows for locks, queues, pools, and what each thread has of its own."""


def _holds(value: object, graph: Graph) -> bool:
    """Whether a Graph is in a container, or in one that is in there."""
    if isinstance(value, dict):
        return _holds(list(value.values()), graph)
    if isinstance(value, (list, tuple)):
        return any(part is graph or _holds(part, graph) for part in value)
    return False


def _overload(operator: Any, around: ObjectGraph) -> Any:
    return remade.operator_of, (*operator._schema.name.split("::"), operator._overloadname)


def _packet(packet: Any, around: ObjectGraph) -> Any:
    return remade.operator_of, tuple(packet._qualified_op_name.split("::"))


def _script_function(function: Any, around: ObjectGraph) -> Any:
    return Packaged(load_script_module, (around.attach(script_bytes(function)),))


def _graph(graph: Any, around: ObjectGraph) -> Any:
    function, arguments, state, *rest = graph.__reduce_ex__(2)
    made = state.get("_co_fields") if isinstance(state, dict) else None
    if isinstance(made, dict) and isinstance(made.get("co_filename"), str):
        place = portable_path(made["co_filename"])
        state = {**state, "_co_fields": {**made, "co_filename": place}}
    owner = graph.owning_module
    if owner is not None and _holds(vars(owner), graph):  # it is made after what it holds
        state = {**state, "_owning_module": None}
    return function, arguments, state, *rest


def _compiling(box: Any, around: ObjectGraph) -> Any:
    """What torch.compile notes down while it compiles."""
    return type(box), ()


def _compiler(context: Any, around: ObjectGraph) -> Any:
    """What calls compiled code; it has a copy of all settings, of which some are folders here."""
    made, arguments, state = context.__reduce__()
    settings = state.get("compiler_config")
    if isinstance(settings, dict):
        kept = {
            name: value
            for name, value in settings.items()
            if not (isinstance(value, str) and PurePath(value).is_absolute())
        }
        state = {**state, "compiler_config": kept}
    return made, arguments, state


def _program(program: Any, around: ObjectGraph) -> Any:
    return Packaged(remade.exported_program, (around.attach(program_bytes(program)),))


TORCH: tuple[Row, ...] = (
    ReducerRow((torch.Generator,), by_name=True),
    ReducerRow(
        (torch.memory_format,),
        lambda constant, around: (getattr, (torch, str(constant).rpartition(".")[2])),
    ),
    ReducerRow(
        (torch.finfo, torch.iinfo), lambda info, around: (type(info), (getattr(torch, info.dtype),))
    ),
    ReducerRow(("torch._ops.OpOverload",), _overload, subclasses=True),
    ReducerRow(("torch._ops.OpOverloadPacket",), _packet, subclasses=True),
    ReducerRow(
        ("torch._ops._OpNamespace",),
        lambda namespace, around: (remade.operator_of, (namespace.name,)),
    ),
    ReducerRow((torch.jit.ScriptFunction,), _script_function, by_name=True),
    ReducerRow(("torch.export.exported_program.ExportedProgram",), _program),
    ReducerRow(("torch.fx.graph.Graph",), _graph),
    ReducerRow(("torch._dynamo.convert_frame.ConvertFrameBox",), _compiling),
    ReducerRow(("torch._dynamo.eval_frame.OptimizeContext",), _compiler),
)
"""Rows for torch."""


ALL_ROWS: tuple[Row, ...] = (*THREADS, *WEAK, *STANDARD, *TORCH, *REFUSED)
"""Every row, in the order of the documentation."""

ROWS = ReducerTable(ALL_ROWS)
"""Finds the row of a type."""


def reduced_by(row: Row, obj: Any, around: ObjectGraph, plain: Callable[[Any], Any]) -> Any:
    """Reduce an object as its row tells.

    Args:
        row: the row of its type.
        obj: the object.
        around: the graph that it is saved in.
        plain: reduces it as pickle does, for rows that leave it to that.

    Raises:
        RefusedError: it means nothing outside of this process.
    """
    if row.by_name and (named := _by_name(obj, around)) is not None:
        return named
    if isinstance(row, UnsupportedType):
        kind = type(obj)
        raise RefusedError(
            f"{row.what} ({kind.__module__}.{kind.__qualname__}) cannot be saved: {row.why}. "
            f"Remedy: {row.remedy}"
        )
    if row.reduce is None:
        return plain(obj)
    reduced = row.reduce(obj, around)
    return (remade.the_same, (reduced,)) if isinstance(reduced, Packaged) else reduced


def reduce_constant(obj: Any, reduced: Any, around: ObjectGraph) -> Any:
    """Reduce an object without any state to its name, if a module holds it under one."""
    return (_by_name(obj, around) if is_empty(reduced) else None) or reduced


def is_empty(reduced: Any) -> bool:
    """Whether a reduction tells of a class only, and of nothing that its object holds."""
    if not isinstance(reduced, tuple) or len(reduced) < 2 or len(reduced[1]) != 1:
        return False
    return reduced[0].__name__ == "__newobj__" and not any(reduced[2:])


def _by_name(obj: Any, around: ObjectGraph) -> Any:
    held = around.held_by_module(obj)
    return None if held is None else (getattr, held)


def reduce_stream(obj: object) -> Any:
    """Reduce a standard stream of this process to its name; None for any other object."""
    for name in _STREAMS:
        stream = getattr(sys, name, None)
        if stream is not None and obj is stream:
            return remade.standard_stream, (name, False)
        if stream is not None and obj is getattr(stream, "buffer", None):
            return remade.standard_stream, (name, True)
    return None


def is_kind_of_stream(kind: type) -> bool:
    """Whether one of the standard streams is of a type."""
    streams = [getattr(sys, name, None) for name in _STREAMS]
    return any(kind in (type(s), type(getattr(s, "buffer", None))) for s in streams if s)


BOUND = "pybind11_builtins"
"""What the types of such owners say that they are from."""

_PROTOCOL = 3
_IMPORT = re.compile(r"__import__\('importlib'\)\.import_module\('([\w.]+)'\)")


def reduce_bound(owner: Any) -> Any:
    """The module in place of the owner of its functions; pickles must not need ``eval``.

    Python reaches a function of pybind11, such as those of ``torch._C``, as an attribute of an
    owner that is no module. The owner's own reduction is a text for ``eval`` that imports the
    module; what it stands for is the module.
    """
    reduced = owner.__reduce_ex__(_PROTOCOL)
    function, arguments = reduced[:2]
    found = _IMPORT.fullmatch(str(*arguments)) if function is eval else None
    return reduced if found is None else (remade.the_same, (ModuleNamed(found[1]),))


_MADE_BY_TORCH = "GraphModuleImpl"
"""The class that torch makes for each GraphModule, so that each can have a forward of its own."""


class GraphModules:
    """Reduces those GraphModules of one pickle of which torch would lose something.

    torch saves the code of a GraphModule and traces that again when it is loaded. That makes a
    plain GraphModule of what was of a derived class; and a Graph in one of its attributes leads
    back to the module, which does not exist yet at that time.
    """

    def __init__(self) -> None:
        self._plain: dict[int, tuple[Graph, GraphModule]] = {}

    def reduction(self, module: object) -> tuple[Any, ...] | None:
        """A function of :mod:`.remade` with its arguments; None for what torch does well.

        Args:
            module: anything that packages itself.
        """
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
        """A module that torch saves in place of a Graph; it holds the same modules and tensors."""
        if id(graph) not in self._plain:
            # A copy of the Graph: the live one must not get another owner.
            self._plain[id(graph)] = (graph, GraphModule(module, copy.deepcopy(graph)))
        return self._plain[id(graph)][1]
