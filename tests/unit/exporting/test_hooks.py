from __future__ import annotations

import pytest

from modpack.core.names import GlobGroup
from modpack.core.plan import Decision
from modpack.core.rules import Action, Rule
from modpack.exporting.match_hooks import MatchHook, MatchHooks, RuleMatch, require_hook

RULE = Rule(Action.INTERN, GlobGroup("a"))
MATCH = RuleMatch("a", RULE, Action.INTERN, ())


def outcome_of(*given: MatchHook) -> tuple[Decision, str | None]:
    hooks = MatchHooks()
    for number, hook in enumerate(given):
        hooks.by_action[Action.INTERN][number] = hook
    return hooks.run("the exporter", MATCH)


def test_without_hooks_the_rule_decides():
    assert outcome_of() == (Decision("a", Action.INTERN, RULE), None)


def test_none_keeps_the_decision():
    decision, _ = outcome_of(lambda exporter, name: None)
    assert (decision.action, decision.overridden_by) == (Action.INTERN, None)
    assert len(decision.hooks) == 1


def mock_it(exporter: object, name: str) -> Action:
    return Action.MOCK


def test_action_overrides_and_names_the_hook():
    name = f"{__name__}.mock_it"
    assert outcome_of(mock_it) == (
        Decision("a", Action.MOCK, RULE, overridden_by=name, hooks=(name,)),
        None,
    )


def test_first_refusal_is_kept_and_later_overrides_apply():
    def refuse(exporter: object, name: str) -> None:
        raise ValueError(f"not {name}")

    decision, veto = outcome_of(refuse, refuse, mock_it)
    assert decision.action is Action.MOCK
    assert veto is not None and veto.endswith("refuse raised ValueError: not a")


def test_current_match_exists_only_while_hooks_run():
    hooks = MatchHooks()
    seen: list[RuleMatch | None] = []

    def look(exporter: object, name: str) -> None:
        seen.append(hooks.current)
        raise KeyError(name)

    hooks.by_action[Action.INTERN][0] = look
    hooks.run("the exporter", MATCH)
    assert seen == [MATCH] and hooks.current is None


class Callable2:
    def __call__(self, exporter: object, module_name: str, extra: int = 0) -> None:
        pass


@pytest.mark.parametrize(
    "hook", [mock_it, Callable2(), Callable2().__call__, print, max, lambda *a, **k: None]
)
def test_hook_may_be_any_callable_with_two_arguments(hook):
    require_hook(hook)


@pytest.mark.parametrize("hook", [lambda: 0, lambda a: 0, lambda a, b, c: 0, lambda a, *, b: 0])
def test_hook_with_wrong_signature_is_rejected(hook):
    with pytest.raises(TypeError, match=r"hook must accept \(exporter, module_name\)"):
        require_hook(hook)
