"""Hook specs: what a package says about a model's hooks, readable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modpack.errors import ModpackError

if TYPE_CHECKING:
    from modpack.core.plan_json import Json

HOOK_SPEC_VERSION = 1
"""Raise it when a reader of the old version would misunderstand what is written."""

WAYS = ("reference", "source", "object")
"""How a callable travels."""

PARAMETRIZATION = "parametrization"
"""Not registered but part of its module; described, so that an auditor sees it."""

_OPTIMIZER_EVENTS = ("step", "state_dict", "load_state_dict")

HOOK_KINDS = frozenset(
    {
        *("forward_pre", "forward", "full_backward_pre", "full_backward", "backward"),
        *("state_dict_pre", "state_dict_post", "state_dict_post_private"),
        *("load_state_dict_pre", "load_state_dict_post"),
        *("tensor", "post_accumulate_grad", "multi_grad"),
        *("accumulate_grad_pre", "accumulate_grad"),
        *(f"optimizer.{e}_{m}" for e in _OPTIMIZER_EVENTS for m in ("pre", "post")),
        *("global.forward_pre", "global.forward", "global.backward"),
        *("global.full_backward_pre", "global.full_backward"),
        *(f"global.{part}_registration" for part in ("buffer", "module", "parameter")),
        *("global.optimizer_step_pre", "global.optimizer_step_post"),
        *("graph.output_grad", "graph.node", "graph.node_pre", "graph.saved_tensors"),
        *("graph.after_backward", "graph.multi_grad", "graph.capture_grad"),
        *("ddp.comm", PARAMETRIZATION),
    }
)
"""The kinds of version 1. The hooks room has a row for each but the last."""


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


def specs_from_json(record: object) -> tuple[HookSpec, ...]:
    """Read back what :func:`specs_to_json` wrote. Fields that are not known are left alone.

    Args:
        record: the parsed JSON.

    Raises:
        ModpackError: the version or a kind is unknown, or a field is missing or of a wrong type.
    """
    fields = _Fields(record, "the record")
    version = fields.get("version")
    if version != HOOK_SPEC_VERSION or isinstance(version, bool):
        raise ModpackError(
            f"hook specs of version {version!r} are not known, only {HOOK_SPEC_VERSION}; "
            "was the package written by a newer modpack?"
        )
    specs = tuple(map(_from_json, fields.entries("hooks")))
    unknown = sorted({spec.kind for spec in specs} - HOOK_KINDS)
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


def _from_json(fields: _Fields) -> HookSpec:
    called = _Fields(fields.get("callable"), f"the callable of {fields.place}")
    by = called.text("by")
    if by not in WAYS:
        raise called.wrong("by", f"one of {', '.join(WAYS)}")
    return HookSpec(
        name=fields.text("name"),
        kind=fields.text("kind"),
        target=fields.texts("target"),
        position=fields.number("position"),
        aliases=fields.texts("aliases"),
        flags=fields.flags("flags"),
        callable=CallableSpec(
            by=by,
            name=called.text("name"),
            source=called.optional_text("source"),
            place=called.optional_text("place"),
            state=called.texts("state"),
        ),
    )


class _Fields:
    """The fields of a JSON object, with their types checked."""

    def __init__(self, entry: object, place: str) -> None:
        if not isinstance(entry, dict):
            raise ModpackError(f"hook specs: {place} must be an object, not {_shown(entry)}")
        self._entry: dict[str, object] = entry
        self.place = place

    def get(self, name: str) -> object:
        if name not in self._entry:
            raise ModpackError(f"hook specs: {self.place} has no {name!r}")
        return self._entry[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, "a list of strings")
        return tuple(value)

    def number(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(name, "a number from 0")
        return value

    def flags(self, name: str) -> dict[str, bool | str]:
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        if not all(isinstance(flag, (bool, str)) for flag in value.values()):
            raise self.wrong(name, "an object with strings and booleans")
        return value

    def entries(self, name: str) -> Iterator[_Fields]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return (_Fields(each, f"hook {index}") for index, each in enumerate(value))

    def wrong(self, name: str, expected: str) -> ModpackError:
        found = _shown(self.get(name))
        return ModpackError(f"hook specs: {name!r} of {self.place} must be {expected}, not {found}")


def _shown(value: object) -> str:
    return f"{value!r:.60}"
