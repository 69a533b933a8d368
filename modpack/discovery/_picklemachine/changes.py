"""What opcodes change: items that are added, and states that are given."""

from __future__ import annotations

from modpack.discovery._picklemachine.compiled import check_options, has_options, is_compiled_module
from modpack.discovery._picklemachine.makers import (
    DESCRIPTORS,
    MAKES_CLASSES,
    MAKES_FUNCTIONS,
    MAPPINGS,
    PARTIALS,
)
from modpack.discovery._picklemachine.reach import require_callable
from modpack.discovery._picklemachine.values import OPAQUE, Made, Named, Recorder, Table, Value
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["change", "mutate"]


def mutate(to: Recorder, target: Value) -> None:
    """Follow an opcode that adds something to what is on the stack."""
    if isinstance(target, Table):
        to.flaw(FlawKind.CHANGES, "it changes options after they were given")
    elif isinstance(target, (Named, str, tuple)):
        what = target if isinstance(target, Named) else "a constant"
        to.flaw(FlawKind.CHANGES, f"it changes {what}, which it only names")


def change(to: Recorder, target: Value, state: Value) -> None:
    """Follow BUILD, which gives an object its state."""
    mutate(to, target)
    if isinstance(state, Made) and state.arguments and (state.by.module, state.by.name) in MAPPINGS:
        to.flaw(FlawKind.UNRESOLVED, "it gives an object a state that is made while it runs")
    if isinstance(target, Made):
        key = (target.by.module, target.by.name)
        if key in PARTIALS:
            given = state if isinstance(state, tuple) else ()
            more = given[1] if len(given) > 1 else OPAQUE
            known = given and isinstance(more, tuple)
            target.arguments = (given[0], *more) if known and isinstance(more, tuple) else ()
        elif key in DESCRIPTORS:
            for each in state.given if isinstance(state, Table) else (state,):
                require_callable(to, each, f"in a {target.by.name}")
        elif has_options(target):
            check_options(to, state)
        elif key in MAKES_CLASSES or key in MAKES_FUNCTIONS or is_compiled_module(target):
            to.flaw(FlawKind.CHANGES, f"it gives a state to what {target.by} has made")
