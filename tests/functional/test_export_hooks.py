"""Match hooks: the time and arguments of calls, and their effects."""

from __future__ import annotations

import io
import json

import pytest
from torch.utils.hooks import RemovableHandle

from modpack import Action, PackageExporter, PackagingError, PackagingErrorReason
from modpack.archive.reader import open_archive
from modpack.core.plan_json import plan_from_json


@pytest.fixture
def garden(project) -> None:
    """``gardener`` imports ``garden.rose``, ``garden.shed`` and, twice, ``garden.path``."""
    project(
        {
            "garden/__init__.py": "",
            "garden/rose.py": "import garden.path",
            "garden/shed.py": "import garden.path",
            "garden/path.py": "",
        }
    )


GARDENER = "import garden.rose\nimport garden.shed\n"


def exporter_with(*rules: tuple[str, object]) -> PackageExporter:
    exporter = PackageExporter(io.BytesIO())
    for action, patterns in rules:
        getattr(exporter, action)(patterns)
    return exporter


def test_hook_is_called_once_for_each_module_with_exporter_and_name(garden):
    calls: list[tuple[object, str]] = []
    with exporter_with(("intern", "garden.**")) as exporter:
        exporter.register_intern_hook(lambda *arguments: calls.append(arguments))
        exporter.save_source_string("gardener", GARDENER)
        exporter.save_source_string("neighbor", GARDENER)
        exporter.plan()
        exporter.interned_modules()
        exporter.plan()
    assert all(each is exporter for each, _ in calls)
    assert sorted(name for _, name in calls) == [
        "garden",
        "garden.path",
        "garden.rose",
        "garden.shed",
    ]


def test_hook_is_called_when_module_is_decided(garden):
    moments: list[tuple[str, bool]] = []

    def hook(exporter: PackageExporter, name: str) -> None:
        moments.append((name, name in exporter.externed_modules()))

    with exporter_with(("extern", "garden.**")) as exporter:
        exporter.register_extern_hook(hook)
        exporter.save_source_string("gardener", "import garden.rose")
        assert [name for name, _ in moments] == ["garden.rose", "garden"]
    assert not any(decided for _, decided in moments)


def test_each_kind_of_hook_watches_the_patterns_of_its_kind(garden):
    calls: list[tuple[str, str]] = []
    rules = (("deny", "garden.path"), ("mock", "garden.shed"), ("extern", "garden"))
    exporter = exporter_with(*rules, ("intern", "garden.rose"))
    for kind in ("intern", "extern", "mock", "deny"):
        register = getattr(exporter, f"register_{kind}_hook")
        register(lambda _, name, kind=kind: calls.append((kind, name)))
    exporter.save_source_string("gardener", GARDENER)
    assert sorted(calls) == [
        ("deny", "garden.path"),
        ("extern", "garden"),
        ("intern", "garden.rose"),
        ("mock", "garden.shed"),
    ]


def test_hooks_of_one_kind_are_called_in_the_order_of_registration(garden):
    calls: list[int] = []
    with exporter_with(("extern", "garden.**")) as exporter:
        for number in (3, 1, 2):
            exporter.register_extern_hook(lambda *_, number=number: calls.append(number))
        exporter.save_source_string("gardener", "import garden")
    assert calls == [3, 1, 2]


def test_returning_an_action_overrides_the_rule_and_shows_in_the_plan(garden):
    def spare_the_shed(exporter: PackageExporter, name: str) -> Action | None:
        return Action.MOCK if name == "garden.shed" else None

    with exporter_with(("intern", "garden.**")) as exporter:
        exporter.register_intern_hook(spare_the_shed)
        exporter.save_source_string("gardener", GARDENER)
    assert exporter.mocked_modules() == ["garden.shed"]
    decision = exporter.plan().decisions["garden.shed"]
    assert decision.action is Action.MOCK
    assert decision.overridden_by is not None and "spare_the_shed" in decision.overridden_by
    assert decision.why.startswith("intern('garden.**'), overridden by hook ")
    assert exporter.plan().decisions["garden.rose"].why == "intern('garden.**')"


@pytest.mark.parametrize("action", list(Action))
def test_every_action_can_override_every_rule(garden, action):
    for kind in Action:
        exporter = exporter_with((kind.value, "garden.path"))
        getattr(exporter, f"register_{kind.value}_hook")(lambda *_: action)
        exporter.save_source_string("gardener", "import garden.path")
        assert exporter.plan().decisions["garden.path"].action is action
        assert bool(exporter.plan().problems) == (action is Action.DENY)


