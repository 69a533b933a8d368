"""The demo in ``examples``."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from modpack import Action

REPOSITORY = Path(__file__).resolve().parents[2]
EPOCHS = 6

with pytest.MonkeyPatch.context() as patched:
    patched.syspath_prepend(str(REPOSITORY / "examples" / "demo"))
    import behavior
    import story
    from behavior import Observation, compare
    from story import importable, run


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run it without a terminal; return the process and the folder that it kept."""
    kept = tmp_path_factory.mktemp("demo") / "kept"
    command = [sys.executable, "examples/demo", "--keep", str(kept)]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    return done, kept


def test_demo_reports_success(demo):
    done, _ = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 9 checks passed." in done.stdout
    assert "FAILED" not in done.stdout


def test_demo_prints_modules_by_action_and_rule(demo):
    text = demo[0].stdout
    rule = r"\n  rule: {}\('{}\.\*\*'\)\n    {} "
    for kind, count, name in (
        ("intern", "5 modules", "digits_cnn"),
        ("mock", "1 module", "labplot"),
    ):
        assert re.search(f"{kind}ed: {count}.*" + rule.format(kind, name, name), text)
    assert re.search(r"externed: .*\n.*\n.*torch", text)


def test_demo_tests_the_package_in_a_clean_interpreter(demo):
    text = demo[0].stdout
    assert re.search(r"modpack\.self_test\('digits\.modpack'\): passed in [\d.]+ s\.", text)
    assert "The interpreter cannot import digits_cnn." in text
    assert "not importable: digits_cnn, labplot" in text


def test_demo_prints_hook_calls_of_both_interpreters(demo):
    fired = "normalize 6, feature maps 6, 1 wrong shape rejected"
    assert demo[0].stdout.count(fired) == 2


def test_demo_without_terminal_prints_plain_text(demo):
    assert "\x1b" not in demo[0].stdout


def test_demo_keep_leaves_project_and_package(demo):
    _, kept = demo
    assert (kept / "digits.modpack").is_file()
    assert (kept / "project" / "digits_cnn" / "model.py").is_file()


def test_demo_rejects_zero_epochs():
    done = subprocess.run([sys.executable, "examples/demo", "--epochs", "0"], cwd=REPOSITORY)
    assert done.returncode == 2


def test_run_with_failed_check_returns_1(monkeypatch):
    monkeypatch.setattr(behavior, "MIN_ACCURACY", 1.0)
    console = Console(file=io.StringIO(), width=120)
    assert run(console, epochs=EPOCHS) == 1
    text = console.file.getvalue()
    assert "1 of 9 checks failed." in text
    assert "All 6" not in text


def test_demo_without_server_names_the_extra(monkeypatch):
    monkeypatch.setattr(story, "can_serve", lambda: False)
    console = Console(file=io.StringIO(), width=200)
    story._serve(console, Path(), Path(), None, 0)
    assert "Run: pip install 'modpack[serve]'" in console.file.getvalue()


def test_importable_removes_modules_afterwards(tmp_path):
    (tmp_path / "sample_project.py").write_text("answer = 42\n")
    with importable(tmp_path):
        import sample_project

        assert sample_project.answer == 42
    assert "sample_project" not in sys.modules
    assert str(tmp_path) not in sys.path


OBSERVED = Observation(
    logits=torch.ones(2, 10),
    accuracy=0.99,
    normalize_calls=6,
    feature_maps=[torch.ones(3)],
    rejection="expected another shape",
    gradients=[torch.full((2,), 0.05)],
)
DECIDED = {"mine": Action.INTERN, "theirs": Action.MOCK}
ANNOUNCED = [(Action.MOCK, "theirs"), (Action.INTERN, "mine")]


def failed_checks(
    reloaded: Observation = OBSERVED,
    mocked: str = "theirs is mocked",
    announced: list[tuple[Action, str]] = ANNOUNCED,
) -> list[str]:
    found = compare(OBSERVED, reloaded, mocked, DECIDED, announced)
    return [check.expectation for check in found if not check.passed]


def test_compare_of_equal_observations_passes():
    assert failed_checks() == []


@pytest.mark.parametrize(
    ("changes", "expectation"),
    [
        ({"logits": torch.zeros(2, 10)}, "bit-identical"),
        ({"accuracy": 0.9}, "above 95%"),
        ({"normalize_calls": 0}, "hooks fire"),
        ({"feature_maps": [torch.zeros(3)]}, "hooks fire"),
        ({"feature_maps": []}, "hooks fire"),
        ({"rejection": ""}, "hooks fire"),
        ({"gradients": [torch.full((2,), 0.04)]}, "gradients"),
    ],
)
def test_compare_reports_each_difference(changes, expectation):
    (failed,) = failed_checks(OBSERVED._replace(**changes))
    assert expectation in failed


def test_compare_reports_mock_that_raises_no_error():
    (failed,) = failed_checks(mocked="")
    assert "mock raises" in failed


def test_compare_reports_match_hook_called_twice():
    (failed,) = failed_checks(announced=[*ANNOUNCED, ANNOUNCED[0]])
    assert "match hook" in failed
