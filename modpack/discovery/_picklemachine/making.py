"""Functions that make, return or fill something and call nothing that they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modpack.discovery._picklemachine.compiled import has_options
from modpack.discovery._picklemachine.reach import require_callable
from modpack.discovery._picklemachine.values import (
    OPAQUE,
    Arguments,
    Made,
    Named,
    Recorder,
    Value,
    shown,
)
from modpack.discovery.pickledvalues import FlawKind

__all__ = [
    "encode",
    "filling",
    "first_again",
    "getitem",
    "kept",
    "one_argument",
    "only_item",
    "wrapping",
]


def kept(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """What is made depends on the arguments."""
    return Made(called, arguments)


def one_argument(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``type`` and ``iter``, which do something else with more arguments."""
    if arguments is None or len(arguments) != 1:
        to.flaw(FlawKind.CALLS, f"it calls {called} with other than one argument")
    return Made(called, None)


def getitem(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``getitem(List, int)`` is how generic types are pickled; else it might call anything."""
    if not arguments or not isinstance(arguments[0], Named):
        to.flaw(FlawKind.CALLS, f"it calls {called} for something else than a type")
    return Made(called, None)


def encode(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``_codecs.encode(text, "latin1")`` is how old protocols spell bytes."""
    if arguments is None or len(arguments) != 2 or arguments[1] not in ("latin1", "utf-8"):
        to.flaw(FlawKind.CALLS, f"it calls {called} for something else than bytes")
    return OPAQUE


def wrapping(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """Properties and the like, which call what they are given when an attribute is taken."""
    if arguments is None:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
    for each in arguments or ():
        require_callable(to, each, f"in a {called.name}")
    return Made(called, arguments)


def only_item(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``referent_of((referent,))``."""
    given = arguments[0] if arguments else None
    if not isinstance(given, tuple) or len(given) > 1:
        to.flaw(FlawKind.UNRESOLVED, f"it is not known what {called} returns")
        return OPAQUE
    return given[0] if given else OPAQUE


def first_again(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """Functions that return their first argument."""
    return arguments[0] if arguments else OPAQUE


_FILLED_BY: Final[Mapping[str, frozenset[str]]] = {
    "_set_obj_state": frozenset(),
    "fill_cell": frozenset({"make_cell"}),
    "fill_class": frozenset({"make_class", "make_enum", "make_named_tuple", "make_typed_dict"}),
    "fill_function": frozenset({"make_function"}),
    "fill_parametrized": frozenset(),
    "fill_weak_container": frozenset({"weak_container"}),
    "set_state": frozenset(),
}


def filling(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """Functions that fill what another one has made, and must not be given anything else."""
    target = arguments[0] if arguments else OPAQUE
    makers = _FILLED_BY[called.name]
    is_made = isinstance(target, Made) and (not makers or target.by.name in makers)
    if not is_made or (isinstance(target, Made) and has_options(target)):
        to.flaw(FlawKind.CHANGES, f"it has {called} change {shown(target)}")
    return OPAQUE
