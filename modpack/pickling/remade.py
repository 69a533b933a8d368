"""Rebuild functions: what pickles in packages call to re-create special objects."""

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
    """Return the argument: turns a persistent id into the result of a call."""
    return obj


@named_in_packages
def fill_cell(cell: CellType, contents: tuple[Any]) -> None:
    """Fill a closure cell that is saved without its function."""
    (cell.cell_contents,) = contents


@named_in_packages
def set_state(obj: Any, state: Any) -> None:
    """Set an object's attributes without calling its methods.

    For classes whose ``__getattr__`` forwards to an attribute: pickle looks up ``__setstate__`` on
    the object while it has no attributes yet, which recurses endlessly.
    """
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        object.__getattribute__(obj, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(obj, name, value)


@named_in_packages
def fresh_lock() -> Any:
    """Return an unlocked lock."""
    return threading.Lock()


@named_in_packages
def fresh_rlock() -> Any:
    """Return an unlocked reentrant lock."""
    return threading.RLock()


@named_in_packages
def fresh_condition(lock: Any) -> threading.Condition:
    """Return a condition of a lock, without waiters."""
    return threading.Condition(lock)


@named_in_packages
def fresh_semaphore(value: int) -> threading.BoundedSemaphore:
    """Return a bounded semaphore that is not acquired."""
    return threading.BoundedSemaphore(value)


@named_in_packages
def thread_local(kind: Any) -> Any:
    """Return a thread-local object; its state is set for the loading thread only."""
    return kind.__new__(kind)


@named_in_packages
def fresh_executor(workers: int, prefix: str, initializer: Any, initargs: Any) -> Any:
    """Return a thread pool without running threads."""
    return ThreadPoolExecutor(workers, prefix, initializer, initargs)


@named_in_packages
def fresh_context_var(name: str, default: tuple[Any, ...]) -> ContextVar[Any]:
    """Return a context variable without a value.

    Args:
        name: Its name.
        default: A tuple with its default, or an empty tuple.
    """
    return ContextVar(name, default=default[0]) if default else ContextVar(name)


class _Gone:
    """A referent for dead references."""


@named_in_packages
def referent_of(referent: tuple[Any, ...]) -> Any:
    """Return the only item, or an object that dies as soon as it has been referenced."""
    return referent[0] if referent else _Gone()


@named_in_packages
def weak_reference(kind: type, referent: tuple[Any, ...], callback: Any) -> Any:
    """Return a weak reference.

    Args:
        kind: :class:`weakref.ref` or a class derived from it.
        referent: A tuple with its referent; empty for a dead reference.
        callback: Called when the referent dies, or None.
    """
    target = referent_of(referent)
    return kind(target) if callback is None else kind(target, callback)


@named_in_packages
def weak_proxy(referent: tuple[Any, ...], callback: Any) -> Any:
    """Return a weak proxy; see :func:`weak_reference`."""
    return weakref.proxy(referent_of(referent), callback)


@named_in_packages
def weak_method(referent: tuple[Any, ...], function: Any) -> Any:
    """Return a weak reference to a bound method; dead without an object."""
    return weakref.WeakMethod(MethodType(function, referent_of(referent)))


@named_in_packages
def weak_container(kind: Any, base: Any, arguments: tuple[Any, ...]) -> Any:
    """Return an empty container of weak references.

    Args:
        kind: Its class.
        base: The class of :mod:`weakref` or torch that it is or derives from.
        arguments: The type of its references, if the class lets the caller choose.
    """
    made = kind.__new__(kind)
    base.__init__(made, **dict(zip(("ref_type",), arguments, strict=False)))
    return made


@named_in_packages
def fill_weak_container(container: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """Add the members or pairs of a container of weak references, and set its attributes."""
    members, attributes = state
    vars(container).update(attributes)
    for member in members:
        if isinstance(container, weakref.WeakSet):
            container.add(member)
        else:
            container[member[0]] = member[1]


@named_in_packages
def mapping_proxy(mapping: Any) -> Any:
    """Return a read-only view of a mapping."""
    return MappingProxyType(mapping)


@named_in_packages
def lru_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    """Wrap a function in an empty cache."""
    return lru_cache(maxsize=maxsize, typed=typed)(function)


@named_in_packages
def property_of(kind: type, getter: Any, setter: Any, deleter: Any, doc: str | None) -> Any:
    """Return a property."""
    return kind(getter, setter, deleter, doc)


@named_in_packages
def named_logger(package: Any, name: str) -> logging.Logger:
    """Return the logger that the package's code created under a name, or the process's logger.

    Args:
        package: The importer. In a private namespace, code that logs under ``__name__`` has a
            logger below the namespace's name.
        name: The logger's name in the export environment.
    """
    namespace = getattr(package, "id", None)
    private = f"{namespace()}.{name}" if callable(namespace) else name
    # Not getLogger, which would create the logger. The dict also has placeholders for parents.
    known = logging.getLogger().manager.loggerDict.get(private)
    return known if isinstance(known, logging.Logger) else logging.getLogger(name)


@named_in_packages
def registered_handler(kind: Any) -> Any:
    """Return a logging handler that is flushed at exit, as all handlers are."""
    if not issubclass(kind, logging.Handler):
        raise TypeError(f"{kind!r} is not a logging handler")
    handler: logging.Handler = kind.__new__(kind)
    # As `__init__` does, which is not called. `logging.shutdown` flushes these handlers.
    logging._addHandlerRef(handler)  # type: ignore[attr-defined]
    return handler


@named_in_packages
def standard_stream(name: str, buffer: bool) -> Any:
    """Return a standard stream of this process, such as ``"stdout"``, or its buffer."""
    if name.strip("_") not in ("stdin", "stdout", "stderr"):
        raise ValueError(f"{name!r} is not a standard stream")
    stream = getattr(sys, name)
    return stream.buffer if buffer else stream


@named_in_packages
def type_parameter(kind: Any, name: str, module: str, args: Any, keywords: dict[str, Any]) -> Any:
    """Return a TypeVar or a ParamSpec."""
    made = kind(name, *args, **keywords)
    made.__module__ = module
    return made


@named_in_packages
def new_type(name: str, qualname: str, module: str, base: Any) -> Any:
    """Return a type created by :func:`typing.NewType`."""
    made: Any = typing.NewType(name, base)  # type: ignore[misc]
    made.__qualname__, made.__module__ = qualname, module
    return made


@named_in_packages
def forward_ref(text: str) -> typing.ForwardRef:
    """Return a forward reference in an annotation."""
    return typing.ForwardRef(text)


@named_in_packages
def operator_of(*path: str) -> Any:
    """Return a torch operator by its path in ``torch.ops``.

    Raises:
        AttributeError: If it is not registered in this process.
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
    """Return a GraphModule of a derived class, or one with several Graphs.

    Args:
        importer: The package's importer.
        kind: Its class.
        name: The name of the class that torch creates for it.
        graphs: A plain GraphModule for each of its Graphs, by attribute.
        state: Its other attributes.
    """
    made = kind.__new__(kind)
    # GraphModule creates a class for each object, so that this renames no other one.
    type(made).__name__ = name
    made.__dict__.update(state)
    for attribute, plain in graphs.items():
        plain.graph.owning_module = made
        made.__dict__[attribute] = plain.graph
    made.recompile()
    return made


@named_in_packages
def load_script_module(importer: Any, record: str) -> torch.jit.ScriptModule:
    """Load a ScriptModule from a record of a package.

    importer: The package's importer, with ``zip_reader`` and ``last_map_location``.
    record: The record with the output of torch.jit.save.
    """
    buffer = io.BytesIO(importer.zip_reader.get_record(record))
    loaded = torch.jit.load(buffer, map_location=importer.last_map_location)  # type: ignore[no-untyped-call]
    return loaded  # type: ignore[no-any-return]
