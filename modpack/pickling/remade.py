"""Making special objects again: what pickles in packages call in their place."""

from __future__ import annotations

import io
import logging
import sys
import threading
import typing
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import lru_cache
from types import CellType, MappingProxyType, MethodType
from typing import Any

import torch

from modpack.pickling.rebuild import named_in_packages


@named_in_packages
def the_same(obj: Any) -> Any:
    """What a persistent id stands for, as the value of a call."""
    return obj


@named_in_packages
def fill_cell(cell: CellType, contents: tuple[Any]) -> None:
    """Fill a closure's cell that is saved without a function that it belongs to."""
    (cell.cell_contents,) = contents


@named_in_packages
def set_state(obj: Any, state: Any) -> None:
    """Set an object's attributes without asking the object.

    For classes whose ``__getattr__`` forwards to an attribute: pickle's own way looks for
    ``__setstate__`` on the object while it has none yet, and never comes back.
    """
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        object.__getattribute__(obj, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(obj, name, value)


@named_in_packages
def fresh_lock() -> Any:
    """A lock that nobody holds."""
    return threading.Lock()


@named_in_packages
def fresh_rlock() -> Any:
    """A reentrant lock that nobody holds."""
    return threading.RLock()


@named_in_packages
def fresh_condition(lock: Any) -> threading.Condition:
    """A condition of a lock, on which nobody waits."""
    return threading.Condition(lock)


@named_in_packages
def fresh_semaphore(value: int) -> threading.BoundedSemaphore:
    """A bounded semaphore of which nobody holds anything."""
    return threading.BoundedSemaphore(value)


@named_in_packages
def fresh_barrier(parties: int, action: Any, timeout: float | None) -> threading.Barrier:
    """A barrier at which nobody waits."""
    return threading.Barrier(parties, action, timeout)


@named_in_packages
def thread_local(kind: Any) -> Any:
    """A thread's own data; what comes as its state is the loading thread's."""
    return kind.__new__(kind)


@named_in_packages
def fresh_executor(workers: int, prefix: str, initializer: Any, initargs: Any) -> Any:
    """A pool that has not started its threads."""
    return ThreadPoolExecutor(workers, prefix, initializer, initargs)


@named_in_packages
def fresh_simple_queue() -> Any:
    """An empty queue."""
    import queue

    return queue.SimpleQueue()


@named_in_packages
def fresh_context_var(name: str, default: tuple[Any, ...]) -> ContextVar[Any]:
    """A context variable that was not set yet.

    Args:
        name: its name.
        default: its default, if it has one.
    """
    return ContextVar(name, default=default[0]) if default else ContextVar(name)


class _Gone:
    """What dead references referred to."""


@named_in_packages
def referent_of(referent: tuple[Any, ...]) -> Any:
    """The only item, or something that is gone as soon as it has been referred to."""
    return referent[0] if referent else _Gone()


@named_in_packages
def weak_reference(kind: type, referent: tuple[Any, ...], callback: Any) -> Any:
    """A weak reference.

    Args:
        kind: :class:`weakref.ref`, or a class derived from it.
        referent: what it refers to; nothing for a dead reference.
        callback: called when the referent goes, or None.
    """
    target = referent_of(referent)
    return kind(target) if callback is None else kind(target, callback)


@named_in_packages
def weak_proxy(referent: tuple[Any, ...], callback: Any) -> Any:
    """A weak proxy; see :func:`weak_reference`."""
    return weakref.proxy(referent_of(referent), callback)


@named_in_packages
def weak_method(referent: tuple[Any, ...], function: Any) -> Any:
    """A weak reference to a bound method; dead without an object."""
    return weakref.WeakMethod(MethodType(function, referent_of(referent)))


@named_in_packages
def weak_container(kind: Any, base: Any, arguments: tuple[Any, ...]) -> Any:
    """An empty container of weak references.

    Args:
        kind: its class.
        base: the class of :mod:`weakref` or torch that it is, or is derived from.
        arguments: which type of references it makes, where that can be chosen.
    """
    made = kind.__new__(kind)
    base.__init__(made, **dict(zip(("ref_type",), arguments, strict=False)))
    return made


@named_in_packages
def fill_weak_container(container: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """Fill a container of weak references: its members, or pairs, and its attributes."""
    members, attributes = state
    vars(container).update(attributes)
    for member in members:
        if isinstance(container, weakref.WeakSet):
            container.add(member)
        else:
            container[member[0]] = member[1]


@named_in_packages
def mapping_proxy(mapping: Any) -> Any:
    """A view of a mapping that cannot be written through."""
    return MappingProxyType(mapping)


@named_in_packages
def memory_view(base: Any, layout: str, shape: list[int], readonly: bool) -> memoryview:
    """A view of all the bytes of an object.

    Args:
        base: bytes, a bytearray, an array, ...
        layout: the format of an item; see :mod:`struct`.
        shape: in items.
        readonly: whether it cannot be written through.
    """
    view = memoryview(base)
    if (view.format, list(view.shape or ())) != (layout, shape):
        view = view.cast("B").cast(layout, shape)  # type: ignore[call-overload]
    return view.toreadonly() if readonly and not view.readonly else view


@named_in_packages
def lru_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    """A function behind an empty cache."""
    return lru_cache(maxsize=maxsize, typed=typed)(function)


@named_in_packages
def property_of(kind: type, getter: Any, setter: Any, deleter: Any, doc: str | None) -> Any:
    """A property."""
    return kind(getter, setter, deleter, doc)


@named_in_packages
def resumed_manager(kind: type, function: Any, arguments: Any, keywords: Any) -> Any:
    """A context manager made from a generator function, not entered yet."""
    return kind(function, arguments, keywords)


@named_in_packages
def named_logger(package: Any, name: str) -> logging.Logger:
    """A logger: the one that the package's code has made under that name, or the process's.

    Args:
        package: the loading side; in a private namespace, code that logs under ``__name__``
            has a logger below the namespace's name.
        name: the logger's name, as it was where it was saved.
    """
    namespace = getattr(package, "id", None)
    private = f"{namespace()}.{name}" if callable(namespace) else name
    known = logging.getLogger().manager.loggerDict.get(private)
    return known if isinstance(known, logging.Logger) else logging.getLogger(name)


@named_in_packages
def registered_handler(kind: Any) -> Any:
    """A logging handler that is flushed when the process ends, as all handlers are."""
    if not issubclass(kind, logging.Handler):
        raise TypeError(f"{kind!r} is no logging handler")
    handler: logging.Handler = kind.__new__(kind)
    logging._addHandlerRef(handler)  # type: ignore[attr-defined]
    return handler


@named_in_packages
def standard_stream(name: str, buffer: bool) -> Any:
    """A standard stream of this process: ``"stdout"``, or its buffer."""
    if name.strip("_") not in ("stdin", "stdout", "stderr"):
        raise ValueError(f"{name!r} is no standard stream")
    stream = getattr(sys, name)
    return stream.buffer if buffer else stream


@named_in_packages
def type_parameter(kind: Any, name: str, module: str, args: Any, keywords: dict[str, Any]) -> Any:
    """A TypeVar or a ParamSpec."""
    made = kind(name, *args, **keywords)
    made.__module__ = module
    return made


@named_in_packages
def new_type(name: str, qualname: str, module: str, base: Any) -> Any:
    """What :func:`typing.NewType` returns."""
    made: Any = typing.NewType(name, base)  # type: ignore[misc]
    made.__qualname__, made.__module__ = qualname, module
    return made


@named_in_packages
def forward_ref(text: str) -> typing.ForwardRef:
    """A name in an annotation that is looked up later."""
    return typing.ForwardRef(text)


@named_in_packages
def operator_of(*path: str) -> Any:
    """An operator of torch, or one that a module has registered: ``torch.ops`` and a path.

    Raises:
        AttributeError: it is not registered in this process.
    """
    found: Any = torch.ops
    for part in path:
        found = getattr(found, part)
    return found


@named_in_packages
def exported_program(importer: Any, record: str) -> Any:
    """Load an exported program from a record of a package."""
    return torch.export.load(io.BytesIO(importer.zip_reader.get_record(record)))


@named_in_packages
def graph_module(
    importer: Any, kind: Any, name: str, graphs: dict[str, Any], state: dict[str, Any]
) -> Any:
    """Make a GraphModule of a derived class, or one with several Graphs.

    Args:
        importer: the package.
        kind: its class.
        name: what the class that torch makes for it is called.
        graphs: a plain GraphModule for each of its Graphs, by attribute.
        state: its other attributes.
    """
    made = kind.__new__(kind)
    type(made).__name__ = name
    made.__dict__.update(state)
    for attribute, plain in graphs.items():
        plain.graph.owning_module = made
        made.__dict__[attribute] = plain.graph
    made.recompile()
    return made
