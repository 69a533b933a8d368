"""How the hooks of two packages differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence

from modpack.core.hookspec import HookSpec
from modpack.report.differences.facts import Change, HookDifference, TextDifference
from modpack.report.differences.modules import changed_fields
from modpack.report.differences.texts import Effort, text_difference
from modpack.report.facts import HookFacts

__all__ = ["compare_hooks"]

_Pair = tuple[HookFacts, HookFacts]


def compare_hooks(
    before: Sequence[HookFacts], after: Sequence[HookFacts], with_source: bool, effort: Effort
) -> Iterator[HookDifference]:
    """The hooks that differ.

    Hooks of one kind on one target are the same hook if they call the same; what is left over there
    is paired in order. Their positions count only among hooks that were paired so.

    Args:
        before: the hooks of the first package.
        after: those of the second.
        with_source: whether to compare sources line by line.
        effort: what comparing texts may still take.
    """
    pairs: list[_Pair] = []
    old, new = list(before), list(after)
    for alike in (_all_of, _what_it_calls, _where_it_hangs):
        found, old, new = _paired(old, new, alike)
        pairs.extend(found)
    yield from (HookDifference(each.resource, Change.REMOVED, each.spec) for each in old)
    yield from (HookDifference(each.resource, Change.ADDED, None, each.spec) for each in new)
    for was, now in pairs:
        fields = changed_fields(_fields(was.spec), _fields(now.spec))
        has_other_source = was.spec.callable.source != now.spec.callable.source
        if fields or has_other_source:
            source = (
                _source(was.spec, now.spec, effort) if with_source and has_other_source else None
            )
            yield HookDifference(now.resource, Change.CHANGED, was.spec, now.spec, fields, source)


def _paired(
    old: Sequence[HookFacts],
    new: Sequence[HookFacts],
    alike: Callable[[HookFacts], Hashable],
) -> tuple[list[_Pair], list[HookFacts], list[HookFacts]]:
    """Pairs of hooks that have the same key, in order, and what is left on either side."""
    waiting: dict[Hashable, deque[HookFacts]] = {}
    for each in old:
        waiting.setdefault(alike(each), deque()).append(each)
    pairs: list[_Pair] = []
    left: list[HookFacts] = []
    for each in new:
        candidates = waiting.get(alike(each))
        if candidates:
            pairs.append((candidates.popleft(), each))
        else:
            left.append(each)
    paired = {id(was) for was, _ in pairs}
    return pairs, [each for each in old if id(each) not in paired], left


def _where_it_hangs(hook: HookFacts) -> Hashable:
    return hook.resource, hook.spec.kind, hook.spec.target


def _what_it_calls(hook: HookFacts) -> Hashable:
    return _where_it_hangs(hook), hook.spec.callable.by, hook.spec.callable.name


def _all_of(hook: HookFacts) -> Hashable:
    return _what_it_calls(hook), hook.spec.callable.source, _flags(hook.spec)


def _flags(spec: HookSpec) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(spec.flags.items()))


def _fields(spec: HookSpec) -> dict[str, str | None]:
    return {
        "position": str(spec.position),
        "calls": spec.callable.name,
        "travels as": spec.callable.by,
        "flags": _flags(spec) or None,
        "aliases": ", ".join(spec.aliases) or None,
        "state": ", ".join(spec.callable.state) or None,
    }


def _source(was: HookSpec, now: HookSpec, effort: Effort) -> TextDifference | None:
    old, new = was.callable.source, now.callable.source
    if not effort.has_room_for(old or "", new or ""):
        return None
    return text_difference(
        old or "",
        new or "",
        was.name if old is not None else None,
        now.name if new is not None else None,
        effort,
    )
