"""Differences between the hooks of two packages."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence

from modpack.core.hookspec import HookSpec
from modpack.report.diff_facts import (
    Change,
    Contents,
    Difference,
    Part,
    TextDifference,
    changed_fields,
    fields_of,
)
from modpack.report.facts import HookFacts, hook_flags, hook_target
from modpack.report.text_diff import WorkBudget, text_difference

_Pair = tuple[HookFacts, HookFacts]


def compare_hooks(
    before: Sequence[HookFacts], after: Sequence[HookFacts], with_source: bool, effort: WorkBudget
) -> Iterator[Difference]:
    """Yield the hooks that differ.

    Hooks of one kind on one target are paired if they call the same function. The remaining ones
    are paired in order.

    Args:
        before: Hooks of the first package.
        after: Hooks of the second package.
        with_source: Whether to compare sources line by line.
        effort: Budget for comparing texts.
    """
    pairs, old, new = _paired(before, after)
    for change, unpaired in ((Change.REMOVED, old), (Change.ADDED, new)):
        for hook in unpaired:
            spec = hook.spec
            values = {"kind": spec.kind, "target": hook_target(spec), **_hook_fields(spec)}
            values |= {"source": spec.callable.source, "location": spec.callable.location}
            yield _difference(hook, change)._replace(fields=fields_of(change, values))
    for was, now in pairs:
        fields = changed_fields(_hook_fields(was.spec), _hook_fields(now.spec))
        if was.spec.callable.source != now.spec.callable.source:
            text = _compare_sources(was.spec, now.spec, effort) if with_source else None
            found = _difference(now, Change.CHANGED)
            yield found._replace(fields=fields, contents=Contents.DIFFERENT, text=text)
        elif fields:
            found = _difference(now, Change.CHANGED)
            yield found._replace(fields=fields, contents=Contents.SAME)


def _difference(hook: HookFacts, change: Change) -> Difference:
    spec = hook.spec
    about = f"{spec.kind}: {spec.callable.name}, in {hook.resource}"
    return Difference(Part.HOOK, hook_target(spec), change, about, owner=hook.resource)


def _paired(
    old: Sequence[HookFacts], new: Sequence[HookFacts]
) -> tuple[list[_Pair], Sequence[HookFacts], Sequence[HookFacts]]:
    """Return pairs of hooks, the most similar first, and the unpaired hooks of both sides."""
    pairs: list[_Pair] = []
    for length in (7, 5, 3):  # all fields; target and callable; target only
        waiting: dict[Hashable, deque[HookFacts]] = {}
        for each in old:
            waiting.setdefault(_identity(each)[:length], deque()).append(each)
        left: list[HookFacts] = []
        for each in new:
            candidates = waiting.get(_identity(each)[:length])
            if candidates:
                pairs.append((candidates.popleft(), each))
            else:
                left.append(each)
        paired = {id(was) for was, _ in pairs}
        old, new = [each for each in old if id(each) not in paired], left
    return pairs, old, new


def _identity(hook: HookFacts) -> tuple[Hashable, ...]:
    spec, called = hook.spec, hook.spec.callable
    where = hook.resource, spec.kind, spec.target
    return (*where, called.by, called.name, called.source, hook_flags(spec))


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


def _compare_sources(was: HookSpec, now: HookSpec, effort: WorkBudget) -> TextDifference | None:
    old, new = was.callable.source, now.callable.source
    if not effort.has_room_for(old or "", new or ""):
        return None
    old_name, new_name = (spec.name if spec.callable.source else None for spec in (was, now))
    return text_difference(old or "", new or "", old_name, new_name, effort)
