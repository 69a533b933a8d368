"""What is saved of objects of the standard library that plain pickle refuses.

Weak references: to the same object of the same graph, or to nothing.

A weak reference keeps nothing alive, neither here nor in a package: what is reached by weak
references only is not saved, and they come back dead. Saving it would change nothing, for
nobody would keep it after loading, and it would take along whatever it holds.

What is saved of objects that belong to threads: fresh ones, for the threads stay behind.

All tables of special objects, and what is reduced by them.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
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
from typing import Any

from modpack.pickling import remade
from modpack.pickling.base import (
    BY_NAME,
    LEAVE_OUT,
    Packaged,
    Refusal,
    RefusedError,
    Row,
    Rows,
    Substitute,
    Surroundings,
)
from modpack.pickling.torch_reducers import TORCH
from modpack.pickling.unsupported import REFUSED, refuse

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


_BOOKKEEPING = {"data", "ref_type", "_remove", "_pending_removals", "_iterating", "_dirty_len"}


def _kept(referent: Any, around: Surroundings) -> tuple[Any, ...]:
    return (referent,) if referent is not None and around.keeps(referent) else ()


def _reference(ref: Any, around: Surroundings) -> Any:
    return remade.weak_reference, (type(ref), _kept(ref(), around), ref.__callback__)


def _method(ref: Any, around: Surroundings) -> Any:
    method = ref()
    if method is None or not around.keeps(method.__self__):
        return remade.weak_method, ((), remade.the_same)
    return remade.weak_method, ((method.__self__,), method.__func__)


def _proxy(proxy: Any, around: Surroundings) -> Any:
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
    def reduce(container: Any, around: Surroundings) -> Any:
        arguments = (container.ref_type,) if hasattr(container, "ref_type") else ()
        extra = {k: v for k, v in vars(container).items() if k not in _BOOKKEEPING}
        state = (filled(container, around), extra)
        made = (type(container), base, arguments)
        return remade.weak_container, made, state, None, None, remade.fill_weak_container

    return reduce


def _kept_keys(mapping: Any, around: Surroundings) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in list(mapping.items()) if around.keeps(key)]


def _kept_values(mapping: Any, around: Surroundings) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value in list(mapping.items()) if around.keeps(value)]


def _kept_members(members: Any, around: Surroundings) -> list[Any]:
    kept = [member for member in list(members) if around.keeps(member)]
    return around.ordered(kept) or kept


def _id_dictionary(container: Any, around: Surroundings) -> Any:
    from torch.utils.weak import WeakIdKeyDictionary

    return _container(WeakIdKeyDictionary, _kept_keys)(container, around)


_SAVED = "what it refers to, if something else in the saved object refers to it, too"
_KEPT = "the members that something else in the saved object refers to"
_SAME = "a weak reference to the same object of the loaded ones; else a dead one"

WEAK: tuple[Row, ...] = (
    Substitute(
        "`weakref.ref` and classes derived from it",
        (weakref.ref,),
        _SAVED,
        _SAME,
        _reference,
        subclasses=True,
        by_name=True,
    ),
    Substitute("`weakref.WeakMethod`", (weakref.WeakMethod,), _SAVED, _SAME, _method),
    Substitute(
        "`weakref.proxy`",
        (weakref.ProxyType, weakref.CallableProxyType),
        _SAVED,
        "a proxy of the same object of the loaded ones; else a dead one",
        _proxy,
    ),
    Substitute(
        "`weakref.WeakValueDictionary`",
        (weakref.WeakValueDictionary,),
        _KEPT + ", with their keys",
        "a dictionary of those",
        _container(weakref.WeakValueDictionary, _kept_values),
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "`weakref.WeakKeyDictionary`",
        (weakref.WeakKeyDictionary,),
        _KEPT + ", with their values",
        "a dictionary of those",
        _container(weakref.WeakKeyDictionary, _kept_keys),
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "`torch.utils.weak.WeakIdKeyDictionary`",
        ("torch.utils.weak.WeakIdKeyDictionary",),
        _KEPT + ", with their values",
        "a dictionary of those",
        _id_dictionary,
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "`weakref.WeakSet`",
        (weakref.WeakSet,),
        _KEPT,
        "a set of those",
        _container(weakref.WeakSet, _kept_members),
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "`weakref.finalize`",
        (weakref.finalize,),
        "nothing: it cleans up what belongs to this process",
        "a dead one, which does nothing",
    ),
)
"""Rows for weak references and what holds them."""


def _lock(lock: Any, around: Surroundings) -> Any:
    return remade.fresh_lock, ()


def _rlock(lock: Any, around: Surroundings) -> Any:
    return remade.fresh_rlock, ()


def _condition(condition: Any, around: Surroundings) -> Any:
    return remade.fresh_condition, (condition._lock,)


def _semaphore(semaphore: Any, around: Surroundings) -> Any:
    return remade.fresh_semaphore, (semaphore._initial_value,)


def _barrier(barrier: Any, around: Surroundings) -> Any:
    return remade.fresh_barrier, (barrier.parties, barrier._action, barrier._timeout)


def _local(local: Any, around: Surroundings) -> Any:
    return remade.thread_local, (type(local),), dict(vars(local))


def _executor(pool: Any, around: Surroundings) -> Any:
    if pool._work_queue.qsize() or pool._shutdown:
        state = "has been shut down" if pool._shutdown else "has work that waits"
        raise RefusedError(f"a pool of threads that {state} cannot be saved. Remedy: {LEAVE_OUT}")
    name = pool._thread_name_prefix
    name = "" if _COUNTED.fullmatch(name) else name  # it gets one of its own again
    return remade.fresh_executor, (pool._max_workers, name, pool._initializer, pool._initargs)


_COUNTED = re.compile(r"ThreadPoolExecutor-\d+")
"""How a pool is called that nobody named: by the number of such pools in the process."""


def _simple_queue(waiting: Any, around: Surroundings) -> Any:
    if not waiting.empty():
        raise RefusedError(
            "a queue.SimpleQueue that holds something cannot be saved, for nothing tells what. "
            "Remedy: empty it, or use a queue.Queue"
        )
    return remade.fresh_simple_queue, ()


def _context_var(variable: Any, around: Surroundings) -> Any:
    try:
        default: tuple[Any, ...] = (contextvars.Context().run(variable.get),)
    except LookupError:
        default = ()
    return remade.fresh_context_var, (variable.name, default)


_FRESH = "nothing of its state: the threads that hold it or wait exist in this process only"

THREADS: tuple[Row, ...] = (
    Substitute(
        "`threading.Lock`, held or not",
        (type(threading.Lock()),),
        BY_NAME + _FRESH,
        "a lock that nobody holds",
        _lock,
        by_name=True,
    ),
    Substitute(
        "`threading.RLock`, held or not",
        (type(threading.RLock()),),
        BY_NAME + _FRESH,
        "a lock that nobody holds",
        _rlock,
        by_name=True,
    ),
    Substitute(
        "`threading.Condition`",
        (threading.Condition,),
        BY_NAME + "its lock",
        "a condition of that lock, on which nobody waits",
        _condition,
        by_name=True,
    ),
    Substitute(
        "`threading.Event`, `Semaphore`",
        (threading.Event, threading.Semaphore),
        BY_NAME + "whether it is set, or its counter",
        "the same, on which nobody waits",
        by_name=True,
    ),
    Substitute(
        "`threading.BoundedSemaphore`",
        (threading.BoundedSemaphore,),
        BY_NAME + "its bound",
        "one of which nobody holds anything",
        _semaphore,
        by_name=True,
    ),
    Substitute(
        "`threading.Barrier`",
        (threading.Barrier,),
        BY_NAME + "its parameters",
        "one at which nobody waits",
        _barrier,
        by_name=True,
    ),
    Substitute(
        "`threading.local`",
        (threading.local,),
        BY_NAME + "what the saving thread sees of it",
        "one with these values in the thread that loads it, and without any in others",
        _local,
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "`concurrent.futures.ThreadPoolExecutor` without waiting work",
        (ThreadPoolExecutor,),
        BY_NAME + "its parameters",
        "one that has started no thread yet",
        _executor,
        by_name=True,
    ),
    Substitute(
        "`queue.SimpleQueue`, empty",
        (queue.SimpleQueue,),
        "nothing",
        "an empty one",
        _simple_queue,
        by_name=True,
    ),
    Substitute(
        "`contextvars.ContextVar`",
        (contextvars.ContextVar,),
        BY_NAME + "its name and its default",
        "the variable of that module; else a new one, not set",
        _context_var,
        by_name=True,
    ),
)
"""Rows for locks, queues, pools, and what each thread has of its own."""


ALL_ROWS: tuple[Row, ...] = (*THREADS, *WEAK, *STANDARD, *TORCH, *REFUSED)
"""Every row, in the order of the documentation."""

ROWS = Rows(ALL_ROWS)
"""Finds the row of a type."""


def reduced_by(row: Row, obj: Any, around: Surroundings, plain: Callable[[Any], Any]) -> Any:
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
    if isinstance(row, Refusal):
        return refuse(row, obj)
    if row.reduce is None:
        return plain(obj)
    reduced = row.reduce(obj, around)
    return (remade.the_same, (reduced,)) if isinstance(reduced, Packaged) else reduced


def reduce_constant(obj: Any, reduced: Any, around: Surroundings) -> Any:
    """Reduce an object without any state to its name, if a module holds it under one."""
    return (_by_name(obj, around) if is_empty(reduced) else None) or reduced


def is_empty(reduced: Any) -> bool:
    """Whether a reduction tells of a class only, and of nothing that its object holds."""
    if not isinstance(reduced, tuple) or len(reduced) < 2 or len(reduced[1]) != 1:
        return False
    return reduced[0].__name__ == "__newobj__" and not any(reduced[2:])


def _by_name(obj: Any, around: Surroundings) -> Any:
    held = around.held_by_module(obj)
    return None if held is None else (getattr, held)


def reduce_stream(obj: object) -> Any:
    """Reduce a standard stream of this process to its name; None for any other object."""
    for name in STREAMS:
        stream = getattr(sys, name, None)
        if stream is not None and obj is stream:
            return remade.standard_stream, (name, False)
        if stream is not None and obj is getattr(stream, "buffer", None):
            return remade.standard_stream, (name, True)
    return None


def is_kind_of_stream(kind: type) -> bool:
    """Whether one of the standard streams is of a type."""
    streams = [getattr(sys, name, None) for name in STREAMS]
    return any(kind in (type(s), type(getattr(s, "buffer", None))) for s in streams if s)
