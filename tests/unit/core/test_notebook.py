"""Plans as notebooks show them."""

from modpack.core.names import GlobGroup
from modpack.core.plan import Decision, PackagingErrorReason, Plan
from modpack.core.rules import Action, Rule, RuleOrigin
from modpack.diagnostics import Diagnostic


def decided(module, action):
    rule = Rule(
        action, GlobGroup(module), origin=RuleOrigin.USER, label=f"{action.value}({module!r})"
    )
    return {module: Decision(module, action, rule)}


def test_notebook_shows_the_text_of_a_plan():
    plan = Plan(
        {**decided("shop", Action.INTERN), **decided("spy", Action.MOCK)},
        notes=(Diagnostic.from_code("dynamic-import", "shop", "imports what it likes"),),
        self_test_summary="passed",
    )
    assert plan._repr_html_() == f"<pre>{plan}</pre>"
    assert "imports what it likes" in plan._repr_html_()


def test_notebook_shows_no_markup_of_names():
    evil = "a<img src=x onerror=alert(1)>"
    plan = Plan(
        decided(evil, Action.EXTERN),
        (Diagnostic.from_code(PackagingErrorReason.NO_ACTION, evil, evil),),
    )
    assert "<img" not in plan._repr_html_()
    assert "a&lt;img" in plan._repr_html_()
