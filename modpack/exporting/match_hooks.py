"""Match hooks: callables that run for each module when it is decided."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from modpack.core.graph import Edge
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


class HookOutcome(NamedTuple):
    """The result of the hooks for one match.

    Attributes:
        action: The final action.
        overridden_by: The hook that changed it, if any.
        veto: The reason if a hook rejected the module.
        fired: The hooks that were called, in order.
    """

    action: Action
    overridden_by: str | None = None
    veto: str | None = None
    fired: tuple[str, ...] = ()


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

    def run(self, exporter: object, match: RuleMatch) -> HookOutcome:
        """Call the hooks of the rule's action in the order of registration.

        A hook that raises an exception of any kind rejects the module. Every rejection becomes a
        problem of that module, and the remaining hooks still run.
        """
        outcome = HookOutcome(match.action)
        for hook in list(self.by_action[match.rule.action].values()):
            self.current = RuleMatch(match.module, match.rule, outcome.action, match.importers)
            name, veto = hook_name(hook), None
            try:
                answer: object = hook(exporter, match.module)
                if isinstance(answer, Action):
                    outcome = outcome._replace(action=answer, overridden_by=name)
                elif answer is not None:
                    veto = f"{name} returned {answer!r}; a hook returns None or an Action"
            except Exception as refusal:
                veto = f"{name} raised {type(refusal).__name__}: {refusal}"
            finally:
                self.current = None
            outcome = outcome._replace(fired=(*outcome.fired, name), veto=outcome.veto or veto)
        return outcome


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
