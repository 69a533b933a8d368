"""Special objects: how each type that plain pickle refuses, or gets wrong, is reduced.

One row for each type; docs/reference/objects.md tells what comes back. Locks and pools come back
fresh, for the threads that hold them stay behind. A weak reference keeps nothing alive, neither
here nor in a package: what is reached by weak references only is not saved, for nobody would keep
it after loading, and the references come back dead.
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
from modpack.pickling.unsupported import REFUSED

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


_ordered = collections.OrderedDict[str, int]()

STANDARD: tuple[Row, ...] = (
    Substitute((logging.Logger, logging.RootLogger), _logger, subclasses=True),
    Substitute((logging.Handler,), _handler, subclasses=True, by_name=True),
    Substitute((type({}.keys()), type(_ordered.keys())), _dict_view(dict.keys)),
    Substitute((type({}.values()), type(_ordered.values())), _dict_view(dict.values)),
    Substitute((type({}.items()), type(_ordered.items())), _dict_view(dict.items)),
    Substitute(
        (types.MappingProxyType,),
        lambda proxy, around: (remade.mapping_proxy, (remade.only_referent(proxy),)),
    ),
    Substitute((memoryview,), _memory_view),
    Substitute((property,), _property, subclasses=True),
    Substitute(
        (staticmethod, classmethod), lambda wrapper, around: (type(wrapper), (wrapper.__func__,))
    ),
    Substitute((type(functools.lru_cache(len)),), _cached),
    Substitute(
        (contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager),
        _manager,
        subclasses=True,
    ),
    Substitute((types.GetSetDescriptorType,), _descriptor),
    Substitute((super,), _super),
    Substitute(("_struct.Struct",), lambda layout, around: (type(layout), (layout.format,))),
    Substitute((random.SystemRandom,), lambda source, around: (type(source), ())),
    Substitute((typing.TypeVar,), _type_var),
    Substitute((typing.ParamSpec,), _param_spec),
    Substitute((typing.NewType,), _new_type),
    Substitute(
        (typing.ForwardRef,), lambda ref, around: (remade.forward_ref, (ref.__forward_arg__,))
    ),
    Substitute(("dataclasses._FIELD_BASE",), subclasses=True, by_name=True),
)
"""Rows for the standard library."""


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


WEAK: tuple[Row, ...] = (
    Substitute((weakref.ref,), _reference, subclasses=True, by_name=True),
    Substitute((weakref.WeakMethod,), _method),
    Substitute((weakref.ProxyType, weakref.CallableProxyType), _proxy),
    Substitute(
        (weakref.WeakValueDictionary,),
        _container(weakref.WeakValueDictionary, _kept_values),
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        (weakref.WeakKeyDictionary,),
        _container(weakref.WeakKeyDictionary, _kept_keys),
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        ("torch.utils.weak.WeakIdKeyDictionary",), _id_dictionary, subclasses=True, by_name=True
    ),
    Substitute(
        (weakref.WeakSet,),
        _container(weakref.WeakSet, _kept_members),
        subclasses=True,
        by_name=True,
    ),
    Substitute((weakref.finalize,)),
)
"""Rows for weak references and what holds them."""


def _barrier(barrier: Any, around: Surroundings) -> Any:
    return remade.fresh_barrier, (barrier.parties, barrier._action, barrier._timeout)


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


THREADS: tuple[Row, ...] = (
    Substitute(
        (type(threading.Lock()),), lambda lock, around: (remade.fresh_lock, ()), by_name=True
    ),
    Substitute(
        (type(threading.RLock()),), lambda lock, around: (remade.fresh_rlock, ()), by_name=True
    ),
    Substitute(
        (threading.Condition,),
        lambda condition, around: (remade.fresh_condition, (condition._lock,)),
        by_name=True,
    ),
    Substitute((threading.Event, threading.Semaphore), by_name=True),
    Substitute(
        (threading.BoundedSemaphore,),
        lambda semaphore, around: (remade.fresh_semaphore, (semaphore._initial_value,)),
        by_name=True,
    ),
    Substitute((threading.Barrier,), _barrier, by_name=True),
    Substitute(
        (threading.local,),
        lambda local, around: (remade.thread_local, (type(local),), dict(vars(local))),
        subclasses=True,
        by_name=True,
    ),
    Substitute((ThreadPoolExecutor,), _executor, by_name=True),
    Substitute((queue.SimpleQueue,), _simple_queue, by_name=True),
    Substitute((contextvars.ContextVar,), _context_var, by_name=True),
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
        kind = type(obj)
        raise RefusedError(
            f"{row.what} ({kind.__module__}.{kind.__qualname__}) cannot be saved: {row.why}. "
            f"Remedy: {row.remedy}"
        )
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
