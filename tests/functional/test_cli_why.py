"""``modpack why``, driven as a user drives it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from modpack import Action, PackageExporter
from modpack.cli import cli

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/reference/json/why.schema.json").read_text())
ANCESTORS = ROOT / "fixtures/archives/torch_package/torch-2.13-py3.11/tiny_model.pt"

SHOP = {
    "whyshop/__init__.py": "",
    "whyshop/net.py": """\
        from typing import TYPE_CHECKING

        from whyshop.tools import measure, note
        from whyshop import left

        if TYPE_CHECKING:
            import whytyped

        class Net:
            def __call__(self):
                return note(measure())
        """,
    "whyshop/tools.py": """\
        from whyshop.deep import log as note

        def measure():
            import numpy
            return numpy.zeros(3)
        """,
    "whyshop/deep.py": "from whyspy import log\n",
    "whyshop/left.py": "from whyshop import right\nimport whyspy\n",
    "whyshop/right.py": """\
        from whyshop import left
        try:
            import whyabsent
        except ImportError:
            whyabsent = None
        """,
    "whyspy.py": "def log(x): pass",
    "whytyped.py": "",
}


@pytest.fixture
def package(project, tmp_path):
    """A package with a mock that is reached in several ways, and a cycle."""
    project(SHOP)
    import whyshop.net

    file = tmp_path / "why.modpack"
    with PackageExporter(file) as exporter:
        exporter.mock("whyspy.**")
        exporter.intern("whyshop.**")
        exporter.use_preset("pinned")
        exporter.save_pickle("model", "net.pkl", whyshop.net.Net())
    return file


def run(*arguments):
    return CliRunner().invoke(cli, ["why", *map(str, arguments)])


def document(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def test_why_shows_rule_and_shortest_chain_with_locations(package):
    result = run(package, "whyspy")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["whyspy", "mocked"]
    assert ["rule", "mock('whyspy.**')"] in lines
    assert ["<model/net.pkl>"] in lines
    assert ["->", "whyshop.net", "pickle", "contains", "Net"] in lines
    assert ["->", "whyshop.left", "required", "whyshop/net.py:4"] in lines
    assert ["->", "whyspy", "required", "whyshop/left.py:2"] in lines
    assert ["whyshop/deep.py:1", "(required)"] in lines  # another place


def test_why_json_step_has_evidence(package):
    (chain,) = document(package, "numpy")["chains"]
    assert chain["start"] == "<model/net.pkl>"
    assert chain["links"][-1] == {
        "importer": "whyshop.tools",
        "imported": "numpy",
        "kind": "function",
        "path": "whyshop/tools.py",
        "line": 4,
        "names": [],
        "others": 0,
    }


def test_why_shows_provider_of_extern_module(package):
    import numpy

    found = document(package, "numpy")
    assert (found["provided_by"], found["distribution"]) == ("installed", "numpy")
    assert found["version"] == numpy.__version__
    assert document(package, "typing")["provided_by"] == "stdlib"
    assert "the standard library" in run(package, "typing").stdout


def test_why_shows_overriding_hook(project, tmp_path):
    project(SHOP)
    import whyshop.net

    def keep_out(exporter, module):
        return Action.MOCK if module == "whyshop.deep" else None

    file = tmp_path / "overridden.modpack"
    with PackageExporter(file) as exporter:
        exporter.mock("whyspy.**")
        exporter.intern("whyshop.**")
        exporter.use_preset("pinned")
        exporter.register_intern_hook(keep_out)
        exporter.save_pickle("model", "net.pkl", whyshop.net.Net())
    found = document(file, "whyshop.deep")
    assert found["action"] == "mock" and found["rule"] == "intern('whyshop.**')"
    assert found["overridden_by"].endswith("keep_out")
    assert "keep_out" in run(file, "whyshop.deep").stdout
    assert document(file, "whyshop.left")["hooks"] == [found["overridden_by"]]


def test_why_marks_module_imported_for_type_checking_only(package):
    result = run(package, "whytyped")
    assert result.exit_code == 0
    assert "TYPE_CHECKING" in result.stdout and "whyshop/net.py:7" in result.stdout
    found = document(package, "whytyped")
    assert (found["status"], found["action"], found["chains"]) == ("type-checking-only", None, [])


def test_why_shows_reason_of_excluded_module(package):
    found = document(package, "whyabsent")
    assert (found["status"], found["action"]) == ("excluded", None)
    assert "not installed" in found["notes"][0]["message"]
    assert found["chains"][0]["links"][-1]["kind"] == "guarded"


def test_why_of_unknown_module_suggests_similar_names(package):
    result = run(package, "whyshop.tool")
    assert result.exit_code == 2
    assert "whyshop.tools" in result.stderr and "Traceback" not in result.stderr
    shown = json.loads(run(package, "whyshop.tool", "--json").stdout)
    assert "whyshop.tools" in shown["error"]["message"]
    assert run(package, "<model/net.pkl>").exit_code == 2


def test_why_knows_modules_of_mocks(package):
    assert "mocked modules" in document(package, "_modpack_mock")["rule"]


def test_why_shows_decision_of_torch_package_archive():
    found = document(ANCESTORS, "tinynet.layers")
    assert (found["action"], found["rule"], found["chains"]) == ("intern", None, [])
    assert "torch.package does not record imports" in run(ANCESTORS, "math").stdout


def test_why_of_other_file_exits_with_2(tmp_path):
    (tmp_path / "x").write_text("hello")
    assert run(tmp_path / "x", "a").exit_code == 2
    assert run(tmp_path / "nowhere", "a").exit_code == 2


def test_why_does_not_import_torch(package):
    code = (
        "import sys\n"
        "from modpack.cli import cli\n"
        f"cli(['why', {str(package)!r}, 'whyspy'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'importlib_metadata', 'packaging'}\n"
        "print(sorted(heavy & set(sys.modules)), 'whyshop' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] False"
