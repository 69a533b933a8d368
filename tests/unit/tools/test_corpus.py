"""The corpus proves what it says: libraries are really missing, and equal means equal."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import modpack

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tools" / "corpus"
RECIPES = sorted(file.stem for file in (CORPUS / "recipes").glob("*.py"))


@pytest.fixture
def tool(monkeypatch):
    """Import a module of the tool by its name, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(CORPUS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(CORPUS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def site(tmp_path):
    """A site-packages with two distributions in one shared folder, and one of its own.

    site/shared/one/a.py        belongs to "one"
    site/shared/two/b.py        belongs to "two"
    site/alone/__init__.py      belongs to "alone"
    """
    for file in ("shared/one/a.py", "shared/two/b.py", "alone/__init__.py", "alone.pth"):
        (tmp_path / "site" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / file).write_text("")
    return tmp_path / "site"


def test_hidden_distribution_leaves_no_trace(tool, site, tmp_path):
    hidden = {Path("alone/__init__.py"), Path("alone.pth")}
    tool("bare").link_all_but(hidden, site, tmp_path / "bare")
    assert [entry.name for entry in (tmp_path / "bare").iterdir()] == ["shared"]
    assert (tmp_path / "bare" / "shared").is_symlink()


def test_neighbors_of_hidden_distribution_stay(tool, site, tmp_path):
    tool("bare").link_all_but({Path("shared/one/a.py")}, site, tmp_path / "bare")
    shared = tmp_path / "bare" / "shared"
    assert not shared.is_symlink()
    assert [entry.name for entry in shared.iterdir()] == ["two"]
    assert (shared / "two" / "b.py").exists()


def test_bytecode_of_hidden_distribution_does_not_keep_it(tool, site, tmp_path):
    (site / "alone" / "__pycache__").mkdir()
    tool("bare").link_all_but({Path("alone/__init__.py")}, site, tmp_path / "bare")
    assert not (tmp_path / "bare" / "alone").exists()


def test_distributions_needed_for_loading_are_not_hidden(tool):
    assert {"torch", "typing-extensions", "packaging"} <= tool("bare").foundation()


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ([torch.zeros(2)], [torch.zeros(2)], None),
        ([torch.zeros(2)], [-torch.zeros(2)], "output[0] differs"),
        ({"a": torch.tensor(float("nan"))}, {"a": torch.tensor(float("nan"))}, None),
        ([torch.zeros(2)], [torch.zeros(2, dtype=torch.double)], "output[0] differs"),
        ([torch.zeros(2)], [torch.zeros(2, 1)], "output[0] differs"),
        ([1], [1.0], "output[0] differs"),
        ({"a": 1}, {"b": 1}, "different leaves: output['a'], output['b']"),
        ([torch.zeros(2), None], [torch.zeros(2)], "different leaves: output[1]"),
    ],
)
def test_outputs_are_compared_to_the_last_bit(tool, one, other, text):
    shared = tool("shared")
    assert shared.difference(shared.leaves(one), shared.leaves(other)) == text


def test_compare_includes_attributes_of_objects(tool):
    shared = tool("shared")
    found = shared.leaves(torch.distributions.Normal(torch.zeros(2), torch.ones(2)))
    assert {"output.loc", "output.scale"} <= set(found)


def test_compare_follows_recursive_object_once(tool):
    knot = [torch.ones(1)]
    knot.append(knot)
    assert list(tool("shared").leaves(knot)) == ["output[0]"]


def test_side_without_compared_output_does_not_pass(tool):
    side = tool("runner").Side
    assert side({"save": "ok", "load": "ok", "run": "ok"}).passed
    assert not side({"save": "ok", "load": "ok"}).passed
    failed = side({"save": "ok", "load": "ok", "run": "ok", "again load": "KeyError: 1"})
    assert not failed.passed
    assert failed.failure == "again load: KeyError: 1"


def test_failed_step_does_not_hide_others(tool, capsys):
    steps = tool("shared").Steps()
    steps.take("first", lambda: 1 / 0)
    assert steps.take("second", lambda: 7) == 7
    assert steps.outcomes == {"first": "ZeroDivisionError: division by zero", "second": "ok"}
    assert "Traceback" in capsys.readouterr().err


