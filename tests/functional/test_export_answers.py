"""Queries of an exporter before and after it is closed: plans, lists, and graphs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch

from modpack import Action, PackageExporter

SIZE = 3_000


@pytest.fixture
def harbour(project) -> None:
    project(
        {
            "harbour/__init__.py": "",
            "harbour/ship.py": "import harbour.sail, harbour.mast",
            "harbour/sail.py": "import harbour.rope",
            "harbour/mast.py": "import harbour.rope",
            "harbour/rope.py": "import json",
        }
    )


def exporter_of_harbour(target: object = None) -> PackageExporter:
    exporter = PackageExporter(target)
    exporter.mock("harbour.mast")
    exporter.intern("harbour.**")
    exporter.save_source_string("captain", "import harbour.ship")
    return exporter


def edges(dot: str) -> set[tuple[str, str]]:
    return set(re.findall(r'"(.*)" -> "(.*)";', dot))


def test_modules_are_listed_by_decision_and_sorted(harbour):
    exporter = exporter_of_harbour()
    exporter.deny("wave")
    exporter.save_source_string("listener", "import wave")
    assert exporter.interned_modules() == [
        "captain",
        "harbour",
        "harbour.rope",
        "harbour.sail",
        "harbour.ship",
        "listener",
    ]
    assert exporter.mocked_modules() == ["harbour.mast"]
    assert exporter.externed_modules() == ["json"]
    assert exporter.denied_modules() == ["wave"]


def test_rdeps_are_the_direct_importers(harbour):
    exporter = exporter_of_harbour()
    exporter.save_pickle("m", "t.pkl", torch.ones(1))
    assert exporter.get_rdeps("harbour.ship") == ["captain"]
    assert exporter.get_rdeps("harbour.rope") == ["harbour.sail"]
    assert "<m/t.pkl>" in exporter.get_rdeps("torch._utils")
    assert exporter.get_rdeps("never_heard_of") == []


def test_all_paths_are_all_edges_between_two_modules(project):
    project(
        {
            "net_a.py": "import net_b, net_c, net_side",
            "net_b.py": "import net_d",
            "net_c.py": "import net_b, net_d",
            "net_d.py": "import net_e",
            "net_e.py": "",
            "net_side.py": "",
        }
    )
    exporter = PackageExporter(None)
    exporter.intern("net_*")
    exporter.save_module("net_a")
    assert edges(exporter.all_paths("net_a", "net_d")) == {
        ("net_a", "net_b"),
        ("net_a", "net_c"),
        ("net_b", "net_d"),
        ("net_c", "net_b"),
        ("net_c", "net_d"),
    }
    assert edges(exporter.all_paths("net_d", "net_a")) == set()
    assert edges(exporter.all_paths("net_a", "never_heard_of")) == set()
    assert edges(exporter.all_paths("net_a", "net_a")) == set()


def test_paths_terminate_on_large_cyclic_graph():
    exporter = PackageExporter(None)
    for number in range(SIZE):
        targets = [(number + 1) % SIZE, (number * 7) % SIZE, (number - 1) % SIZE]
        code = "".join(f"import ring_{target}\n" for target in targets)
        exporter.save_source_string(f"ring_{number}", code)
    dot = exporter.all_paths("ring_0", f"ring_{SIZE // 2}")
    assert len(edges(dot)) == len(edges(exporter.dependency_graph_string()))
    assert exporter.plan().why("ring_17") == ("ring_17",)


def test_dependency_graph_is_dot(harbour):
    dot = exporter_of_harbour().dependency_graph_string()
    assert dot.startswith("digraph G {") and dot.endswith("}\n")
    assert edges(dot) == {
        ("captain", "harbour.ship"),
        ("harbour.ship", "harbour"),
        ("harbour.ship", "harbour.sail"),
        ("harbour.ship", "harbour.mast"),
        ("harbour.sail", "harbour"),
        ("harbour.sail", "harbour.rope"),
        ("harbour.mast", "harbour"),
        ("harbour.rope", "harbour"),
        ("harbour.rope", "json"),
    }


def test_answers_take_later_rules_into_account(harbour):
    exporter = PackageExporter(None)
    exporter.save_source_string("captain", "import harbour.ship")
    assert exporter.get_rdeps("harbour.rope") == []
    exporter.intern("harbour.**")
    assert exporter.get_rdeps("harbour.rope") == ["harbour.sail", "harbour.mast"]


def test_unique_ids_never_repeat():
    exporter = PackageExporter(None)
    ids = [exporter.get_unique_id() for _ in range(100)]
    assert len(set(ids)) == 100 and all(isinstance(each, str) for each in ids)


def test_planning_writes_nothing_and_raises_nothing(harbour, tmp_path: Path):
    folder = tmp_path / "target"
    folder.mkdir()
    exporter = exporter_of_harbour(folder / "out.pt")
    exporter.deny("harbour.rope")
    exporter.save_module("not_there")
    exporter.save_source_string("broken", "x = = 1")
    assert exporter.plan().problems
    assert list(folder.iterdir()) == []


def test_plan_after_saving_objects_leaves_the_target_alone(tmp_path: Path):
    target = tmp_path / "out.pt"
    target.write_bytes(b"old")
    exporter = PackageExporter(target)
    exporter.save_pickle("m", "t.pkl", torch.ones(1000))
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    exporter.plan()
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert target.read_bytes() == b"old"


def test_repeated_plan_adds_later_objects(harbour):
    exporter = exporter_of_harbour()
    first = exporter.plan()
    assert exporter.plan() == first
    exporter.save_source_string("mate", "import harbour.rope, wave")
    second = exporter.plan()
    assert set(second.decisions) - set(first.decisions) == {"mate", "wave"}
    assert "mate" not in first.decisions
    assert exporter.close() == second


def test_plan_does_not_change_the_package(harbour):
    written = []
    for plans in (0, 3):
        buffer = io.BytesIO()
        exporter = exporter_of_harbour(buffer)
        for _ in range(plans):
            exporter.plan()
        exporter.close()
        written.append(buffer.getvalue())
    assert written[0] == written[1]


def test_plan_lists_decisions_reasons_and_chains(harbour):
    plan = exporter_of_harbour().plan()
    assert plan.decisions["harbour.mast"].action is Action.MOCK
    assert plan.decisions["harbour.mast"].why == "mock('harbour.mast')"
    assert plan.why("harbour.rope") == ("captain", "harbour.ship", "harbour.sail", "harbour.rope")
    assert "interned: 5" in str(plan) and "mocked: 1 (harbour.mast)" in str(plan)
    location = plan.decisions["harbour.sail"].location
    assert location is not None and str(location.file).endswith("harbour/sail.py")


def test_failed_exports_exporter_still_answers(harbour):
    exporter = exporter_of_harbour(io.BytesIO())
    with pytest.raises(ZeroDivisionError), exporter:
        raise ZeroDivisionError
    assert exporter.mocked_modules() == ["harbour.mast"]
    assert not exporter.plan().problems
