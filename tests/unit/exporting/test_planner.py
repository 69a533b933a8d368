"""The planner, with modules in memory and owners by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from modpack.core.graph import CodeKind, Edge, Location
from modpack.core.names import GlobGroup
from modpack.core.plan import PackagingErrorReason
from modpack.core.rules import Action, Owner, Rule, RuleOrigin
from modpack.core.scan import ImportKind
from modpack.discovery.distributions import DistributionIndex, InstalledDistribution
from modpack.exporting.planner import Planner
from modpack.exporting.presets import PRESETS

EXPORTER = object()


class Shelf:
    """Modules by path; the kind of code is SOURCE unless given."""

    def __init__(self, sources: Mapping[str, str], kinds: Mapping[str, CodeKind]) -> None:
        self.sources, self.kinds = sources, kinds
        self.running: set[str] = set()
        self.homes: dict[tuple[str, str], str] = {}

    def locate(self, module: str) -> Location | None:
        if module not in self.sources:
            return None
        kind = self.kinds.get(module, CodeKind.SOURCE)
        return Location(module, kind, f"/shelf/{module}.py", True)

    def read_source(self, location: Location) -> bytes:
        return self.sources[location.module].encode()

    def live_attribute(self, module: str, name: str) -> str | None:
        return None

    def defining_module(self, module: str, name: str) -> str | None:
        return self.homes.get((module, name))

    def loaded(self) -> Collection[str]:
        return self.running

    def lacks(self, module: str) -> bool:
        return False

    @property
    def is_package(self) -> bool:
        return False


class Owners(DistributionIndex):
    """``std*`` is the standard library, ``inst*`` is installed, other modules are local."""

    def owner(self, module: str, location: Location | None) -> Owner:
        if module.startswith("std"):
            return Owner.STDLIB
        return Owner.INSTALLED if location and module.startswith("inst") else Owner.LOCAL

    def distribution_of(
        self, module: str, location: Location | None
    ) -> InstalledDistribution | None:
        return None


def planner_of(kinds: Mapping[str, CodeKind] | None = None, **sources: str) -> Planner:
    shelf = {name.replace("__", "."): text for name, text in sources.items()}
    return Planner([Shelf(shelf, kinds or {})], Owners(), EXPORTER)


def rule(action: Action, *patterns: str, allow_empty: bool = True) -> Rule:
    return Rule(action, GlobGroup(patterns), allow_empty)


def problems(planner: Planner) -> list[tuple[str, str]]:
    return [(problem.subject, problem.code) for problem in planner.plan().problems]


def test_decisions_have_rule_and_location():
    planner = planner_of(a="import stdlib_one")
    planner.add_rule(rule(Action.INTERN, "a"))
    planner.add_source("main", b"import a", False, True)
    decisions = planner.decisions()
    assert decisions["a"].rule == rule(Action.INTERN, "a")
    assert decisions["a"].location == Location("a", CodeKind.SOURCE, "/shelf/a.py", True)
    assert decisions["main"].rule.origin is RuleOrigin.SAVED
    assert decisions["stdlib_one"].rule.origin is RuleOrigin.IMPLICIT
    assert decisions["stdlib_one"].location is None, "it is not located"


def test_module_without_rule_is_a_problem_with_location():
    planner = planner_of(a="")
    planner.add_module("a", True)
    planner.add_source("main", b"\nimport b_is_absent\nimport a", False, True)
    (problem,) = planner.plan().problems
    assert problem.code == PackagingErrorReason.SOURCE_FILE_NOT_FOUND
    assert (problem.subject, problem.location) == ("b_is_absent", "main:2")
    assert problem.message == "'b_is_absent' cannot be found, but main imports it"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (CodeKind.EXTENSION, "native-extension"),
        (CodeKind.BUILTIN, "native-extension"),
        (CodeKind.BYTECODE, "source-file-missing"),
        (CodeKind.UNKNOWN, "source-file-missing"),
    ],
)
def test_module_without_source_cannot_be_interned(kind, reason):
    for action in (Action.INTERN, Action.EXTERN, Action.MOCK):
        planner = planner_of({"a": kind}, a="not to be read = = =")
        planner.add_rule(rule(action, "a"))
        planner.add_source("main", b"import a", False, True)
        assert problems(planner) == ([("a", reason)] if action is Action.INTERN else [])


def test_folder_without_code_is_interned():
    planner = planner_of({"a": CodeKind.NAMESPACE}, a="", a__b="")
    planner.add_rule(rule(Action.INTERN, "a.**"))
    planner.add_source("main", b"import a.b", False, True)
    assert problems(planner) == []


@pytest.mark.parametrize("guard", ["try:\n    import x.y\nexcept ImportError:\n    pass\n"])
def test_missing_optional_module_is_left_undecided(guard):
    for action, patterns, decided in (
        (Action.INTERN, "**", False),
        (Action.INTERN, "x.**", False),
        (Action.EXTERN, "**", False),
        (Action.EXTERN, "x.**", True),
        (Action.MOCK, "x.y", True),
    ):
        planner = planner_of()
        planner.add_rule(rule(action, patterns))
        planner.add_source("main", guard.encode(), False, True)
        assert ("x.y" in planner.decisions()) is decided, (action, patterns)
        assert problems(planner) == []


def test_required_import_overrides_guarded_import():
    planner = planner_of()
    planner.add_rule(rule(Action.INTERN, "**"))
    guarded = b"try:\n    import x\nexcept ImportError:\n    pass\n"
    planner.add_source("main", guarded, False, True)
    planner.add_source("other", b"import x", False, True)
    assert problems(planner) == [("x", "module-not-found")]


def test_parents_without_rule_inherit_from_children():
    planner = planner_of(a="", a__b="", a__b__c="")
    planner.add_rule(rule(Action.MOCK, "a.b.c"))
    planner.add_source("main", b"import a.b.c", False, True)
    decisions = planner.decisions()
    assert [decisions[name].action for name in ("a.b.c", "a.b", "a")] == [Action.MOCK] * 3
    assert decisions["a"].rule.origin is RuleOrigin.PARENT
    assert decisions["a"].why == "parent of mocked 'a.b'"


def test_main_module_is_decided_only_by_explicit_rule():
    def plan_with(*rules: Rule) -> list[tuple[str, str]]:
        planner = planner_of()
        for each in rules:
            planner.add_rule(each)
        edge = Edge("<m/x.pkl>", "__main__", ImportKind.PICKLE, None, ("Net",))
        planner.add_resource("<m/x.pkl>", [edge], True)
        return problems(planner)

    for action in (Action.INTERN, Action.EXTERN, Action.MOCK, Action.DENY):
        assert plan_with(rule(action, "**")) == [("__main__", "defined-in-script")]
    assert plan_with(rule(Action.EXTERN, "__main__")) == []
    assert plan_with(rule(Action.DENY, "__main__")) == [("__main__", "module-denied")]


@pytest.mark.parametrize("pickled_first", [True, False])
def test_code_may_import_main_but_pickles_may_not(pickled_first):
    planner = planner_of()
    planner.add_rule(rule(Action.INTERN, "**"))
    pickle = Edge("<m/x.pkl>", "__main__", ImportKind.PICKLE, None, ("Net",))
    if pickled_first:
        planner.add_resource("<m/x.pkl>", [pickle], True)
    planner.add_source("tool", b"import __main__", False, True)
    if not pickled_first:
        assert problems(planner) == []
        assert planner.decisions()["__main__"].why == "implicit: the running script is extern"
        planner.add_resource("<m/x.pkl>", [pickle], True)
    assert problems(planner) == [("__main__", "defined-in-script")]


def test_mock_needed_by_pickles_is_a_problem_for_each():
    planner = planner_of(a="")
    planner.add_rule(rule(Action.MOCK, "a"))
    for number, follow in enumerate((True, False)):
        node = f"<m/{number}.pkl>"
        planner.add_resource(node, [Edge(node, "a", ImportKind.PICKLE, None, ("A",))], follow)
    assert problems(planner) == [("a", "mock-pickled")] * 2


def test_presets_apply_after_user_rules():
    planner = planner_of(inst_a="", mine="")
    planner.use_presets(PRESETS["pinned"])
    planner.add_rule(rule(Action.MOCK, "mine"))
    planner.add_source("main", b"import inst_a, mine", False, True)
    decisions = planner.decisions()
    assert decisions["inst_a"].action is Action.EXTERN
    assert decisions["inst_a"].why == "preset pinned: installed distributions are extern"
    assert decisions["mine"].action is Action.MOCK
    assert set(PRESETS) == {"none", "pinned", "hermetic"}


def test_unmatched_rule_is_a_problem_only_if_required():
    planner = planner_of(a="")
    planner.add_rule(rule(Action.INTERN, "a", allow_empty=False))
    planner.add_rule(rule(Action.INTERN, "b", allow_empty=False))
    planner.add_rule(rule(Action.INTERN, "c"))
    planner.add_source("main", b"import a", False, True)
    assert problems(planner) == [("intern('b')", "rule-matches-nothing")]


def test_planning_is_repeatable():
    planner = planner_of(a="import b", b="import nothing_there")
    planner.add_rule(rule(Action.INTERN, "*"))
    planner.add_source("main", b"import a", False, True)
    assert planner.plan() == planner.plan()


@pytest.mark.parametrize("pattern", ["wandbb.**", "wandb.py"])
def test_nearly_matching_rule_is_reported(pattern):
    planner = planner_of(wandb="")
    planner.add_rule(rule(Action.MOCK, pattern))
    planner.add_rule(rule(Action.INTERN, "**"))
    planner.add_source("tool", b"import wandb", False, True)
    (note,) = planner.plan().notes
    assert note.code == "unmatched-rule" and "Did you mean 'wandb.**'?" in note.hint


def test_rule_of_saved_module_gets_no_suggestion():
    planner = planner_of()
    planner.add_rule(rule(Action.MOCK, "wandb.**"))
    planner.add_source("wandb", b"", False, True)
    planner.add_source("tool", b"import wandb", False, True)
    assert planner.plan().notes == ()


def test_rule_for_unneeded_module_is_not_reported():
    planner = planner_of(wandb="")
    planner.add_rule(rule(Action.MOCK, "tensorboard.**"))
    planner.add_rule(rule(Action.INTERN, "**"))
    planner.add_source("tool", b"import wandb", False, True)
    assert planner.plan().notes == ()