def test_later_hook_sees_and_replaces_override(garden):
    seen: list[Action] = []

    def second(exporter: PackageExporter, name: str) -> Action:
        assert exporter.current_match is not None
        seen.append(exporter.current_match.action)
        return Action.EXTERN

    with exporter_with(("intern", "garden.path")) as exporter:
        exporter.register_intern_hook(lambda *_: Action.MOCK)
        exporter.register_intern_hook(second)
        exporter.register_intern_hook(lambda *_: None)
        exporter.save_source_string("gardener", "import garden.path")
    assert seen == [Action.MOCK]
    assert exporter.externed_modules() == ["garden", "garden.path"]


def test_implicit_extern_can_be_overridden_to_anything():
    exporter = PackageExporter(io.BytesIO())
    exporter.register_extern_hook(
        lambda _, name: {"colorsys": Action.INTERN, "wave": Action.MOCK}.get(name)
    )
    exporter.save_source_string("mixed", "import colorsys, wave, json")
    plan = exporter.close()
    assert "colorsys" in plan.modules(Action.INTERN)
    assert plan.modules(Action.MOCK) == ["wave"]
    assert "overridden by hook" in plan.decisions["colorsys"].why


def test_raising_hook_refuses_with_all_other_problems(garden):
    def no_sheds(exporter: PackageExporter, name: str) -> None:
        if name.endswith("shed"):
            raise ValueError("sheds are not shipped")

    exporter = exporter_with(("deny", "garden.path"), ("intern", "garden.**"))
    with pytest.raises(PackagingError) as failure, exporter:
        exporter.register_intern_hook(no_sheds)
        exporter.save_source_string("gardener", GARDENER + "import not_anywhere")
    problems = {p.subject: p for p in failure.value.problems}
    assert {name: p.code for name, p in problems.items()} == {
        "garden.shed": PackagingErrorReason.REFUSED_BY_HOOK,
        "garden.path": PackagingErrorReason.DENIED,
        "not_anywhere": PackagingErrorReason.SOURCE_FILE_NOT_FOUND,
    }
    assert "no_sheds raised ValueError: sheds are not shipped" in problems["garden.shed"].message
    assert problems["garden.shed"].chain == ("gardener", "garden.shed")


def test_all_hooks_run_even_if_one_refuses(garden):
    calls: list[str] = []

    def refuse(exporter: PackageExporter, name: str) -> None:
        raise RuntimeError("no")

    exporter = exporter_with(("extern", "garden"))
    exporter.register_extern_hook(refuse)
    exporter.register_extern_hook(lambda _, name: calls.append(name))
    exporter.save_source_string("gardener", "import garden")
    assert calls == ["garden"]
    assert len(exporter.plan().problems) == 1


def test_returning_something_else_is_that_modules_problem(garden):
    exporter = exporter_with(("extern", "garden"))
    exporter.register_extern_hook(lambda *_: "mock")
    exporter.save_source_string("gardener", "import garden")
    (problem,) = exporter.plan().problems
    assert problem.code == PackagingErrorReason.REFUSED_BY_HOOK
    assert "returned 'mock'; a hook returns None or an Action" in problem.message


def test_interrupt_in_hook_propagates(garden):
    def interrupted(exporter: PackageExporter, name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), exporter_with(("extern", "garden")) as exporter:
        exporter.register_extern_hook(interrupted)
        exporter.save_source_string("gardener", "import garden")


def test_exporter_shows_rule_and_importers_in_hook(garden):
    matches = {}

    def note(exporter: PackageExporter, name: str) -> None:
        matches[name] = exporter.current_match

    with exporter_with(("mock", "garden.rose"), ("intern", "garden.**")) as exporter:
        assert exporter.current_match is None
        exporter.register_mock_hook(note)
        exporter.register_intern_hook(note)
        exporter.save_source_string("gardener", "\nimport garden.rose\nfrom garden import shed")
        assert exporter.current_match is None
    match = matches["garden.rose"]
    assert match is not None
    assert (match.module, str(match.rule)) == ("garden.rose", "mock('garden.rose')")
    assert match.action is Action.MOCK
    assert [(edge.importer, edge.line) for edge in match.importers] == [("gardener", 2)]
    assert str(matches["garden.shed"].rule) == "intern('garden.**')"


def test_handles_are_torchs_and_removing_one_stops_its_hook_only(garden):
    calls: list[str] = []
    with exporter_with(("intern", "garden.rose"), ("intern", "garden.path")) as exporter:
        kept = exporter.register_intern_hook(lambda _, name: calls.append("kept " + name))
        gone = exporter.register_intern_hook(lambda _, name: calls.append("gone " + name))
        assert isinstance(kept, RemovableHandle) and isinstance(gone, RemovableHandle)
        exporter.save_source_string("gardener", "import garden.path")
        gone.remove()
        gone.remove()
        exporter.save_source_string("neighbor", "import garden.rose")
    assert calls == ["kept garden.path", "gone garden.path", "kept garden.rose"]


