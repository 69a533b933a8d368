"""``modpack suggest``, driven as a user drives it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from modpack.cli import cli
from modpack.report.package_info import package_facts

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/json/suggest.schema.json").read_text()
)

NET = {
    "sgmodel.py": """\
        from sgown.net import Net

        def make():
            return Net()
        """,
    "sgown/__init__.py": "",
    "sgown/net.py": """\
        import sgcompiled
        import sglib.core
        import sgtrack
        from sgspace import one, two
        from sgown import tools

        class Net(sgtrack.Base):
            def __call__(self):
                return sglib.core.twice(two.number)
        """,
    "sgown/tools.py": """\
        def show():
            import sgunseen.deep
            return sgunseen.deep

        def count(x):
            import sgguarded
            return sgguarded.count(x)

        try:
            import sgmissing
        except ImportError:
            sgmissing = None
        """,
}


@pytest.fixture
def target(project, installed, monkeypatch):
    """A model that needs distributions of all kinds; the target to name."""
    installed(
        "sg-lib",
        {"sglib/__init__.py": "", "sglib/core.py": "def twice(x): return 2 * x"},
        version="2.5",
        metadata={"METADATA": METADATA},
    )
    installed("sg-compiled", {"sgcompiled.py": "", "_sgpart.so": ""})
    installed("sg-track", {"sgtrack.py": "class Base: pass"})
    installed("sg-one", {"sgspace/one.py": "number = 1"})
    installed("sg-two", {"sgspace/two.py": "number = 2"})
    installed("sg-guarded", {"sgguarded.py": ""})
    folder = project(NET)
    monkeypatch.chdir(folder)
    yield "sgmodel:make"
    for name in [name for name in sys.modules if name.startswith("sg")]:
        del sys.modules[name]


METADATA = """\
Metadata-Version: 2.4
Name: sg-lib
Version: 2.5
License-Expression: MIT
"""


def run(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)))


def document(*arguments, status=0):
    result = run("suggest", *arguments, "--json")
    assert result.exit_code == status, result.output
    found = json.loads(result.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def by_option(found):
    return {each["option"]: each for each in found["suggestions"]}


OPTIONS = [
    "--intern 'sgown.**'",
    "--extern sgcompiled",
    "--extern sgguarded",
    "--extern 'sglib.**'",
    "--extern sgspace.one",
    "--extern sgtrack",
    "--extern sgspace.two",
    "--mock 'sgunseen.**'",
]


def test_suggest_covers_every_unmatched_module(target):
    assert list(by_option(document(target))) == OPTIONS


def test_suggested_options_match_every_module(target, tmp_path):
    options = [part for option in by_option(document(target)) for part in shlex.split(option)]
    file = tmp_path / "net.modpack"
    result = run("export", target, "-o", file, "--preset", "none", *options)
    assert result.exit_code == 0, result.output
    actions = {facts.module: facts.action.value for facts in package_facts(file).modules}
    assert actions["sgown.tools"] == "intern" and actions["sglib.core"] == "extern"
    assert actions["sgunseen.deep"] == "mock" and "sgmissing" not in actions
    result = run("suggest", target, *options)
    assert (result.exit_code, result.stderr) == (0, "Your rules match every module.\n")
    assert document(target, *options)["suggestions"] == []


def test_suggested_pyproject_rules_match_every_module(target, tmp_path):
    shown = run("suggest", target).stdout
    Path("pyproject.toml").write_text(shown[shown.index("[tool.modpack]") :])
    file = tmp_path / "net.modpack"
    assert run("export", target, "-o", file).exit_code == 0
    rules = {facts.rule for facts in package_facts(file).modules}
    assert "extern('sglib.**')" in rules and not any("pinned" in str(rule) for rule in rules)


def test_suggested_pyproject_rules_start_with_given_rules(target, tmp_path):
    Path("pyproject.toml").write_text(
        '[tool.modpack]\nrules = [{ extern = "sglib.**", exclude = "sglib.odd" }]\n'
    )
    shown = run("suggest", target, "--mock", "sgunseen.**").stdout
    table = shown[shown.index("[tool.modpack]") :]
    assert [line.strip() for line in table.splitlines()[3:5]] == [
        '{ mock = "sgunseen.**" },',
        '{ extern = "sglib.**", exclude = "sglib.odd" },',
    ]
    Path("pyproject.toml").write_text(table)
    assert run("export", target, "-o", tmp_path / "net.modpack").exit_code == 0


def test_suggest_shows_reasons(target):
    found = by_option(document(target))
    library = found["--extern 'sglib.**'"]
    assert (library["distribution"], library["version"], library["license"]) == (
        "sg-lib",
        "2.5",
        "MIT",
    )
    assert library["native"] is False and found["--extern sgcompiled"]["native"] is True
    assert library["modules"] == ["sglib", "sglib.core"]
    assert library["reach"] == "required"
    assert library["importers"][0]["line"] == 2
    assert found["--intern 'sgown.**'"]["reach"] == "pickle"
    assert found["--extern sgguarded"]["reach"] == "function"
    shown = " ".join(run("suggest", target).stdout.split())
    assert "sg-lib 2.5 (MIT), pure Python imported at module level: sgown/net.py:2" in shown
    assert "imported in functions only: sgown/tools.py:6" in shown
    assert "contains Net" in shown and "sgunseen.deep: not installed" in shown


def test_suggest_offers_mock_for_import_time_uses(target):
    found = by_option(document(target))
    assert found["--extern 'sglib.**'"]["mock_risk"] == "reachable"
    assert found["--extern 'sglib.**'"]["alternative"] is None
    assert found["--extern sgcompiled"]["mock_risk"] == "unused"
    assert found["--extern sgcompiled"]["alternative"]["option"] == "--mock sgcompiled"
    # The saved class derives from it: a mock would be called with the object.
    assert found["--extern sgtrack"]["mock_risk"] == "reachable"
    assert found["--intern 'sgown.**'"]["mock_risk"] is None


def test_suggest_respects_given_rules(target):
    found = by_option(document(target, "--mock", "sgunseen.**", "--extern", "sgspace.*"))
    assert list(found) == [
        option for option in OPTIONS if "sgunseen" not in option and "sgspace" not in option
    ]


def test_suggest_hermetic_interns_pure_distributions(target):
    found = by_option(document(target, "--preset", "hermetic"))
    assert "--intern 'sglib.**'" in found and "--extern sgcompiled" in found
    assert any("native code" in reason for reason in found["--extern sgcompiled"]["reasons"])
    native = by_option(document(target, "--preset", "hermetic", "--intern-native"))
    assert "--intern sgcompiled" in native


def test_suggest_externs_own_native_extensions_first(project, monkeypatch, tmp_path):
    import sysconfig

    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    folder = project(
        {
            "sgown/__init__.py": "",
            "sgown/net.py": """\
                class Net:
                    def run(self):
                        import sgown._fast
                """,
            f"sgown/_fast{suffix}": "",
        }
    )
    monkeypatch.chdir(folder)
    found = by_option(document("sgown.net:Net"))
    assert list(found) == ["--extern sgown._fast", "--intern 'sgown.**'"]
    assert "cannot be interned" in found["--extern sgown._fast"]["reasons"][-1]
    options = [part for option in found for part in shlex.split(option)]
    file = tmp_path / "net.modpack"
    assert run("export", "sgown.net:Net", "-o", file, "--preset", "none", *options).exit_code == 0


def test_suggest_reports_problems_without_rule(target):
    result = run("suggest", target, "--deny", "sgtrack")
    assert result.exit_code == 1
    assert "denied" in result.stdout and "--intern 'sgown.**'" in result.stdout
    (problem,) = document(target, "--deny", "sgtrack", status=1)["problems"]
    assert (problem["subject"], problem["code"]) == ("sgtrack", "module-denied")


def test_suggest_rejects_target_without_object(target):
    assert run("suggest", "sgmodel:nothing").exit_code == 2
    assert run("suggest").exit_code == 2
    shown = json.loads(run("suggest", "sgmodel:nothing", "--json").stdout)
    assert "nothing" in shown["error"]["message"]


def test_suggest_uses_target_of_pyproject(target):
    Path("pyproject.toml").write_text(f'[tool.modpack]\ntarget = "{target}"\npreset = "hermetic"')
    assert document()["preset"] == "hermetic"


def test_suggest_writes_no_file(target):
    before = sorted(Path.cwd().rglob("*.modpack"))
    run("suggest", target)
    assert sorted(Path.cwd().rglob("*.modpack")) == before


def test_suggest_mocks_missing_own_module_first(project, monkeypatch):
    files = {
        "sgown/__init__.py": "",
        "sgown/net.py": "class Net:\n    def run(self):\n        import sgown.gone\n",
    }
    monkeypatch.chdir(project(files))
    assert list(by_option(document("sgown.net:Net"))) == [
        "--mock 'sgown.gone.**'",
        "--intern 'sgown.**'",
    ]


def test_suggest_does_not_mock_module_that_code_tests_for(project, installed, monkeypatch):
    installed("sg-lib", {"sglib.py": "def f():\n    import sgasked\n"})
    source = """\
        import sglib

        try:
            import sgguarded
        except ImportError:
            sgguarded = None

        class Net:
            def run(self):
                import sgguarded, sgplain
        """
    monkeypatch.chdir(project({"sgown.py": source}))
    found = by_option(document("sgown:Net", "--preset", "hermetic"))
    assert list(found) == [
        "--intern sgown",
        "--intern sglib",
        "--extern 'sgguarded.**'",
        "--mock 'sgplain.**'",
        "--extern 'sgasked.**'",
    ]
    assert "look installed to sglib" in found["--extern 'sgasked.**'"]["reasons"][-1]


def test_suggest_hermetic_skips_unloaded_optional_modules(project, installed, monkeypatch):
    installed("sg-lib", {"sglib.py": "def f():\n    import sgextra\n"})
    installed("sg-extra", {"sgextra.py": ""})
    monkeypatch.chdir(project({"sgown.py": "import sglib\nclass Net: pass"}))
    found = by_option(document("sgown:Net", "--preset", "hermetic"))
    assert any("not loaded in this process" in r for r in found["--extern sgextra"]["reasons"])
    installed("sg-lib", {"sglib.py": "def f():\n    import sgextra\n"}, requires=["sg-extra"])
    assert "--intern sgextra" in by_option(document("sgown:Net", "--preset", "hermetic"))
