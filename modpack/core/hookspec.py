"""Hook specs: what a package says about a model's hooks, readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from modpack.core.codec import from_json, record_to_json
from modpack.core.json_values import Json, as_list, as_mapping
from modpack.errors import ModpackError

HOOK_SPEC_VERSION: Final = 1
"""Raise it when a reader of the old version would misunderstand what is written."""

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


Way: TypeAlias = Literal["reference", "source", "object"]
"""How a callable travels."""


class CallableSpec(NamedTuple):
    """What a hook calls.

    Attributes:
        by: ``"reference"``: it is imported under its name; ``"source"``: its source text
            travels; ``"object"``: an instance, a bound method or a partial of those.
        name: what to call it: ``module.qualname``, or the type of an object.
        source: the exact source text, for ``"source"``.
        place: where the source was, as module path and line (``mylib.hooks:12``).
        state: names of what it carries: closure variables, attributes.
    """

    by: Way
    name: str
    source: str | None = None
    place: str | None = None
    state: tuple[str, ...] = ()


class HookSpec(NamedTuple):
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
    flags: Mapping[str, bool | str] = MappingProxyType({})

    def __str__(self) -> str:
        flags = ", ".join(f"{name}={value}" for name, value in sorted(self.flags.items()))
        head = f"{self.name}: {self.callable.name}" + (f" ({flags})" if flags else "")
        if self.callable.source is None:
            return head
        return head + "\n" + "\n".join(f"    {x}" for x in self.callable.source.splitlines())


def specs_to_json(specs: tuple[HookSpec, ...]) -> dict[str, Json]:
    """The record that a package holds; the hook spec page documents it."""
    return {"version": HOOK_SPEC_VERSION, "hooks": [record_to_json(spec) for spec in specs]}


def specs_from_json(record: Json) -> tuple[HookSpec, ...]:
    """Read back what :func:`specs_to_json` wrote. Fields that are not known are left alone.

    Args:
        record: the parsed JSON.

    Raises:
        ModpackError: the version or a kind is unknown, or a field is missing or of a wrong type.
    """
    try:
        document = as_mapping(record, "the record")
        version = document.get("version")
        if version != HOOK_SPEC_VERSION or isinstance(version, bool):
            raise ModpackError(
                f"hook specs of version {version!r} are not known, only {HOOK_SPEC_VERSION}; "
                "was the package written by a newer modpack?"
            )
        listed = enumerate(as_list(document.get("hooks"), "'hooks' of the record"))
        specs = tuple(from_json(HookSpec, each, f"hook {index}") for index, each in listed)
    except TypeError as failure:
        raise ModpackError(f"hook specs: {failure}") from failure
    unknown = sorted({spec.kind for spec in specs} - HOOK_KINDS)
    if unknown:
        raise ModpackError(
            f"hooks of unknown kinds {', '.join(unknown)}; was the package written by a newer "
            "modpack?"
        )
    return specs
