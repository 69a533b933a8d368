"""The benchmark of modpack and other tools: its ratios, goals, and page. Nothing is timed."""

import cProfile
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "benchmarks" / "peers"


@pytest.fixture
def judge(tool):
    """Judge the rounds of ours and theirs against "10 times faster"."""
    figures = tool("figures")

    def judge(ours, theirs, **bound):
        sides = figures.Side("modpack", "load"), figures.Side("peer", "load")
        goal = figures.Goal("load", *sides, **(bound or {"at_least": 10}))
        return figures.judge(goal, dict(zip(sides, (ours, theirs), strict=True)), {})

    return judge


def test_ratio_is_computed_from_medians(judge):
    assert judge([1, 2, 9], [30, 20, 10]).ratio == 10


def test_goal_is_met_at_its_bound(judge):
    assert judge([1] * 3, [10] * 3).is_met
    assert not judge([1] * 3, [9.9] * 3).is_met


def test_no_more_than_is_met_by_less_and_not_by_more(judge):
    assert judge([11] * 3, [10] * 3, at_most=1.2).is_met
    assert not judge([13] * 3, [10] * 3, at_most=1.2).is_met


def test_rounds_are_compared_with_their_own_round(judge):
    outcome = judge([1, 2, 4], [20, 40, 80])
    assert (outcome.lowest, outcome.ratio, outcome.highest) == (20, 20, 20)


def test_goal_without_peer_is_absolute_limit(tool):
    figures = tool("figures")
    side = figures.Side("modpack", "CPU")
    goal = figures.Goal("CPU", side, figures.Absolute(0.06, "s"), at_most=1)
    assert figures.judge(goal, {side: [0.05, 0.04, 0.05]}, {}).is_met
    assert not figures.judge(goal, {side: [0.05, 0.07, 0.08]}, {}).is_met


def test_zero_meets_every_limit(tool):
    """A difference of two times may come out as zero, or below."""
    figures = tool("figures")
    side = figures.Side("modpack", "CPU")
    goal = figures.Goal("CPU", side, figures.Absolute(0.06, "s"), at_most=1)
    assert figures.judge(goal, {side: [0.0, -0.001, 0.0]}, {}).is_met


def test_unmeasured_goal_is_not_met_with_reason(tool):
    figures = tool("figures")
    ours, theirs = figures.Side("modpack", "load"), figures.Side("peer", "load")
    goal = figures.Goal("load", ours, theirs, at_least=2)
    without_ours = figures.judge(goal, {theirs: [1.0]}, {"modpack": "not built"})
    without_theirs = figures.judge(goal, {ours: [1.0]}, {"peer": "out of memory"})
    assert not without_ours.is_met
    assert without_ours.missing == "not built"
    assert without_theirs.missing == "peer: out of memory"


@pytest.fixture
def measured(tool):
    """A row of two goals: one is missed, of the other there is nothing."""
    figures = tool("figures")
    ours, theirs = figures.Side("modpack", "loading"), figures.Side("peer", "loading")
    later = figures.Side("modpack, warm", "loading")
    goals = (
        figures.Goal("loading", ours, theirs, at_least=100),
        figures.Goal("loading, warm", later, theirs, at_least=200),
    )
    samples = {ours: [0.02, 0.02, 0.02], theirs: [1.0, 1.5, 1.2]}
    missing = {"modpack, warm": "not built"}
    return figures.Measured("load", "load it", goals, samples, missing)


def test_table_has_ratio_goal_verdict_and_range(tool, measured):
    page = tool("page").rendered([measured], rounds=3)
    assert (
        "| load it | loading | ≥ 100x faster than peer | 60x | 50x to 75x | **no** |\n"
        "|  | loading, warm | ≥ 200x faster than peer |  |  | not built |\n"
    ) in page


def test_figures_have_medians_and_spreads(tool, measured):
    page = tool("page").rendered([measured], rounds=3)
    assert "| modpack | 20 ms ± 0% |" in page
    assert "| peer | 1.2 s ± 25% |" in page
    assert "| modpack, warm | not built |" in page


def test_page_of_other_sizes_is_marked(tool, measured):
    rendered = tool("page").rendered
    assert "Smoke test" in rendered([measured], rounds=3, share=20)
    assert "Smoke test" not in rendered([measured], rounds=3)


def test_measurements_are_read_back_as_they_were_kept(tool, measured, tmp_path):
    measuring = tool("measuring")
    file = tmp_path / "kept.json"
    file.write_text(measuring.to_json([measured], 3))
    row = measuring.Row("load", "load it", (), {}, measured.goals)
    other = measuring.Row("unmeasured", "not measured", (), {}, ())
    assert measuring.read_back(file, [other, row]) == ([measured], 3)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1.234, "s", "1.23 s"),
        (0.0301, "s", "30.1 ms"),
        (0.0000021, "s", "2.1 µs"),
        (150e6, "B", "150.0 MB"),
        (0, "B", "0.0 MB"),
    ],
)
def test_quantities_are_shown_with_three_digits(tool, value, unit, shown):
    assert tool("page").shown_quantity(value, unit) == shown


