"""The command line, driven as a user drives it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import modpack
from modpack.archive.reader import open_archive
from modpack.cli import cli

NET = """\
import torch
from torch import nn

import clispy
from clilib.parts import scale


class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x):
        return scale(self.layer(x))

    def __call__(self, *args, **kwargs):
        if not args:
            raise TypeError("a module instance is no factory")
        return super().__call__(*args, **kwargs)


def make():
    print("noise on stdout")
    return Net()


def wants(width):
    return Net(width)


def broken():
    return Net("three")


def nothing():
    pass


def leaves():
    raise SystemExit(3)


class Shelf:
    ready = Net()
    class Inner:
        make = staticmethod(make)


class Sulky:
    def __reduce__(self):
        raise ValueError("I will not be pickled")


sulky = Sulky()
"""
FILES = {
    "clilib/__init__.py": "",
    "clilib/net.py": NET,
    "clilib/parts.py": "def scale(x):\n    return x * 2\n",
    "clispy.py": "def watch():\n    pass\n",
    "clifails.py": "x = 1\nraise RuntimeError('no such luck')\n",
    "climissing.py": "import clinowhere\n",
    "clisyntax.py": "x = (\n",
    "clidynamic.py": (
        "import importlib\nclass Plugin:\n    pass\n"
        "def plugin(name):\n    return importlib.import_module(name)\n"
    ),
}


@pytest.fixture(autouse=True)
def unsized(monkeypatch):
    """Remove the width that a test runner sets."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def work(project, monkeypatch) -> Path:
    """A project folder in which commands run. Only the commands can import from it."""
    folder = project(FILES)
    sys.path.remove(str(folder))
    monkeypatch.chdir(folder)
    return folder


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def facts(*arguments: str | Path) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def actions(document: dict) -> dict[str, str]:
    return {module["module"]: module["action"] for module in document["modules"]}


def process(*arguments: str | Path, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "modpack", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


@pytest.mark.parametrize(
    "target",
    [
        "clilib.net:make",
        "clilib.net:Net",
        "clilib.net:Shelf.ready",
        "clilib.net:Shelf.Inner.make",
        "clilib/net.py:make",
        "./clilib/net.py:Net",
    ],
)
def test_export_target_loads_without_its_code(work, clean_python, target):
    result = run("export", target, "-o", "net.modpack")
    assert result.exit_code == 0, result.output
    code = """
    import modpack, torch
    model = modpack.load(path)
    print(type(model).__name__, tuple(model(torch.ones(1, 3)).shape))
    """
    assert clean_python(code, path=work / "net.modpack").stdout == "Net (1, 2)\n"


def test_export_file_in_package_uses_dotted_name(work, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    document = facts("export", work / "clilib" / "net.py:make", "--dry-run")
    assert actions(document)["clilib.net"] == "intern"
    assert "net" not in actions(document)


def test_export_restores_import_path(work):
    before = list(sys.path)
    run("export", "clilib.net:make", "--dry-run")
    assert sys.path == before


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("clilib.net", "MODULE:ATTR"),
        ("clilib.net:", "MODULE:ATTR"),
        ("clilib.net:a b", "MODULE:ATTR"),
        ("no module:x", "not a module name"),
        ("nowhere.py:x", "the file does not exist"),
        ("clilib/:x", "is a folder"),
        ("clinowhere:x", "module 'clinowhere' was not found"),
        ("clilib.nowhere:x", "module 'clilib.nowhere' was not found"),
        ("clilib.net:mak", "Did you mean 'make'?"),
        ("clilib.net:Shelf.Inner.x", "clilib.net.Shelf.Inner has no attribute 'x'"),
        ("clilib.net:wants", "(width)"),
        ("clilib.net:nothing", "nothing to package"),
    ],
)
def test_export_rejects_target_without_object(work, target, expected):
    result = run("export", target, "-o", "net.modpack")
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output
    assert not (work / "net.modpack").exists()