def test_operators_are_read_without_running_the_recipe(tool):
    assert tool("saving").operators_of("timm_vit") == "torchvision"
    assert tool("saving").operators_of("einops_layers") == ""


def test_declared_operators_can_be_referred_to(tool):
    tool("shared").declare("torchvision")
    assert torch.ops.torchvision.nms.default._schema.name == "torchvision::nms"
    tool("shared").declare("")


def test_page_has_row_for_every_recipe():
    page = (ROOT / "docs" / "reference" / "corpus.md").read_text()
    table = page.partition("\n## ")[0].splitlines()
    rows = [line.split("|")[1].strip(" `") for line in table if line[:3] == "| `"]
    assert rows == RECIPES, "run: make corpus"


def test_page_shows_failures_without_local_paths(tool):
    runner, page = tool("runner"), tool("page")
    good = runner.Side({"save": "ok", "load": "ok", "run": "ok"}, {"save": 1, "load": 2, "run": 3})
    bad = runner.Side({"save": "ok", "load": "OSError: no file '/home/me/thing.json'"}, {"save": 1})
    text = page.rendered([runner.Result("net", ["lib"], good, bad)])
    assert "1 models: 1 passed with modpack" in text
    assert "- `net`: load: `OSError: no file 'thing.json'`" in text


def test_page_distinguishes_refusals_and_failures(tool):
    runner, page = tool("runner"), tool("page")
    refused = runner.Side({"save": "PicklingError: no / more"}, refusal="no /home/me/net.py")
    text = page.rendered([runner.Result("net", ["lib"], refused, runner.Side())])
    assert "1 refused" in text
    assert "## Refused by modpack\n\n- `net`: `no net.py`" in text
    assert "| `net` | lib | refused |" in text
    assert "Failures with modpack" not in text


def test_libraries_must_be_where_the_recipe_says(tool):
    misplaced = tool("runner")._misplaced
    saved = {"libraries": ["A_b"], "compiled": ["c"], "interned": ["a-b"], "extern": ["c"]}
    assert misplaced(saved) == ""
    assert (
        misplaced(saved | {"interned": ["c"], "extern": []}) == "not interned: a-b; not extern: c"
    )


def test_page_shows_native_libraries_in_parentheses(tool):
    runner, page = tool("runner"), tool("page")
    result = runner.Result("net", ["lib"], runner.Side(), runner.Side(), ["fast"])
    assert "| `net` | lib, (fast) |" in page.rendered([result])
    assert runner.Result.from_json(result.as_json()) == result


def test_only_errors_of_modpack_itself_are_refusals(tool):
    refusal = tool("saving")._refusal
    assert refusal(modpack.errors.ModpackError("* no\n\n  net\n more")) == "no / net"
    assert refusal(KeyError("a")) == ""
    assert refusal(None) == ""


def test_audit_with_error_is_failed_step(tool):
    auditing = tool("auditing")
    error = {"severity": "error", "code": "mock-called", "message": "lib.go was called"}
    note = {"severity": "info", "code": "self-test-missing", "message": "no self-test"}
    auditing.require_no_errors({"findings": [note]}, 0)
    with pytest.raises(auditing.AuditError, match=r"mock-called: lib\.go was called"):
        auditing.require_no_errors({"findings": [note, error]}, 1)
    with pytest.raises(auditing.AuditError, match="exit status 1"):
        auditing.require_no_errors({"findings": []}, 1)


def test_audit_externs_are_owners_of_extern_modules(tool):
    auditing = tool("auditing")
    audit = {
        "distributions": [
            {"name": "Needed_One", "extern": 3},
            {"name": "held", "extern": 0},
            {"name": "torch", "extern": 9},
        ]
    }
    listed = auditing.externs(audit)
    auditing.compare(listed, ["needed-one"], {"torch"})
    with pytest.raises(auditing.AuditError, match="missing: other"):
        auditing.compare(listed, ["needed-one", "other"], {"torch"})
    with pytest.raises(auditing.AuditError, match="not needed: needed-one"):
        auditing.compare(listed, [], {"torch"})
