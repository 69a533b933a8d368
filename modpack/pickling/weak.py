"""Weak references: to the same object of the same graph, or to nothing.

A weak reference keeps nothing alive, neither here nor in a package: what is reached by weak
references only is not saved, and they come back dead. Saving it would change nothing, for
nobody would keep it after loading, and it would take along whatever it holds.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from modpack.pickling import remade
from modpack.pickling.rows import RefusedError, Row, Substitute, Surroundings

__all__ = ["WEAK"]

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
