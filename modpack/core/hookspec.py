"""Hook specs: what a package says about a model's hooks, readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from modpack.core.planjson import Json
from modpack.errors import ModpackError

__all__ = [
    "HOOK_SPEC_VERSION",
    "CallableSpec",
    "HookSpec",
    "hook_records",
    "hook_to_json",
    "specs_from_json",
    "specs_to_json",
]

HOOK_SPEC_VERSION = 1
"""Raise it when a reader of the old version would misunderstand what is written."""


@dataclass(frozen=True)
class CallableSpec:
    """What a hook calls.

    Attributes:
        by: ``"reference"``: it is imported under its name; ``"source"``: its source text
            travels; ``"object"``: an instance, a bound method or a partial of those.
        name: what to call it: ``module.qualname``, or the type of an object.
        source: the exact source text, for ``"source"``.
        place: where the source was, as module path and line (``mylib.hooks:12``).
        state: names of what it carries: closure variables, attributes.
    """

    by: str
    name: str
    source: str | None = None
    place: str | None = None
    state: tuple[str, ...] = ()


@dataclass(frozen=True)
class HookSpec:
    """One hook of a packaged object.

    Attributes:
        name: unique in its package: target, kind and position (``layer1.conv/forward/0``).
        kind: a row of the table of kinds (``forward``, ``tensor``, ``optimizer.step_pre``, ...).
        target: the module path or parameter name; several for a group.
        aliases: other paths that lead to the same module or tensor.
        position: its place among the hooks of that kind on that target, from 0.
        flags: what it was registered with (``with_kwargs``, ``always_call``, ``mode``, ...).
        callable: what it calls.
    """

    name: str
    kind: str
    target: tuple[str, ...]
    position: int
    callable: CallableSpec
    aliases: tuple[str, ...] = ()
    flags: Mapping[str, bool | str] = field(default_factory=dict)

    def __str__(self) -> str:
        flags = ", ".join(f"{name}={value}" for name, value in sorted(self.flags.items()))
        head = f"{self.name}: {self.callable.name}" + (f" ({flags})" if flags else "")
        if self.callable.source is None:
            return head
        return head + "\n" + "\n".join(f"    {x}" for x in self.callable.source.splitlines())


def hook_records(record: str) -> tuple[str, str]:
    """The records with the specs and with the pickle of a saved object's hooks.

    >>> hook_records("net/model.pkl")[0]
    '.data/modpack/hooks/net/model.pkl.json'
    """
    return f".data/modpack/hooks/{record}.json", f".data/modpack/hooks/{record}.pkl"


def specs_to_json(specs: tuple[HookSpec, ...]) -> dict[str, Json]:
    """The record that a package holds; the hook spec page documents it."""
    return {"version": HOOK_SPEC_VERSION, "hooks": [hook_to_json(spec) for spec in specs]}


def specs_from_json(record: object, kinds: frozenset[str] | None = None) -> tuple[HookSpec, ...]:
    """Read back what :func:`specs_to_json` wrote.

    Args:
        record: the parsed JSON.
        kinds: the kinds that are known; None accepts all.

    Raises:
        ModpackError: the version or a kind is unknown, or a field is missing.
    """
    try:
        entries = cast(dict[str, object], record)
        version = entries["version"]
        if version != HOOK_SPEC_VERSION:
            raise ModpackError(
                f"hook specs of version {version!r} are not known, only {HOOK_SPEC_VERSION}; "
                "was the package written by a newer modpack?"
            )
        specs = tuple(map(_from_json, cast(list[dict[str, object]], entries["hooks"])))
    except (KeyError, TypeError, AttributeError) as failure:
        raise ModpackError(f"hook specs are not as they should be ({failure!r})") from failure
    unknown = sorted({spec.kind for spec in specs} - kinds) if kinds is not None else []
    if unknown:
        raise ModpackError(
            f"hooks of unknown kinds {', '.join(unknown)}; was the package written by a newer "
            "modpack?"
        )
    return specs


def hook_to_json(spec: HookSpec) -> dict[str, Json]:
    """One hook as JSON."""
    return {
        "name": spec.name,
        "kind": spec.kind,
        "target": list(spec.target),
        "aliases": list(spec.aliases),
        "position": spec.position,
        "flags": dict(spec.flags),
        "callable": {
            "by": spec.callable.by,
            "name": spec.callable.name,
            "source": spec.callable.source,
            "place": spec.callable.place,
            "state": list(spec.callable.state),
        },
    }


def _from_json(entry: Mapping[str, object]) -> HookSpec:
    called = cast(dict[str, object], entry["callable"])
    return HookSpec(
        name=str(entry["name"]),
        kind=str(entry["kind"]),
        target=tuple(cast(list[str], entry["target"])),
        position=cast(int, entry["position"]),
        aliases=tuple(cast(list[str], entry["aliases"])),
        flags=dict(cast(dict[str, bool], entry["flags"])),
        callable=CallableSpec(
            by=str(called["by"]),
            name=str(called["name"]),
            source=cast("str | None", called["source"]),
            place=cast("str | None", called["place"]),
            state=tuple(cast(list[str], called["state"])),
        ),
    )
