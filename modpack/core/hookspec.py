"""Hook specs: a package's description of its model hooks, readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from modpack.core.codec import from_json, record_to_json
from modpack.core.json_values import Json, as_list, as_mapping
from modpack.errors import ModpackError, listed

HOOK_SPEC_VERSION: Final = 1
"""Increase it if readers of the old version would misread the new format."""

_UPGRADE: Final = "If a newer version of modpack wrote the package, upgrade modpack."

PARAMETRIZATION = "parametrization"
"""Part of a module, not a registered hook; described so that auditors see it."""

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
"""The kinds of version 1. ``modpack.hooks.kinds`` has a row for each except the last."""


Way: TypeAlias = Literal["reference", "source", "object"]
"""How a callable is saved."""


class CallableSpec(NamedTuple):
    """The callable of a hook.

    Attributes:
        by: ``"reference"`` if it is imported by name, ``"source"`` if its source is saved, or
            ``"object"`` for an instance, a bound method, or a partial.
        name: Its name: ``module.qualname``, or the type of an object.
        source: The exact source, for ``"source"``.
        location: Module path and line of the source (``mylib.hooks:12``).
        state: Names of the closure variables and attributes that it refers to.
    """

    by: Way
    name: str
    source: str | None = None
    location: str | None = None
    state: tuple[str, ...] = ()


class HookSpec(NamedTuple):
    """One model hook of a packaged object.

    Attributes:
        name: A unique name in its package: target, kind, and position
            (``layer1.conv/forward/0``).
        kind: A row of the table of kinds (``forward``, ``tensor``, ``optimizer.step_pre``, ...).
        target: The module path or parameter name; several for a group.
        aliases: Other paths of the same module or tensor.
        position: Its position among the hooks of this kind on this target, from 0.
        flags: The flags that it was registered with (``with_kwargs``, ``always_call``, ``mode``).
        callable: A description of its callable.
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
    """Return the record of a package; the reference page of hook specs documents it."""
    return {"version": HOOK_SPEC_VERSION, "hooks": [record_to_json(spec) for spec in specs]}


def specs_from_json(record: Json) -> tuple[HookSpec, ...]:
    """Parse the output of :func:`specs_to_json`, ignoring unknown fields.

    Args:
        record: The parsed JSON.

    Raises:
        ModpackError: If the version or a kind is unknown, or a field is missing or has another
            type.
    """
    try:
        document = as_mapping(record, "the record")
        version = document.get("version")
        # Not only the value: True would be equal to 1.
        if type(version) is not int or version != HOOK_SPEC_VERSION:
            raise ModpackError(
                f"hook specs of version {version!r} are not supported, only version "
                f"{HOOK_SPEC_VERSION}",
                hint=_UPGRADE,
            )
        entries = enumerate(as_list(document.get("hooks"), "'hooks' of the record"))
        specs = tuple(from_json(HookSpec, each, f"hook {index}") for index, each in entries)
    except TypeError as failure:
        raise ModpackError(f"hook specs: {failure}") from failure
    # A model without one of its hooks computes something else, so that an unknown kind is an error.
    unknown = sorted({spec.kind for spec in specs} - HOOK_KINDS)
    if unknown:
        raise ModpackError(f"unknown kinds of hooks: {listed(unknown)}", hint=_UPGRADE)
    return specs
