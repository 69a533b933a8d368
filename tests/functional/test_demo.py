"""The demo, as somebody who has just cloned the project runs it."""

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
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """What `modpack demo` printed without a terminal, and the folder that it kept."""
    kept = tmp_path_factory.mktemp("demo") / "kept"
    command = [sys.executable, "-m", "modpack", "demo", "--keep", str(kept)]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    return done, kept


def test_the_demo_succeeds_and_says_so(told):
    done, _ = told
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 7 promises were kept." in done.stdout
    assert "FAILED" not in done.stdout


def test_it_prints_what_was_interned_externed_and_mocked_and_why(told):
    lines = told[0].stdout.splitlines()
    assert any("interned: 4 modules" in line and "digits_cnn.**" in line for line in lines)
    assert any("externed:" in line and "torch" in line for line in lines)
    assert any("mocked: 1 module" in line and "labplot.**" in line for line in lines)
    assert any("labplot" in line and "digits_cnn/plots.py:3" in line for line in lines)


def test_it_shows_that_the_hooks_fired_on_both_sides(told):
    fired = "normalize 6, feature maps 6, 1 wrong shape refused"
    assert told[0].stdout.count(fired) == 2


def test_its_output_is_plain_text_where_there_is_no_terminal(told):
    assert "\x1b" not in told[0].stdout


def test_it_keeps_the_project_and_the_package_where_it_was_told_to(told):
    _, kept = told
    assert (kept / "digits.modpack").is_file()
    assert (kept / "project" / "digits_cnn" / "model.py").is_file()


def test_a_broken_promise_is_told_and_ends_with_1(monkeypatch):
    monkeypatch.setattr(checks, "GOOD_ENOUGH", 1.0)
    console = Console(file=io.StringIO(), width=120)
    assert run(console, epochs=EPOCHS) == 1
    text = console.file.getvalue()
    assert "1 of 7 promises were broken." in text
    assert "All 6" not in text


def test_the_project_is_forgotten_after_its_use(tmp_path):
    (tmp_path / "somebodys_project.py").write_text("answer = 42\n")
    with importable(tmp_path):
        import somebodys_project

        assert somebodys_project.answer == 42
    assert "somebodys_project" not in sys.modules
    assert str(tmp_path) not in sys.path


OBSERVED = Observation(
    images=360,
    accuracy=0.99,
    logits="aa",
    normalize_calls=6,
    feature_map_calls=6,
    feature_maps="bb",
    refusal="expected another shape",
    predictions=[1, 2],
    gradients="cc",
    largest_gradient=0.05,
)
DECIDED = {"mine": Action.INTERN, "theirs": Action.MOCK}
HEARD = [(Action.MOCK, "theirs"), (Action.INTERN, "mine")]
RELOADED = Reloaded(
    unknown=["mine", "theirs"],
    load_seconds=0.1,
    seconds=1.0,
    module="anything.mine",
    mocked="theirs was mocked out",
    observed=OBSERVED,
)


def broken(reloaded: Reloaded, heard: list[tuple[Action, str]] = HEARD) -> list[str]:
    found = checks.compare(OBSERVED, DECIDED, heard, reloaded)
    return [check.promise for check in found if not check.kept]


def test_nothing_is_broken_where_both_sides_agree():
    assert broken(RELOADED) == []


@pytest.mark.parametrize(
    ("reloaded", "promise"),
    [
        (replace(RELOADED, observed=replace(OBSERVED, logits="ab")), "bit-identical"),
        (replace(RELOADED, observed=replace(OBSERVED, accuracy=0.9)), "more than 95%"),
        (replace(RELOADED, observed=replace(OBSERVED, normalize_calls=0)), "hooks fire"),
        (replace(RELOADED, observed=replace(OBSERVED, feature_maps="bc")), "hooks fire"),
        (replace(RELOADED, observed=replace(OBSERVED, refusal="")), "hooks fire"),
        (replace(RELOADED, unknown=["theirs"]), "cannot be imported"),
        (replace(RELOADED, mocked=""), "mock fails"),
    ],
)
def test_each_difference_breaks_its_promise(reloaded, promise):
    (told,) = broken(reloaded)
    assert promise in told


def test_a_match_hook_that_is_called_twice_breaks_a_promise():
    (told,) = broken(RELOADED, [*HEARD, HEARD[0]])
    assert "match hook" in told
