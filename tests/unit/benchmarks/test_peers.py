"""The benchmark beside the peers: its ratios, verdicts, noise, page and plot. Nothing is timed."""

import importlib
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "benchmarks" / "peers"


@pytest.fixture
def tool(monkeypatch):
    """Import a module of the benchmark by its name, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(PEERS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(PEERS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def judge(tool):
    """Judge the rounds of ours and theirs against "10 times faster"."""
    figures = tool("figures")

    def judge(ours, theirs, **bound):
        sides = figures.Side("modpack", "load"), figures.Side("peer", "load")
        goal = figures.Goal("load", *sides, **(bound or {"at_least": 10}))
        return figures.judged(goal, dict(zip(sides, (ours, theirs), strict=True)), {})

    return judge


def test_a_ratio_is_that_of_the_medians(judge):
    assert judge([1, 2, 9], [30, 20, 10]).ratio == 10


def test_a_goal_is_met_at_its_bound(judge):
    assert judge([1] * 3, [10] * 3).is_met
    assert not judge([1] * 3, [9.9] * 3).is_met


def test_no_more_than_is_met_by_less_and_not_by_more(judge):
    assert judge([11] * 3, [10] * 3, at_most=1.2).is_met
    assert not judge([13] * 3, [10] * 3, at_most=1.2).is_met


def test_rounds_are_compared_with_their_own_round(judge):
    outcome = judge([1, 2, 4], [20, 40, 80])
    assert (outcome.lowest, outcome.ratio, outcome.highest) == (20, 20, 20)
    assert outcome.spread == 1


def test_what_varies_by_less_than_the_margin_is_not_noisy(judge):
    outcome = judge([1, 1, 1], [18, 20, 22])
    assert outcome.is_met
    assert not outcome.is_noisy


def test_what_varies_by_more_than_the_margin_is_noisy(judge):
    assert judge([1, 1, 1], [9, 11, 12]).is_noisy
    assert judge([1, 1, 1], [8, 9, 13]).is_noisy


def test_a_limit_that_no_peer_sets(tool):
    figures = tool("figures")
    side = figures.Side("modpack", "CPU")
    goal = figures.Goal("CPU", side, figures.Absolute(0.06, "s"), at_most=1)
    assert figures.judged(goal, {side: [0.05, 0.04, 0.05]}, {}).is_met
    assert not figures.judged(goal, {side: [0.05, 0.07, 0.08]}, {}).is_met


def test_nothing_at_all_keeps_any_limit(tool):
    """A difference of two times may come out as zero, or below."""
    figures = tool("figures")
    side = figures.Side("modpack", "CPU")
    goal = figures.Goal("CPU", side, figures.Absolute(0.06, "s"), at_most=1)
    assert figures.judged(goal, {side: [0.0, -0.001, 0.0]}, {}).is_met


def test_what_could_not_be_measured_is_not_met_and_says_why(tool):
    figures = tool("figures")
    ours, theirs = figures.Side("modpack", "load"), figures.Side("peer", "load")
    goal = figures.Goal("load", ours, theirs, at_least=2)
    without_ours = figures.judged(goal, {theirs: [1.0]}, {"modpack": "not built"})
    without_theirs = figures.judged(goal, {ours: [1.0]}, {"peer": "out of memory"})
    assert not without_ours.is_met
    assert not without_ours.is_noisy
    assert without_ours.missing == "not built"
    assert without_theirs.missing == "peer: out of memory"


@pytest.fixture
def measured(tool):
    """A row of two goals: one is missed, of the other there is nothing."""
    figures, page = tool("figures"), tool("page")
    ours, theirs = figures.Side("modpack", "loading"), figures.Side("peer", "loading")
    later = figures.Side("modpack, warm", "loading")
    goals = (
        figures.Goal("loading", ours, theirs, at_least=100),
        figures.Goal("loading, warm", later, theirs, at_least=200),
    )
    samples = {ours: [0.02, 0.02, 0.02], theirs: [1.0, 1.5, 1.2]}
    return page.Measured("load", "load it", goals, samples, {"modpack, warm": "not built"})


def test_the_table_has_ratio_goal_verdict_and_range(tool, measured):
    page = tool("page").rendered([measured], rounds=3)
    assert (
        "| load it | loading | ≥ 100x faster than peer | 60x | 50x to 75x | **no** |\n"
        "|  | loading, warm | ≥ 200x faster than peer |  |  | not built |\n"
    ) in page


def test_the_figures_have_medians_and_spreads(tool, measured):
    page = tool("page").rendered([measured], rounds=3)
    assert "| modpack | 20 ms ± 0% |" in page
    assert "| peer | 1.2 s ± 25% |" in page
    assert "| modpack, warm | not built |" in page


def test_a_page_of_other_sizes_says_so(tool, measured):
    rendered = tool("page").rendered
    assert "smoke test" in rendered([measured], rounds=3, share=20)
    assert "smoke test" not in rendered([measured], rounds=3)


def test_noisy_verdicts_are_marked_and_counted(tool):
    figures, page = tool("figures"), tool("page")
    ours, theirs = figures.Side("modpack", "loading"), figures.Side("peer", "loading")
    goals = (figures.Goal("loading", ours, theirs, at_least=2),)
    row = page.Measured("load", "load it", goals, {ours: [1, 1, 1], theirs: [1.0, 2.2, 3.0]})
    text = page.rendered([row], rounds=3)
    assert "yes, noisy" in text
    assert "1 of the verdicts below is noisy" in text


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


def test_the_plot_is_a_picture_with_a_bar_and_a_goal_for_each_ratio(tool):
    plot = tool("plot")
    bars = [
        plot.Bar("load <one>", 700.0, 500.0, 900.0, 100.0, "700x"),
        plot.Bar("save", 0.9, 0.8, 1.1, 1.5, "0.9x"),
    ]
    picture = ET.fromstring(plot.drawn(bars, "Ratios & goals"))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"load <one>", "save", "700x", "0.9x", "1x", "1000x"} <= set(texts)
    met, missed = [e.get("fill") for e in picture.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert met != missed


def test_larger_ratios_have_longer_bars(tool):
    plot = tool("plot")
    bars = [plot.Bar(str(r), r, r, r, 1.0, "") for r in (0.1, 1.0, 10.0, 1000.0)]
    picture = ET.fromstring(plot.drawn(bars, "bars"))
    rects = list(picture.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    widths = [float(rect.get("width")) for rect in rects]
    assert widths == sorted(set(widths))


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
        measuring, "_figures_of", lambda job, folder: turns.append(job.name) or {"time": 1.0}
    )
    subjects = {name: measuring.Job(name) for name in "abc"}
    row = measuring.Row("row", "a row", (), subjects, ())
    found = measuring.measured(row, 3, tmp_path, lambda line: None)
    assert "".join(turns) == "abcbcacab"
    assert found.samples[figures.Side("b", "time")] == [1.0, 1.0, 1.0]


def test_a_subject_that_fails_is_told_and_not_tried_again(tool, monkeypatch, tmp_path):
    measuring = tool("measuring")
    tries = []

    def figures_of(job, folder):
        tries.append(job.name)
        if job.name == "b":
            raise measuring._Failed("MemoryError")
        return {"time": 1.0}

    monkeypatch.setattr(measuring, "_figures_of", figures_of)
    subjects = {name: measuring.Job(name) for name in "ab"}
    row = measuring.Row("row", "a row", (), subjects, ())
    found = measuring.measured(row, 3, tmp_path, lambda line: None)
    assert found.missing == {"b": "MemoryError"}
    assert tries.count("b") == 1


def test_a_failing_process_tells_its_last_line(tool, tmp_path):
    measuring = tool("measuring")
    with pytest.raises(measuring._Failed, match="KeyError: 'nowhere'"):
        measuring._figures_of(measuring.Job("load", {"how": "nowhere"}), tmp_path)


def test_a_project_of_many_modules_can_be_imported(tool, tmp_path):
    tool("project").write_project(tmp_path, 12)
    code = "import app.main, sys; print(sum(m.startswith('app.m0') for m in sys.modules))"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout == "12\n"


@pytest.mark.parametrize("options", [["--write", "--fast"], ["--rounds", "2"]])
def test_what_would_not_be_worth_writing_is_refused(options):
    done = subprocess.run(
        [sys.executable, str(PEERS), *options], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert "error" in done.stderr
