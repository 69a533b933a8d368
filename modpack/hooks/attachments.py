"""Specs for what was attached: one for all the module hooks that carry it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING

from modpack.core.hookspec import HookSpec
from modpack.errors import ModpackError
from modpack.hooks.graphparts import Attachment, OnGraph, Part
from modpack.hooks.naming import Names
from modpack.hooks.state import describe_hook

if TYPE_CHECKING:
    from modpack.hooks.collect import Collected

__all__ = ["attachment_specs", "is_silent"]


def is_silent(hook: object) -> bool:
    """Whether a hook is only a trace of an attachment: on an old graph, or removed."""
    return isinstance(hook, OnGraph) or (isinstance(hook, Part) and hook.attachment.removed)


def attachment_specs(
    collected: Sequence[Collected], names: Names, is_importable: Callable[[FunctionType], bool]
) -> dict[int, HookSpec]:
    """The specs of all attachments whose parts were noted, by the id of each part.

    Raises:
        ModpackError: parts of an attachment hang on modules that are not saved.
    """
    groups: dict[int, list[Collected]] = {}
    for each in collected:
        if isinstance(each.found.hook, Part):
            groups.setdefault(id(each.found.hook.attachment), []).append(each)
    specs: dict[int, HookSpec] = {}
    known: dict[tuple[str, ...], int] = {}
    for parts in groups.values():
        attachment = parts[0].found.hook.attachment
        target, aliases = names.of(_target(parts))
        place = (attachment.spec.kind, *target)
        spec = _spec(attachment, target, aliases, known.get(place, 0), parts, is_importable)
        _refuse_incomplete(attachment, parts, spec.name)
        known[place] = spec.position + 1
        specs.update({id(part.found.hook): spec for part in parts})
    return specs


def _target(parts: list[Collected]) -> object:
    """The modules that the attachment's spec names, in its order; a single one by itself."""
    named = [part for part in parts if part.found.hook.path is not None]
    modules = [part.target for part in sorted(named, key=lambda part: part.found.hook.index)]
    return modules[0] if len(modules) == 1 else modules


def _spec(
    attachment: Attachment,
    target: tuple[str, ...],
    aliases: tuple[str, ...],
    position: int,
    parts: list[Collected],
    is_importable: Callable[[FunctionType], bool],
) -> HookSpec:
    kind = attachment.spec.kind
    return HookSpec(
        name=Names.hook_name(target, kind, position),
        kind=kind,
        target=target,
        position=position,
        callable=describe_hook(parts[0].found.hook, is_importable),
        aliases=aliases,
        flags=attachment.spec.flags,
    )


def _refuse_incomplete(attachment: Attachment, parts: list[Collected], name: str) -> None:
    if len(parts) < attachment.size:
        raise ModpackError(
            f"hook {name!r} was attached to a model of which only a part is saved: it hangs on "
            "modules that are not in this package. Remedy: save the model that it was attached "
            "to, or remove it by its handle first"
        )
