"""The demo, run from a clone of the project."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from modpack import Action
from modpack.demo import story as checks
from modpack.demo.clean_room import Observation, Reloaded
from modpack.demo.story import importable, run

REPOSITORY = Path(__file__).resolve().parents[2]
EPOCHS = 6


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run `modpack demo` without a terminal; return the process and the folder that it kept."""
    kept = tmp_path_factory.mktemp("demo") / "kept"
    command = [sys.executable, "-m", "modpack", "demo", "--keep", str(kept)]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    return done, kept


def test_demo_reports_success(demo):
    done, _ = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 8 checks passed." in done.stdout
    assert "FAILED" not in done.stdout


def test_demo_prints_modules_by_action_and_rule(demo):
    lines = demo[0].stdout.splitlines()
    assert any("interned: 4 modules" in line and "digits_cnn.**" in line for line in lines)
    assert any("externed:" in line and "torch" in line for line in lines)
    assert any("mocked: 1 module" in line and "labplot.**" in line for line in lines)
    assert any("labplot" in line and "digits_cnn/plots.py:3" in line for line in lines)


def test_demo_prints_hook_calls_of_both_interpreters(demo):
    fired = "normalize 6, feature maps 6, 1 wrong shape rejected"
    assert demo[0].stdout.count(fired) == 2


def test_demo_without_terminal_prints_plain_text(demo):
    assert "\x1b" not in demo[0].stdout


def test_demo_keep_leaves_project_and_package(demo):
    _, kept = demo
    assert (kept / "digits.modpack").is_file()
    assert (kept / "project" / "digits_cnn" / "model.py").is_file()


def test_run_with_failed_check_returns_1(monkeypatch):
    monkeypatch.setattr(checks, "MIN_ACCURACY", 1.0)
    console = Console(file=io.StringIO(), width=120)
    assert run(console, epochs=EPOCHS) == 1
    text = console.file.getvalue()
    assert "1 of 8 checks failed." in text
    assert "All 6" not in text


def test_importable_removes_modules_afterwards(tmp_path):
    (tmp_path / "sample_project.py").write_text("answer = 42\n")
    with importable(tmp_path):
        import sample_project

        assert sample_project.answer == 42
    assert "sample_project" not in sys.modules
    assert str(tmp_path) not in sys.path


OBSERVED = Observation(
    images=360,
    accuracy=0.99,
    logits="aa",
    normalize_calls=6,
    feature_map_calls=6,
    feature_maps="bb",
    rejection="expected another shape",
    predictions=[1, 2],
    gradients="cc",
    largest_gradient=0.05,
)
DECIDED = {"mine": Action.INTERN, "theirs": Action.MOCK}
ANNOUNCED = [(Action.MOCK, "theirs"), (Action.INTERN, "mine")]
RELOADED = Reloaded(
    unknown=["mine", "theirs"],
    load_seconds=0.1,
    seconds=1.0,
    module="anything.mine",
    mocked="theirs is mocked",
    observed=OBSERVED,
)


def failed_checks(reloaded: Reloaded, announced: list[tuple[Action, str]] = ANNOUNCED) -> list[str]:
    found = checks.compare(OBSERVED, DECIDED, announced, reloaded)
    return [check.expectation for check in found if not check.passed]


def test_compare_of_equal_observations_passes():
    assert failed_checks(RELOADED) == []


@pytest.mark.parametrize(
    ("reloaded", "expectation"),
    [
        (replace(RELOADED, observed=replace(OBSERVED, logits="ab")), "bit-identical"),
        (replace(RELOADED, observed=replace(OBSERVED, accuracy=0.9)), "above 95%"),
        (replace(RELOADED, observed=replace(OBSERVED, normalize_calls=0)), "hooks fire"),
        (replace(RELOADED, observed=replace(OBSERVED, feature_maps="bc")), "hooks fire"),
        (replace(RELOADED, observed=replace(OBSERVED, rejection="")), "hooks fire"),
        (replace(RELOADED, unknown=["theirs"]), "cannot import the project"),
        (replace(RELOADED, mocked=""), "mock raises"),
    ],
)
def test_compare_reports_each_difference(reloaded, expectation):
    (failed,) = failed_checks(reloaded)
    assert expectation in failed


def test_compare_reports_match_hook_called_twice():
    (failed,) = failed_checks(RELOADED, [*ANNOUNCED, ANNOUNCED[0]])
    assert "match hook" in failed