def test_every_goal_is_about_something_that_is_measured(tool):
    """Each side of a goal names a subject of its row; what metrics there are, its job tells."""
    for row in tool("rows").rows():
        for goal in row.goals:
            assert goal.ours.subject in row.subjects
            assert getattr(goal.theirs, "subject", goal.ours.subject) in row.subjects
            assert (goal.at_least is None) != (goal.at_most is None)


def test_every_job_of_a_row_exists(tool):
    jobs = tool("jobs").JOBS
    for row in tool("rows").rows():
        assert {job.name for job in (*row.prepare, *row.subjects.values())} <= set(jobs)


def test_rows_have_names_of_their_own(tool):
    names = [row.name for row in tool("rows").rows()]
    assert len(set(names)) == len(names)


def test_every_subject_has_its_turn_first(tool, monkeypatch, tmp_path):
    measuring, figures = tool("measuring"), tool("figures")
    turns = []
    monkeypatch.setattr(
        measuring, "figures_of", lambda job, folder: turns.append(job.name) or {"time": 1.0}
    )
    subjects = {name: measuring.Job(name) for name in "abc"}
    row = measuring.Row("row", "a row", (), subjects, ())
    found = measuring.measure(row, 3, tmp_path, lambda line: None)
    assert "".join(turns) == "abcbcacab"
    assert found.samples[figures.Side("b", "time")] == [1.0, 1.0, 1.0]


def test_failed_subject_is_reported_and_not_repeated(tool, monkeypatch, tmp_path):
    measuring = tool("measuring")
    tries = []

    def figures_of(job, folder):
        tries.append(job.name)
        if job.name == "b":
            raise measuring.Failed("MemoryError")
        return {"time": 1.0}

    monkeypatch.setattr(measuring, "figures_of", figures_of)
    subjects = {name: measuring.Job(name) for name in "ab"}
    row = measuring.Row("row", "a row", (), subjects, ())
    found = measuring.measure(row, 3, tmp_path, lambda line: None)
    assert found.missing == {"b": "MemoryError"}
    assert tries.count("b") == 1


def test_failed_preparation_is_reported_and_skips_the_case(tool, monkeypatch, tmp_path):
    measuring, figures = tool("measuring"), tool("figures")

    def figures_of(job, folder):
        raise measuring.Failed(f"{job.name} is broken")

    monkeypatch.setattr(measuring, "figures_of", figures_of)
    goal = figures.Goal("time", figures.Side("a", "time"), figures.Absolute(1, "s"), at_most=1)
    row = measuring.Row("r", "a row", (measuring.Job("p"),), {"a": measuring.Job("a")}, (goal,))
    (outcome,) = measuring.measure(row, 3, tmp_path, lambda line: None).outcomes
    assert outcome.missing == "cannot prepare p: p is broken"


def test_failed_process_shows_its_last_line(tool, tmp_path):
    measuring = tool("measuring")
    with pytest.raises(measuring.Failed, match="KeyError: 'nowhere'"):
        measuring.figures_of(measuring.Job("load", {"how": "nowhere"}), tmp_path)


def test_project_of_many_modules_is_importable(tool, tmp_path):
    tool("project").write_project(tmp_path, 12)
    code = "import app.main, sys; print(sum(m.startswith('app.m0') for m in sys.modules))"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout == "12\n"


def test_only_timed_code_is_profiled(tool, monkeypatch):
    clocks = tool("clocks")
    profile = cProfile.Profile()
    monkeypatch.setattr(clocks, "_profile", profile)
    with clocks.clock(warming_up=True):
        sorted([1])
    with clocks.clock() as seconds:
        len([2])
    profile.create_stats()
    names = {name for _, _, name in profile.stats}
    assert any("len" in name for name in names)
    assert not any("sorted" in name for name in names)
    assert seconds() > 0


def test_clean_pages_of_libraries_are_not_private(tool):
    mappings = """\
7f00-7f01 r-xp 00000000 08:01 17 /usr/lib/libtorch_cpu.so.2
Private_Clean:      700 kB
Private_Dirty:       10 kB
7f01-7f02 rw-p 00000000 08:01 18 /tmp/model.modpack
Shared_Clean:        50 kB
Private_Clean:       20 kB
Private_Dirty:        4 kB
7f02-7f03 rw-p 00000000 00:00 0
Private_Dirty:        1 kB
VmFlags: rd wr mr"""
    assert tool("clocks").private_in(mappings.splitlines()) == (10 + 20 + 4 + 1) * 1024


@pytest.mark.parametrize(
    "options",
    [
        ["--write", "--fast"],
        ["--rounds", "2"],
        ["--folder", "nowhere", "--only", "machine", "--fast"],
        ["--profile", "nowhere", "--only", "machine", "--fast"],
        ["--render", "nowhere.json"],
    ],
)
def test_run_with_reduced_sizes_cannot_write_page(options):
    done = subprocess.run(
        [sys.executable, str(PEERS), *options], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert "error" in done.stderr
    assert "Traceback" not in done.stderr