def test_handle_works_as_a_context_manager(garden):
    calls: list[str] = []
    with exporter_with(("extern", ["garden.rose", "garden.path"])) as exporter:
        with exporter.register_extern_hook(lambda _, name: calls.append(name)):
            exporter.save_source_string("gardener", "import garden.path")
        exporter.save_source_string("neighbor", "import garden.rose")
    assert calls == ["garden.path"]


def test_pickles_texts_and_binaries_fire_nothing():
    calls: list[str] = []
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("**")
        for kind in ("intern", "extern", "mock", "deny"):
            getattr(exporter, f"register_{kind}_hook")(lambda _, name: calls.append(name))
        exporter.save_pickle("res", "numbers.pkl", [1, 2, 3])
        exporter.save_text("res", "a.txt", "text")
        exporter.save_binary("res", "b.bin", b"bytes")
    assert calls == []


def test_standard_library_and_torch_fire_extern_hooks():
    calls: list[str] = []
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.register_extern_hook(lambda _, name: calls.append(name))
        exporter.save_source_string("user", "import sys, io, os.path, torch.nn.functional")
    assert {"sys", "io", "os.path", "os", "torch.nn.functional", "torch.nn", "torch"} == set(calls)
    assert len(calls) == len(set(calls))


def test_hook_may_query_exporter_and_save_more(garden):
    def curious(exporter: PackageExporter, name: str) -> None:
        assert name not in exporter.plan().decisions
        exporter.get_rdeps(name)
        exporter.dependency_graph_string()
        if name == "garden.rose":
            exporter.save_source_string("extra_code", "import garden.shed")
            exporter.save_text("garden", "notes.txt", "from a hook")

    with exporter_with(("extern", "garden.**")) as exporter:
        exporter.register_extern_hook(curious)
        exporter.save_source_string("gardener", "import garden.rose")
    assert exporter.externed_modules() == ["garden", "garden.rose", "garden.shed"]
    assert exporter.interned_modules() == ["extra_code", "gardener"]


def test_hook_may_save_the_very_module_by_name(garden):
    def rather_take_it(exporter: PackageExporter, name: str) -> None:
        if name == "garden.path":
            exporter.save_module(name)

    with exporter_with(("extern", "garden.**")) as exporter:
        exporter.register_extern_hook(rather_take_it)
        exporter.save_source_string("gardener", "import garden.path")
    assert "garden.path" in exporter.interned_modules()
    assert "garden.path" not in exporter.externed_modules()


def test_module_saved_by_name_fires_matching_hooks(garden):
    calls: list[str] = []
    with exporter_with(("intern", "garden.**")) as exporter:
        exporter.register_intern_hook(lambda _, name: calls.append(name))
        exporter.save_module("garden.path")
        exporter.save_module("garden.path")
        exporter.save_source_string("unmatched", "")
    assert calls == ["garden.path", "garden"]


def test_hook_registered_later_sees_later_decisions(garden):
    calls: list[str] = []
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.save_source_string("gardener", "import garden.path")
        exporter.register_intern_hook(lambda _, name: calls.append(name))
        exporter.intern("garden.**")
    assert sorted(calls) == ["garden", "garden.path"]


@pytest.mark.parametrize(
    "hook", [lambda: None, lambda exporter: None, lambda a, b, c: None, 3, "hook", None]
)
def test_invalid_hook_is_rejected_at_registration(hook):
    exporter = PackageExporter(None)
    for kind in ("intern", "extern", "mock", "deny"):
        with pytest.raises(TypeError, match="hook"):
            getattr(exporter, f"register_{kind}_hook")(hook)


def test_methods_and_callable_objects_can_be_hooks(garden):
    class Listens:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def method(self, exporter: PackageExporter, module_name: str) -> None:
            self.heard.append(module_name)

        def __call__(self, exporter: PackageExporter, module_name: str) -> None:
            self.heard.append(module_name.upper())

    listener = Listens()
    with exporter_with(("extern", "garden")) as exporter:
        exporter.register_extern_hook(listener.method)
        exporter.register_extern_hook(listener)
        exporter.save_source_string("gardener", "import garden")
    assert listener.heard == ["garden", "GARDEN"]


def test_package_records_which_match_hooks_were_called(tmp_path):
    def watch(exporter, module):
        return None

    path = tmp_path / "watched.modpack"
    with PackageExporter(path) as exporter:
        exporter.register_extern_hook(watch)
        exporter.save_source_string("watchedcode", "import json")
    with open_archive(path) as archive:
        recorded = plan_from_json(json.loads(archive.read(".data/modpack/graph.json")))
    (called,) = recorded.decisions["json"].hooks
    assert called.endswith("watch")
    assert recorded.decisions["watchedcode"].hooks == ()
