"""Which hooks a user wants: all, none, some by name, or those that a predicate picks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from modpack.core.hookspec import HookSpec

__all__ = ["HookChoice", "check_names", "selector"]

HookChoice = bool | Iterable[str] | Callable[[HookSpec], bool]
"""True, False, names of hooks, or a predicate over specs."""


def selector(choice: HookChoice) -> Callable[[HookSpec], bool]:
    """A predicate for a user's choice of hooks.

    Raises:
        TypeError: it is no choice.
    """
    if isinstance(choice, bool):
        return lambda spec: bool(choice)
    if isinstance(choice, str):
        wanted = frozenset({choice})
    elif isinstance(choice, Iterable):
        wanted = frozenset(choice)
    elif callable(choice):
        return choice
    else:
        raise TypeError(
            f"hooks must be True, False, hook names or a predicate, not {type(choice).__name__}"
        )
    return lambda spec: spec.name in wanted


def check_names(choice: HookChoice, specs: Iterable[HookSpec]) -> None:
    """Refuse names that no hook has.

    Raises:
        ValueError: tells the unknown names and the known ones.
    """
    if isinstance(choice, bool) or callable(choice) or not isinstance(choice, Iterable):
        return
    known = [spec.name for spec in specs]
    asked = [choice] if isinstance(choice, str) else list(choice)
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ValueError(
            f"no hook is called {', '.join(map(repr, unknown))}; there are: "
            + (", ".join(map(repr, known)) or "none")
        )
