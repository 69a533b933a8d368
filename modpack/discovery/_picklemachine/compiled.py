"""What ``torch.compile`` leaves in a pickle: a backend with options, and what calls it."""

from __future__ import annotations

from typing import Final

from modpack.discovery._picklemachine.values import Arguments, Made, Named, Recorder, Table, Value
from modpack.discovery.pickledvalues import FlawKind

__all__ = ["check_options", "compiled_module", "has_options", "is_compiled_module"]

_WITH_OPTIONS: Final = ("torch", "_TorchCompileInductorWrapper")
_COMPILED: Final = ("torch._dynamo.eval_frame", "OptimizedModule")
_CONTEXTS: Final = frozenset(
    ("torch._dynamo.eval_frame", name)
    for name in ("DisableContext", "OptimizeContext", "RunOnlyContext")
)


def compiled_module(to: Recorder, called: Named, arguments: Arguments) -> Value:
    """``OptimizedModule(module, context)`` calls the context."""
    context = arguments[1] if arguments and len(arguments) == 2 else None
    if not isinstance(context, Made) or (context.by.module, context.by.name) not in _CONTEXTS:
        to.flaw(FlawKind.CALLS, f"it is not known what {called} calls")
    return Made(called, None)


def is_compiled_module(target: Made) -> bool:
    """Whether something made is a compiled module, which calls what it has when it gets a state."""
    return (target.by.module, target.by.name) == _COMPILED


def has_options(target: Made) -> bool:
    """Whether something made is the backend, whose options say how code is made."""
    return (target.by.module, target.by.name) == _WITH_OPTIONS


def check_options(to: Recorder, state: Value) -> None:
    """Follow how the backend gets its options; nothing may be added to them later.

    Args:
        to: is told of options that name compilers, folders and the like.
        state: of the backend.
    """
    options = state.config if isinstance(state, Table) and state.is_plain else None
    if not isinstance(options, Table):
        to.flaw(FlawKind.UNRESOLVED, "it is not known with which options it has torch compile")
        return
    options.is_closed = True
    if options.odd_key is not None:
        told = repr(options.odd_key)[:100]
        to.flaw(FlawKind.CODE, f"it has torch compile with the option {told}, which is not known")
