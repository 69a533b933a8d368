"""The modules of an object that was loaded, and the ids of the hooks that came in their state.

Every load imports this module, few the other ones of this room.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import (
    AsyncGeneratorType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

HOOK_TABLES = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)
"""The attributes of a module that have its hooks by their ids. :data:`.KINDS` knows more of them,
and takes a while to import, which the first load of a process need not pay."""
_CLOSED = (
    ModuleType,
    FrameType,
    TracebackType,
    GeneratorType,
    CoroutineType,
    AsyncGeneratorType,
    FunctionType,
    type,
)
"""Through these one gets to everything in the process; of the last two, a part is looked at."""


def modules_in(root: object) -> Iterator[torch.nn.Module]:
    """Every torch module that an object holds at any depth, each once."""
    return instances_in(root, (torch.nn.Module,))  # type: ignore[return-value]


def instances_in(root: object, wanted: tuple[type, ...]) -> Iterator[object]:
    """Every object of some types that an object holds at any depth, each once.

    Python's collector knows what objects hold. It is asked for a whole level at once: that runs
    none of their code, and takes 0.2 microseconds an object: a model may have 20,000 parameters.
    """
    seen: dict[int, object] = {}
    reached: list[object] = [root]
    while reached:
        fresh = {id(each): each for each in reached}
        for known in fresh.keys() & seen.keys():
            del fresh[known]
        seen.update(fresh)
        kinds = {type(each) for each in fresh.values()}
        found = {kind for kind in kinds if issubclass(kind, wanted)}
        if found:
            yield from (each for each in fresh.values() if type(each) in found)
        closed = {kind for kind in kinds if issubclass(kind, _CLOSED)}
        reached = gc.get_referents(*(each for each in fresh.values() if type(each) not in closed))
        if closed:
            ajar = (each for each in fresh.values() if type(each) in closed)
            reached += (part for each in ajar for part in _parts(each))


def _parts(closed: object) -> tuple[object, ...]:
    """What a function has of its own, and a class that travels along because it has no module."""
    if isinstance(closed, FunctionType):
        return (closed.__closure__, closed.__defaults__, closed.__kwdefaults__, closed.__dict__)
    if isinstance(closed, type) and "<locals>" in closed.__qualname__:
        return (*vars(closed).values(), *closed.__bases__)
    return ()


def reserve_ids(obj: Any) -> None:
    """Keep torch from giving ids again that hooks in loaded modules have.

    A package of torch.package brings hooks in the modules' state, with the ids that they had
    where it was written, while torch counts from 0 in a new process: the next hook that is
    registered would overwrite one of them.
    """
    for part in modules_in(obj):
        for table in HOOK_TABLES:
            for identity in getattr(part, table, None) or ():
                RemovableHandle.next_id = max(RemovableHandle.next_id, identity + 1)
