"""Differences between the hooks of two packages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from modpack.core.hookspec import HookSpec
from modpack.report.diff_facts import (
    Change,
    Contents,
    Difference,
    Part,
    changed_fields,
    fields_of,
)
from modpack.report.facts import HookFacts, hook_flags, hook_target
from modpack.report.text_diff import WorkBudget, text_difference

_Key = tuple[str, str, tuple[str, ...], str, int]
"""Saved object, kind, target, name of the function, and index among hooks that share these."""


def compare_hooks(
    before: Sequence[HookFacts], after: Sequence[HookFacts], with_source: bool, effort: WorkBudget
) -> Iterator[Difference]:
    """Yield the hooks that differ.

    Hooks of one kind on one target are the same hook if they call functions of the same name; if
    there are several, in their order.

    Args:
        before: Hooks of the first package.
        after: Hooks of the second package.
        with_source: Whether to compare sources line by line.
        effort: Budget for comparing texts.
    """
    old, new = dict(_keyed(before)), dict(_keyed(after))
    for key in dict.fromkeys([*old, *new]):
        was, now = old.get(key), new.get(key)
        resource, spec = key[0], now or old[key]
        change, contents, text = Change.of(was, now), None, None
        if was is not None and now is not None:
            fields = changed_fields(_hook_fields(was), _hook_fields(now))
            is_same = was.callable.source == now.callable.source
            if is_same and not fields:
                continue
            contents = Contents.SAME if is_same else Contents.DIFFERENT
            old_source, new_source = was.callable.source or "", now.callable.source or ""
            # has_room_for subtracts from the budget, so it comes last below.
            wants_text = with_source and not is_same
            if wants_text and effort.has_room_for(old_source, new_source):
                old_name, new_name = (x.name if x.callable.source else None for x in (was, now))
                text = text_difference(old_source, new_source, old_name, new_name, effort)
        else:
            values = {"kind": spec.kind, "target": hook_target(spec), **_hook_fields(spec)}
            # A hook of one package has no other side, so its source is a value like the others.
            values |= {"source": spec.callable.source, "location": spec.callable.location}
            fields = fields_of(change, values)
        about = f"{spec.kind}: {spec.callable.name}, in {resource}"
        target = hook_target(spec)
        yield Difference(Part.HOOK, target, change, about, fields, contents, text, owner=resource)


def _keyed(hooks: Sequence[HookFacts]) -> Iterator[tuple[_Key, HookSpec]]:
    # Hooks have no names of their own. Equal ones are told apart by their order.
    seen: Counter[tuple[object, ...]] = Counter()
    for each in hooks:
        spec = each.spec
        key = each.resource, spec.kind, spec.target, spec.callable.name
        yield (*key, seen[key]), spec
        seen[key] += 1


def _hook_fields(spec: HookSpec) -> dict[str, str | None]:
    """Return the compared fields of a hook. The source is compared separately."""
    return {
        "position": str(spec.position),
        "calls": spec.callable.name,
        "saved as": spec.callable.by,
        "flags": hook_flags(spec) or None,
        "aliases": ", ".join(spec.aliases) or None,
        "state": ", ".join(spec.callable.state) or None,
    }
