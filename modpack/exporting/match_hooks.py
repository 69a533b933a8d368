"""Match hooks: callables that run for each module when it is decided."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from modpack.core.graph import Edge
from modpack.core.plan import Decision
from modpack.core.rules import Action, Rule

MatchHook = Callable[[Any, str], "Action | None"]
"""``hook(exporter, module_name)`` returns None to keep the decision, or an action."""


@dataclass(frozen=True)
class RuleMatch:
    """The pending decision while a hook runs.

    Attributes:
        module: The module path.
        rule: The rule that matched.
        action: The action so far: the rule's, or that of an earlier hook.
        importers: The edges that lead to the module.
    """

    module: str
    rule: Rule
    action: Action
    importers: tuple[Edge, ...]


class MatchHooks:
    """The hooks of an exporter, by action.

    Attributes:
        current: The pending match while hooks run.
    """

    def __init__(self) -> None:
        self.by_action: dict[Action, OrderedDict[int, MatchHook]] = {
            action: OrderedDict() for action in Action
        }
        self.current: RuleMatch | None = None

    def run(self, exporter: object, match: RuleMatch) -> tuple[Decision, str | None]:
        """Call the hooks of the rule's action in the order of registration.

        A hook that raises an exception of any kind rejects the module. Every rejection becomes a
        problem of that module, and the remaining hooks still run.

        Returns:
            The decision, and the first rejection, if any.
        """
        decision, veto = Decision(match.module, match.action, match.rule), None
        # A copy, because a hook may register or remove hooks.
        for hook in list(self.by_action[match.rule.action].values()):
            # While this is set, the planner settles nothing: the walk is in the middle of a module.
            self.current = replace(match, action=decision.action)
            name, refusal = hook_name(hook), None
            try:
                answer: object = hook(exporter, match.module)
                if isinstance(answer, Action):
                    decision = replace(decision, action=answer, overridden_by=name)
                elif answer is not None:
                    refusal = f"{name} returned {answer!r}; a hook returns None or an Action"
            except Exception as failure:  # the user's code, whose failure is reported
                refusal = f"{name} raised {type(failure).__name__}: {failure}"
            finally:
                self.current = None
            decision, veto = replace(decision, hooks=(*decision.hooks, name)), veto or refusal
        return decision, veto


def require_hook(hook: object) -> None:
    """Check that an object can be called as ``hook(exporter, module_name)``.

    Raises:
        TypeError: If it cannot.
    """
    if not callable(hook):
        raise TypeError(f"hook must be callable, not {type(hook).__name__}")
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # some builtins have none; a wrong signature fails later
        return
    try:
        signature.bind(None, "module_name")
    except TypeError as failure:
        raise TypeError(
            f"hook must accept (exporter, module_name), but {hook_name(hook)}{signature} does "
            f"not: {failure}"
        ) from None


def hook_name(hook: object) -> str:
    """Return the name of a hook in messages: ``module.qualname``."""
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    module = getattr(hook, "__module__", None)
    return f"{module}.{name}" if module else str(name)