@pytest.mark.parametrize(
    ("target", "expected", "location"),
    [
        ("clifails:x", "RuntimeError: no such luck", "clifails.py:2"),
        ("climissing:x", "No module named 'clinowhere'", "climissing.py:1"),
        ("clisyntax.py:x", "SyntaxError", "clisyntax.py:1"),
        ("clilib.net:broken", "TypeError", "clilib/net.py:11"),
        ("clilib.net:leaves", "SystemExit: 3", "clilib/net.py:40"),
        ("clilib.net:sulky", "ValueError: I will not be pickled", "clilib/net.py:51"),
    ],
)
def test_export_reports_user_exception_with_location(work, target, expected, location):
    result = run("export", target, "-o", "net.modpack")
    assert result.exit_code == 2
    assert expected in result.stderr and location in result.stderr
    assert "Traceback" not in result.output


def test_export_debug_shows_traceback_of_user_code(work):
    result = run("export", "clilib.net:broken", "-o", "net.modpack", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert "modpack/cli" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: building clilib.net:broken failed")


@pytest.mark.parametrize("name", ["random.py", "torch.py"])
def test_export_rejects_file_named_like_extern_module(work, name):
    (work / name).write_text("x = 1\n")
    result = run("export", f"{name}:x", "-o", "x.modpack")
    assert result.exit_code == 2
    assert "Rename the file." in result.stderr


def test_export_rejects_file_with_name_of_imported_module(work, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "clispy.py").write_text("x = 1\n")
    assert run("export", "clispy.py:watch", "--dry-run").exit_code == 2  # it returns None
    result = run("export", tmp_path / "elsewhere" / "clispy.py:x", "--dry-run")
    assert result.exit_code == 2
    assert "is already imported as" in result.stderr


def test_export_sends_output_of_user_code_to_stderr(work):
    result = run("export", "clilib.net:make", "--dry-run", "--json")
    json.loads(result.stdout)
    assert "noise on stdout" in result.stderr


@pytest.mark.parametrize(
    ("rules", "action"),
    [
        (["--mock", "clispy", "--extern", "cli*"], "mock"),
        (["--extern", "cli*", "--mock", "clispy"], "extern"),
        (["--intern", "clispy", "--mock", "cli*", "--extern", "clispy"], "intern"),
        (["--mock=nobody", "--extern=clispy", "--mock=clispy"], "extern"),
    ],
)
def test_export_applies_rules_in_command_line_order(work, rules, action):
    rules = ["--intern", "clilib.**", *rules]
    assert actions(facts("export", "clilib.net:make", "--dry-run", *rules))["clispy"] == action


def test_export_invalid_pattern_is_usage_error(work):
    result = run("export", "clilib.net:make", "--dry-run", "--mock", "a..b")
    assert result.exit_code == 2
    assert "--mock" in result.stderr and "empty component" in result.stderr


def test_export_with_problems_exits_with_1(work):
    result = run("export", "clilib.net:make", "-o", "net.modpack", "--deny", "clispy")
    assert result.exit_code == 1
    assert "1 problem" in result.stdout and "clispy" in result.stdout
    assert "imported through" not in result.stdout and "--debug" in result.stderr
    assert not (work / "net.modpack").exists()


def test_export_debug_shows_import_chain(work):
    result = run("export", "clilib.net:make", "--dry-run", "--deny", "clispy", "--debug")
    assert "clilib.net -> clispy" in result.stdout


def test_export_json_lists_problems(work):
    result = run("export", "clilib.net:make", "-o", "x.modpack", "--deny", "clispy", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["schema"] == 1 and document["package"] is None
    (problem,) = document["problems"]
    assert (problem["subject"], problem["code"]) == ("clispy", "module-denied")


def test_export_preset_none_reports_unmatched_modules(work):
    result = run("export", "clilib.net:make", "--dry-run", "--preset", "none", "--json")
    assert result.exit_code == 1
    subjects = {problem["subject"] for problem in json.loads(result.stdout)["problems"]}
    assert "clilib.net" in subjects


def test_export_dry_run_writes_no_file(work):
    before = sorted(work.iterdir())
    result = run("export", "clilib.net:make", "--dry-run", "-o", "net.modpack")
    assert result.exit_code == 0
    assert "interned: " in result.stdout and "No file was written" in result.stderr
    assert [path for path in sorted(work.iterdir()) if path.suffix == ".modpack"] == []
    assert set(before) <= set(work.iterdir())


def test_failed_export_keeps_existing_package(work):
    (work / "net.modpack").write_bytes(b"precious")
    assert run("export", "clilib.net:broken", "-o", "net.modpack").exit_code == 2
    assert run("export", "clilib.net:make", "-o", "net.modpack", "--deny", "clispy").exit_code == 1
    assert (work / "net.modpack").read_bytes() == b"precious"


def test_export_checks_output_before_building_model(work):
    result = run("export", "clilib.net:make", "-o", "nowhere/net.modpack")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    assert "noise on stdout" not in result.stderr


def test_export_package_and_resource_set_record_name(work):
    run("export", "clilib.net:make", "-o", "x.modpack", "--package", "a.b", "--resource", "c.pkl")
    with open_archive("x.modpack") as archive:
        assert archive.has("a/b/c.pkl")
    assert run("export", "clilib.net:make", "--dry-run", "--resource", "../x").exit_code == 2


def test_export_shows_notes_once(work, recwarn):
    result = run("export", "clidynamic:Plugin", "--dry-run")
    assert result.output.count("computed at run time") == 1
    assert not [w for w in recwarn if issubclass(w.category, modpack.ModpackWarning)]


def test_export_quiet_prints_warnings_only(work):
    result = run("export", "clidynamic:Plugin", "-o", "x.modpack", "--quiet")
    assert result.stdout == ""
    assert result.stderr.count("computed at run time") == 1
    assert run("export", "clilib.net:Net", "-o", "y.modpack", "-q").output == ""


SETTINGS = """\
[tool.modpack]
target = "clilib/net.py:make"
output = "out/net.modpack"
rules = [
    { mock = ["clispy", "clispy.**"] },
    { extern = "clilib.**", exclude = ["clilib.net", "clilib"] },
]
"""


def test_export_reads_nearest_pyproject(work, monkeypatch):
    (work / "pyproject.toml").write_text(SETTINGS)
    (work / "deep").mkdir()
    (work / "out").mkdir()
    (work / "deep" / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(work / "deep")
    decided = actions(facts("export"))
    assert decided["clispy"] == "mock"
    assert decided["clilib.parts"] == "extern"
    assert decided["clilib.net"] == "intern"
    assert (work / "out" / "net.modpack").is_file()


def test_export_rules_of_command_line_come_first(work):
    (work / "pyproject.toml").write_text(SETTINGS)
    document = facts("export", "--dry-run", "--intern", "clispy")
    assert actions(document)["clispy"] == "intern"


def test_export_command_line_overrides_pyproject(work):
    (work / "pyproject.toml").write_text(SETTINGS + 'preset = "none"\n')
    document = facts("export", "clidynamic:Plugin", "-o", "x.modpack", "--preset", "pinned")
    assert actions(document)["clidynamic"] == "intern"
    assert (work / "x.modpack").is_file()


def test_export_config_reads_other_file(work):
    (work / "pyproject.toml").write_text("[tool.modpack]\nbroken = 1\n")
    (work / "other.toml").write_text(SETTINGS)
    decided = actions(facts("export", "--config", "other.toml", "--dry-run"))
    assert decided["clispy"] == "mock"
    (work / "empty.toml").write_text("")
    result = run("export", "--config", "empty.toml", "--dry-run")
    assert result.exit_code == 2 and "[tool.modpack]" in result.stderr


def test_export_lists_all_problems_of_pyproject(work):
    (work / "pyproject.toml").write_text(
        """\
[tool.modpack]
outptu = "x"
preset = "lax"
target = 3
rules = [
    { intern = "a", mock = "b" },
    { exclude = "a" },
    "intern",
    { deny = 7 },
    { deny = "a..b" },
    { deny = [] },
    { deny = "a", exclde = "b" },
    { deny = "a", allow_empty = "no" },
]
"""
    )
    result = run("export", "--dry-run")
    assert result.exit_code == 2
    for problem in (
        "tool.modpack.outptu: unknown key. Did you mean 'output'?",
        "tool.modpack.preset: must be one of 'none', 'pinned', 'hermetic', not 'lax'",
        "tool.modpack.target: must be a string, not an integer",
        "tool.modpack.rules[0]: must have one of intern, extern, mock, deny, not intern and mock",
        "tool.modpack.rules[1]: must have one of intern, extern, mock, deny, not none",
        "tool.modpack.rules[2]: must be a table",
        "tool.modpack.rules[3].deny: must be a pattern or an array of patterns, not an integer",
        "tool.modpack.rules[4].deny: the pattern 'a..b' has an empty component",
        "tool.modpack.rules[5].deny: must contain at least one pattern",
        "tool.modpack.rules[6].exclde: unknown key. Did you mean 'exclude'?",
        "tool.modpack.rules[7].allow_empty: must be true or false, not a string",
    ):
        assert problem in result.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[tool.modpack\n", "not valid TOML"),
        (b"# modpack \xff\n", "not valid UTF-8"),
        (b"[tool]\nmodpack = 3\n", "tool.modpack: must be a table, not an integer"),
        (b"[tool.modpack]\nrules = 3\n", "tool.modpack.rules: must be an array of tables"),
    ],
)
def test_export_rejects_invalid_pyproject(work, content, expected):
    (work / "pyproject.toml").write_bytes(content)
    result = run("export", "clilib.net:make", "--dry-run")
    assert result.exit_code == 2
    assert "pyproject.toml" in result.stderr and expected in result.stderr


def test_export_unmatched_required_rule_is_problem(work):
    rule = 'rules = [{ mock = "clinobody", allow_empty = false }]\n'
    (work / "pyproject.toml").write_text(f"[tool.modpack]\n{rule}")
    result = run("export", "clilib.net:make", "--dry-run")
    assert result.exit_code == 1
    assert "clinobody" in result.stdout


def test_export_without_target_or_output_is_usage_error(work):
    assert "missing TARGET" in run("export", "-o", "x").stderr
    assert "missing output path" in run("export", "clilib.net:make").stderr
    assert run("export").exit_code == run("export", "clilib.net:make").exit_code == 2


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A package that `modpack export` wrote."""
    folder = tmp_path_factory.mktemp("inspected")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    done = process("export", "clilib.net:make", "-o", "net.modpack", "--mock", "clispy", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "net.modpack"


def test_inspect_shows_modules_and_rules(package):
    result = run("inspect", package)
    assert result.exit_code == 0
    for text in ("interned: ", "mock('clispy')", "clilib/net.py:4", "__model__/model.pkl"):
        assert text in result.stdout


def test_inspect_json_equals_export_json(work):
    exported = facts("export", "clilib.net:make", "-o", "net.modpack")
    assert facts("inspect", "net.modpack") == exported


def test_inspect_tree_shows_records(package):
    result = run("inspect", package, "--tree")
    assert "├── clilib" in result.stdout and "parts.py" in result.stdout


def test_inspect_source_prints_source_unchanged(package):
    assert run("inspect", package, "--source", "clilib.net").stdout_bytes == NET.encode()
    assert "mock('clispy')" in run("inspect", package, "--source", "clispy").stdout


def at_a_terminal(*arguments: str | Path) -> str:
    """Return what a command writes to a terminal."""
    main, terminal = os.openpty()
    command = [sys.executable, "-m", "modpack", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    written = bytearray()
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, env=environment) as running:
        os.close(terminal)
        with contextlib.suppress(OSError):  # Linux reports the closed end as an error
            while chunk := os.read(main, 65536):
                written += chunk
    os.close(main)
    assert running.returncode == 0
    return written.decode().replace("\r\n", "\n")


def test_inspect_source_escapes_control_characters_at_terminal(tmp_path):
    file, source = tmp_path / "evil.modpack", "x = '\x1b[2J größe'\ny = 1\n"
    with modpack.PackageExporter(file) as exporter:
        exporter.save_source_string("clievil", source)
    steered = source.replace("\x1b", "\\x1b")
    assert at_a_terminal("inspect", file, "--source", "clievil") == steered
    assert run("inspect", file, "--source", "clievil").stdout == source


def test_inspect_uses_colors_at_terminal(package):
    assert "\x1b[" in at_a_terminal("inspect", package)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("clilib.nets", "has no source of module 'clilib.nets'"),
        ("torch", "has no source of module 'torch'. Run: modpack why"),
        ("../etc", "must be a module path"),
    ],
)
def test_inspect_source_explains_missing_source(package, module, expected):
    result = run("inspect", package, "--source", module)
    assert result.exit_code == 2
    assert expected in result.stderr


@pytest.mark.parametrize("view", [["--source", "x"], ["--json"]])
def test_inspect_rejects_tree_with_another_view(package, view):
    assert run("inspect", package, "--tree", *view).exit_code == 2


def test_inspect_never_imports_torch(package):
    code = (
        "import sys\n"
        "from modpack.cli import cli\n"
        "from click.testing import CliRunner\n"
        "for arguments in ([], ['--json'], ['--tree'], ['--source', 'clilib.net']):\n"
        f"    result = CliRunner().invoke(cli, ['inspect', {str(package)!r}, *arguments])\n"
        "    assert result.exit_code == 0, result.output\n"
        "print({'torch', 'numpy', 'importlib_metadata', 'packaging'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("content", [None, b"", b"no zip at all", b"PK\x05\x06" + bytes(18)])
def test_inspect_of_other_file_exits_with_2(tmp_path, content):
    file = tmp_path / "x.modpack"
    if content is not None:
        file.write_bytes(content)
    result = run("inspect", file)
    assert result.exit_code == 2
    assert str(file) in result.stderr and "Traceback" not in result.output
    as_json = run("inspect", file, "--json")
    assert as_json.exit_code == 2
    error = json.loads(as_json.stdout)["error"]
    assert (
        error["type"] in ("NotAPackageError", "PackageNotFoundError")
        and str(file) in error["message"]
    )


def test_inspect_of_damaged_package_exits_with_2(package, tmp_path):
    damaged = tmp_path / "damaged.modpack"
    content = bytearray(package.read_bytes())
    content[content.index(b'"providers"') + 2] ^= 1
    damaged.write_bytes(content)
    result = run("inspect", damaged)
    assert result.exit_code == 2
    assert "environment.json" in result.stderr


def test_inspect_in_pipe_prints_plain_text(package):
    done = process("inspect", package)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) > 80  # wide enough for its content


def test_inspect_ignores_closed_pipe(package):
    program = [sys.executable, "-m", "modpack", "inspect", str(package)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_inspect_replaces_characters_that_stdout_cannot_encode(package):
    done = process("inspect", package, "--tree", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "parts.py" in done.stdout


def test_inspect_in_pipe_respects_columns(package):
    done = process("inspect", package, env={"COLUMNS": "50"})
    path, *others = done.stdout.splitlines()
    assert path.startswith(str(package))  # whole, because it is copied
    assert max(map(len, others)) <= 50


def test_python_m_modpack_prints_version():
    done = process("--version")
    assert done.stdout == f"modpack {modpack.__version__}\n"


@pytest.mark.parametrize("command", [(), ("export",), ("inspect",)])
def test_help_has_examples_and_exit_status(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert "Exit status:" in result.stdout


def test_invalid_usage_exits_with_2():
    for arguments in (
        ["nonsense"],
        ["export", "--nonsense"],
        ["inspect"],
        ["serve", "net.modpack", "--port", "none"],
    ):
        assert run(*arguments).exit_code == 2


def test_interrupt_exits_with_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("modpack.report.package_info.package_facts", interrupted)
    result = run("inspect", "net.modpack")
    assert result.exit_code == 130
    assert "Interrupted." in result.stderr


def test_error_text_equals_exception(tmp_path):
    file = tmp_path / "text.modpack"
    file.write_text("hello")
    with pytest.raises(modpack.ModpackError) as caught, open_archive(file):
        pass
    assert caught.value.hint
    assert run("inspect", file).stderr == f"Error: {caught.value}\n"


def test_os_error_names_path_and_reason(work):
    result = run("export", "clilib.net:make", "--dry-run", "--config", "absent.toml")
    assert (result.exit_code, result.stderr) == (
        2,
        "Error: absent.toml: No such file or directory\n",
    )
