"""The text report: readable in a pipe, grouped, and escaped."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from modpack.core.hookspec import CallableSpec, HookSpec
from modpack.core.plan import PackagingErrorReason
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.diagnostics import Diagnostic
from modpack.report.facts import HookFacts, ImporterFacts, ModuleFacts, PlanFacts, plan_facts
from modpack.report.package_info import package_facts
from modpack.report.text import package_report, plan_report, problems_report


def printed(content, width=120, **options):
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    console.print(content)
    return console.file.getvalue()


def line_with(text, *parts):
    return next((line for line in text.splitlines() if all(p in line for p in parts)), None)


def test_report_groups_modules_by_action(made):
    text = printed(package_report(package_facts(made.file)))
    assert line_with(text, "interned: 3 modules")
    assert line_with(text, "mocked: 1 module")
    assert line_with(text, "externed:")
    order = [text.index(part) for part in ("2 notes", "interned:", "externed:", "mocked:")]
    assert order == sorted(order)


def test_report_shows_rule_and_importer_of_mock(made):
    text = printed(package_report(package_facts(made.file)))
    assert line_with(text, "rule: mock('reportspy')")
    assert line_with(text, "reportspy", "needed by reportshop/till.py:5")


def test_report_lists_standard_library_in_one_line(made):
    text = printed(package_report(package_facts(made.file)))
    assert len([line for line in text.splitlines() if "standard library" in line]) == 1
    assert not [line for line in text.splitlines() if line.strip() == "json"]


def test_report_shows_version_of_extern(made):
    import numpy

    text = printed(package_report(package_facts(made.file)))
    assert line_with(text, f"numpy=={numpy.__version__}", "needed by reportshop/till.py:4")


def test_report_hook_counts_add_up(made):
    def hook(target, position):
        called = CallableSpec("reference", "lib.hook")
        name = f"{target}/forward/{position}"
        return HookFacts("model/till.pkl", HookSpec(name, "forward", (target,), position, called))

    targets = ["a", "b", "a", "c", "d", "d"]
    hooks = tuple(hook(target, position) for position, target in enumerate(targets))
    text = printed(package_report(replace(package_facts(made.file), hooks=hooks)))
    assert line_with(text, "6 hooks")
    assert line_with(text, "forward on a (2 times), b and 3 more", "lib.hook")


def test_report_shows_resources_storages_and_totals(made):
    text = printed(package_report(package_facts(made.file)))
    assert line_with(text, "reportshop/prices.txt", "5 B", "file")
    assert line_with(text, "model/till.pkl", "pickle")
    assert line_with(text, "12 B in 1 tensor storage")


def test_report_has_colors_in_terminal_only(made, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has no colors
    assert "\x1b" not in printed(package_report(package_facts(made.file)))
    assert "\x1b" in printed(package_report(package_facts(made.file)), force_terminal=True)


@pytest.mark.parametrize("width", [20, 60, 300])
def test_report_keeps_all_text_at_any_width(made, width):
    text = printed(package_report(package_facts(made.file)), width)
    joined = "".join(text.split())
    for module in made.plan.modules(Action.INTERN):
        assert module in joined
    assert "reportshop/till.py:14" in joined


def test_plan_report_shows_relative_paths(made):
    text = printed(plan_report(plan_facts(made.plan), made.project))
    assert line_with(text, "reportspy", "needed by reportshop/till.py:5")
    assert str(made.project) not in text


PROBLEM = Diagnostic.from_code(
    PackagingErrorReason.DENIED, "spy", "spy is denied", "a.py:3", chain=("<m>", "a", "spy")
)


def test_plan_report_starts_with_grouped_problems():
    other = replace(PROBLEM, subject="agent", message="agent is denied")
    facts = PlanFacts(
        (ModuleFacts("a", Action.INTERN, "intern('a')"),),
        (PROBLEM, other),
        (Diagnostic.from_code("shadowed-rule", "x", "a rule is dead"),),
    )
    text = printed(plan_report(facts))
    assert text.index("2 problems") < text.index("a rule is dead") < text.index("interned:")
    assert text.count("A deny rule matches a required module.") == 1
    assert line_with(text, "a.py:3: spy is denied")


def test_problems_report_shows_chains_on_demand():
    assert "<m> -> a -> spy" in printed(problems_report([PROBLEM], True))
    assert "->" not in printed(problems_report([PROBLEM], False))


def test_report_shows_strongest_evidence_first():
    weak = ImporterFacts("w", "w.py", 1, ImportKind.FUNCTION)
    strong = [ImporterFacts(f"s{i}", f"s{i}.py", i, ImportKind.REQUIRED) for i in range(1, 4)]
    never = ImporterFacts("n", "n.py", 1, ImportKind.TYPE_CHECKING)
    module = ModuleFacts("m", Action.INTERN, "r", importers=(never, weak, *strong))
    assert "needed by s1.py:1, s2.py:2 and 2 more" in printed(plan_report(PlanFacts((module,))))


def test_report_shows_submodules_of_parent():
    child = ImporterFacts("m.x", "m/x.py", None, ImportKind.PARENT)
    module = ModuleFacts("m", Action.INTERN, "r", importers=(child,))
    assert line_with(printed(plan_report(PlanFacts((module,)))), "contains m.x")


def test_report_escapes_package_names():
    evil = "\x1b]0;owned\x07\x1b[2J[bold]x[/bold]"
    importer = ImporterFacts(evil, evil, 1, ImportKind.REQUIRED)
    facts = PlanFacts(
        tuple(
            ModuleFacts(evil, action, evil, evil, (importer,), owner, evil, evil)
            for action in Action
            for owner in (None, Owner.LOCAL, Owner.STDLIB)
        ),
        (Diagnostic.from_code(PackagingErrorReason.DENIED, evil, evil, evil, chain=(evil, evil)),),
        (Diagnostic.from_code("shadowed-rule", evil, evil, evil),),
    )
    text = printed(plan_report(facts))
    assert "\x1b" not in text and "\x07" not in text
    assert "[bold]x[/bold]" in "".join(text.split())


def test_report_escapes_surrogates():
    text = printed(plan_report(PlanFacts((ModuleFacts("a\ud800", Action.INTERN, "r"),))))
    assert "a\\ud800" in text
    text.encode("utf-8")
