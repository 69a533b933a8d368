"""The benchmark beside the peers: its ratios, verdicts, noise, page and plot. Nothing is timed."""

import dataclasses
import subprocess
import sys
import xml.etree.ElementTree as ET
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
        return figures.judge(goal, [dict(zip(sides, (ours, theirs), strict=True))], {})

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
    assert outcome.spread == 1


def test_variation_below_margin_is_not_noisy(judge):
    outcome = judge([1, 1, 1], [18, 20, 22])
    assert outcome.is_met
    assert not outcome.is_noisy


def test_variation_above_margin_is_noisy(judge):
    assert judge([1, 1, 1], [9, 11, 12]).is_noisy
    assert judge([1, 1, 1], [8, 9, 13]).is_noisy


def test_goal_without_peer_is_absolute_limit(tool):
    figures = tool("figures")
    side = figures.Side("modpack", "CPU")
    goal = figures.Goal("CPU", side, figures.Absolute(0.06, "s"), at_most=1)
    assert figures.judge(goal, [{side: [0.05, 0.04, 0.05]}], {}).is_met
    assert not figures.judge(goal, [{side: [0.05, 0.07, 0.08]}], {}).is_met


def test_zero_meets_every_limit(tool):
    """A difference of two times may come out as zero, or below."""
    figures = tool("figures")
    side = figures.Side("modpack", "CPU")
    goal = figures.Goal("CPU", side, figures.Absolute(0.06, "s"), at_most=1)
    assert figures.judge(goal, [{side: [0.0, -0.001, 0.0]}], {}).is_met


def test_unmeasured_goal_is_not_met_with_reason(tool):
    figures = tool("figures")
    ours, theirs = figures.Side("modpack", "load"), figures.Side("peer", "load")
    goal = figures.Goal("load", ours, theirs, at_least=2)
    without_ours = figures.judge(goal, [{theirs: [1.0]}], {"modpack": "not built"})
    without_theirs = figures.judge(goal, [{ours: [1.0]}], {"peer": "out of memory"})
    assert not without_ours.is_met
    assert not without_ours.is_noisy
    assert without_ours.missing == "not built"
    assert without_theirs.missing == "peer: out of memory"


@pytest.fixture
def several_runs(tool):
    """Judge runs of ours, beside a peer that always takes 10, against "10 times faster"."""
    figures = tool("figures")
    ours, theirs = figures.Side("modpack", "load"), figures.Side("peer", "load")
    goal = figures.Goal("load", ours, theirs, at_least=10)

    def run(*runs):
        samples = [{ours: each, theirs: [10] * 3} for each in runs]
        return figures.judge(goal, samples, {})

    return run


def test_goal_is_met_if_every_run_meets_it(several_runs):
    assert several_runs([0.9, 1, 1.1], [0.8, 1, 1.2]).is_met
    one = several_runs([0.5, 0.5, 0.5], [1.1, 1.1, 1.1])
    assert (one.ratio > 10, one.times_met, one.is_met) == (True, 1, False)
    assert one.is_noisy


def test_ratio_of_runs_is_the_median(several_runs):
    outcome = several_runs([1, 1, 1], [2, 2, 5], [4, 4, 4])
    assert outcome.in_runs == (10, 5, 2.5)
    assert outcome.ratio == 5
    assert (outcome.lowest, outcome.highest) == (2, 10)


def test_slower_machine_in_one_run_does_not_change_ratio(tool):
    figures = tool("figures")
    ours, theirs = figures.Side("modpack", "load"), figures.Side("peer", "load")
    goal = figures.Goal("load", ours, theirs, at_most=2)
    runs = [{ours: [2, 18, 2], theirs: [1, 9, 9]}, {ours: [19, 19, 19], theirs: [10, 10, 1]}]
    outcome = figures.judge(goal, runs, {})
    assert outcome.is_met
    assert outcome.ratio >= outcome.goal.bound


def test_limit_shows_its_ratio(tool):
    figures = tool("figures")
    ours, theirs, least = (figures.Side(name, "load") for name in ("modpack", "peer", "limit"))
    goal = figures.Goal("load", ours, theirs, at_least=10, limits=(least,))
    samples = {ours: [2] * 3, theirs: [10] * 3, least: [0.5] * 3}
    assert figures.judge(goal, [samples], {}).at_limits == ((least, 20),)
    del samples[least]
    assert figures.judge(goal, [samples], {}).at_limits == ()


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
    missing, pace = {"modpack, warm": "not built"}, {"one core": 0.1, "all cores": 0.15}
    return figures.Measured("load", "load it", goals, (samples,), missing, (pace,))


def test_table_has_ratio_goal_verdict_and_range(tool, measured):
    page = tool("page").rendered([measured], rounds=3)
    assert (
        "| load it | loading | ≥ 100x faster than peer | 60x | 60x | 50x to 75x | **no** |\n"
        "|  | loading, warm | ≥ 200x faster than peer |  |  |  | not built |\n"
    ) in page


def test_figures_have_medians_and_spreads(tool, measured):
    page = tool("page").rendered([measured], rounds=3)
    assert "| modpack | 20 ms ± 0% |" in page
    assert "| peer | 1.2 s ± 25% |" in page
    assert "| modpack, warm | not built |" in page


def test_page_shows_reference_time_of_each_run(tool, measured):
    figures, page = tool("figures"), tool("page")
    slower = {"one core": 0.3, "all cores": 0.5}
    again = dataclasses.replace(measured, paces=(slower,))
    other = dataclasses.replace(again, paces=({"one core": 0.2, "all cores": 0.15}, slower))
    text = page.rendered([figures.join([measured, again]), other], rounds=3)
    assert (
        "| run | one core | all cores |\n"
        "|---|---:|---:|\n"
        "| 1 | 150 ms (100 ms to 200 ms) | 150 ms (150 ms to 150 ms) |\n"
        "| 2 | 300 ms (300 ms to 300 ms) | 500 ms (500 ms to 500 ms) |\n"
    ) in text


def test_page_without_reference_times_omits_them(tool, measured):
    text = tool("page").rendered([dataclasses.replace(measured, paces=())], rounds=3)
    assert "Machine noise" not in text


def test_reference_work_runs_once_and_once_per_core(tool):
    pace = tool("rates").parse_at_once()
    assert pace["one core"] > 0
    assert pace["all cores"] > 0


def test_page_of_other_sizes_is_marked(tool, measured):
    rendered = tool("page").rendered
    assert "Smoke test" in rendered([measured], rounds=3, share=20)
    assert "Smoke test" not in rendered([measured], rounds=3)


@pytest.fixture
def run_three_times(tool, measured):
    """The same in three runs, of which two meet the goal; and what cannot be avoided."""
    figures = tool("figures")
    (run,) = measured.runs
    ours, theirs = list(run)
    least = figures.Side("limit: nothing", "loading")
    goal = figures.Goal("loading", ours, theirs, at_least=100, limits=(least,))
    runs = [
        figures.Measured("load", "load it", (goal,), ({**run, ours: [each] * 3, least: [1e-3]},))
        for each in (0.01, 0.02, 0.005)
    ]
    return figures.join(runs)


def test_table_has_ratio_of_each_run(tool, run_three_times):
    page = tool("page").rendered([run_three_times], rounds=3)
    assert "in 3 runs of 3 rounds" in page
    assert "| 120x, 60x, 240x |" in page
    assert "**in 2 of 3 runs**" in page


def test_page_shows_ratio_of_limit(tool, run_three_times):
    page = tool("page").rendered([run_three_times], rounds=3)
    assert "| 120x | **in 2 of 3 runs** | 1,200x | nothing |" in page


def test_page_lists_every_measured_limit(tool):
    figures, goals = tool("figures"), tool("rows")
    names = ["limit: nothing", "limit: unmeasured", "limit: by hand"]
    limited = goals.at_limits(names, goals.faster("loading", "peer", 10))
    taken = {"modpack": 2, "peer": 10, "limit: nothing": 0.5, "limit: by hand": 1}
    run = {figures.Side(subject, "loading"): [each] * 3 for subject, each in taken.items()}
    row = figures.Measured("load", "load it", limited, (run,))
    page = tool("page").rendered([row], rounds=3)
    assert "| 5x | **no** | 20x<br>10x | nothing<br>by hand |" in page


def test_measurements_are_read_back_as_they_were_kept(tool, measured, tmp_path):
    samples, measuring = tool("measuring"), tool("measuring")
    file = tmp_path / "kept.json"
    file.write_text(samples.to_json([measured], 3))
    row = measuring.Row("load", "load it", (), {}, measured.goals)
    other = measuring.Row("unmeasured", "not measured", (), {}, ())
    assert samples.read_back(file, [other, row]) == ([measured], 3)


def test_noisy_verdicts_are_marked_and_counted(tool):
    figures, page = tool("figures"), tool("page")
    ours, theirs = figures.Side("modpack", "loading"), figures.Side("peer", "loading")
    goals = (figures.Goal("loading", ours, theirs, at_least=2),)
    samples = {ours: [1, 1, 1], theirs: [1.0, 2.2, 3.0]}
    row = figures.Measured("load", "load it", goals, (samples,))
    text = page.rendered([row], rounds=3)
    assert "yes, noisy" in text
    assert "1 verdict is noisy" in text


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


def test_plot_has_bar_and_goal_for_each_ratio(tool):
    plot = tool("plot")
    bars = [
        plot.Bar("load <one>", 700.0, 500.0, 900.0, 100.0, "700x", True),
        plot.Bar("save", 0.9, 0.8, 1.1, 1.5, "0.9x", False),
    ]
    picture = ET.fromstring(plot.drawn(bars, "Ratios & goals"))
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"load <one>", "save", "700x", "0.9x", "1x", "1000x"} <= set(texts)
    met, missed = [e.get("fill") for e in picture.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert met != missed


def test_larger_ratios_have_longer_bars(tool):
    plot = tool("plot")
    bars = [plot.Bar(str(r), r, r, r, 1.0, "", True) for r in (0.1, 1.0, 10.0, 1000.0)]
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
            assert {limit.subject for limit in goal.limits} <= set(row.subjects)
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
    assert found.runs[0][figures.Side("b", "time")] == [1.0, 1.0, 1.0]


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


@pytest.mark.parametrize(
    "options",
    [
        ["--write", "--fast"],
        ["--rounds", "2"],
        ["--runs", "0"],
        ["--folder", "nowhere", "--only", "machine", "--fast"],
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
