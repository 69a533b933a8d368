"""Packages with a loader are shown, run, and tested where torch is installed and modpack is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections import deque
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import grimp
import pytest
import torch
from click.testing import CliRunner

import modpack
import modpack.writing.loader
from modpack.archive import layout
from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.core import RUNTIME_NAMES
from modpack.core.json_values import read_toml
from modpack.core.names import is_within
from modpack.errors import ArchiveError, RepackedError
from modpack.report.audit import audit_package
from modpack.report.package_info import package_facts
from modpack.report.verify import verify_package
from modpack.writing.loader import LAYERS, loader_files

ROOT = Path(__file__).parents[2]

SOURCE = """
import os
import torch

print("imported")

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        if (x < 0).any():
            raise ValueError("negative")
        print("called")
        return {"double": x * self.factor + float(os.environ.get("SHIFT", 0)), "sum": x.sum(1)}
"""
CANNOT_VOUCH = "This loader came with the package and cannot vouch for it: signatures and trust"


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    (folder / "doubling.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        from doubling import Net

        example = (torch.ones(2, 3),)
        modpack.save(
            Net().eval(), folder / "net.modpack", example_inputs=example, bundle_loader=True
        )
        modpack.save(Net().eval(), folder / "plain.modpack", example_inputs=example)
        del sys.modules["doubling"]
    return folder / "net.modpack"


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory) -> Path:
    """A folder with torch and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    installed = Path(torch.__file__).parents[1]
    waiting, known = ["torch"], set()
    while waiting:
        name = waiting.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():  # several distributions share the folder nvidia
                (folder / top).symlink_to(installed / top)
        known.add(name)
        required = [text for text in found.requires or () if "extra ==" not in text]
        waiting += {re.split(r"[^\w.-]", text)[0] for text in required} - known
    assert not (folder / "modpack").exists() and not (folder / "numpy").exists()
    return folder


def python(
    *arguments: object,
    site: Path | None = None,
    cwd: Path,
    stdout: Any = subprocess.PIPE,
    **more: str,
):
    """Run Python without site-packages: with the distributions in a folder, or with none."""
    variables = {name: os.environ[name] for name in ("PATH", "MODPACK_CACHE_DIR")} | more
    variables |= {"PYTHONPATH": str(site)} if site is not None else {}
    command = [sys.executable, "-S", "-W", "ignore", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=variables, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def test_package_describes_itself_without_torch(package, tmp_path):
    done = python(package, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "input   x: float32 (batch, 3)" in done.stdout
    assert "output  double: float32 (batch, 3)" in done.stdout
    assert f"torch {torch.__version__}" in done.stdout and "torch is missing" in done.stdout
    assert modpack.PackageImporter(package)._archive.read(layout.MANIFEST_DIGEST).decode() in (
        done.stdout
    )
    assert "imported" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith(CANNOT_VOUCH)


@pytest.mark.parametrize("arguments", [[], ["rows.json"], ["--self-test"]])
def test_closed_pipe_ends_the_command_silently(package, with_torch, tmp_path, arguments):
    (tmp_path / "rows.json").write_text("[[1, 2, 3]]")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = python(package, *arguments, site=with_torch, cwd=tmp_path, stdout=closed)
    assert done.returncode == 1, done.stderr
    assert "Error" not in done.stderr and "Exception" not in done.stderr


def test_help_starts_with_what_the_loader_cannot_do(package, tmp_path):
    done = python(package.name, "--help", cwd=package.parent)
    assert done.stdout.splitlines()[0].startswith(CANNOT_VOUCH)
    assert "python net.modpack ROWS.json [-o FILE]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.json"], "missing.json: No such file or directory"),
        (["rows.json"], "torch is not installed. Run: pip install 'torch=="),
        (["--self-test"], "torch is not installed. Run: pip install 'torch=="),
        (["rows.json", "-o", "rows.json"], "the output is rows.json"),
        (["rows.json", "--self-test"], "--self-test takes no ROWS.json"),
        (["-o", "out.json"], "-o needs ROWS.json"),
    ],
)
def test_command_refuses_with_the_remedy(package, tmp_path, arguments, text):
    (tmp_path / "rows.json").write_text("[[1, 2, 3]]")
    done = python(package, *arguments, cwd=tmp_path)
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "rows.json").read_text() == "[[1, 2, 3]]"


@pytest.mark.parametrize(
    "content", ["[[1, 2, 3], [4, 5, 6]]", '{"x": [[1, 2, 3]]}', str([[1, 2, 3]] * 70)]
)
def test_rows_have_the_outputs_of_modpack_run(package, with_torch, tmp_path, content):
    (tmp_path / "rows.json").write_text(content)
    expected = tmp_path / "expected.json"
    arguments = ["run", str(package), str(tmp_path / "rows.json"), "-o", str(expected)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    done = python(package, "rows.json", "-o", "out.json", site=with_torch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.json").read_bytes() == expected.read_bytes()
    assert "called" in done.stderr and not done.stdout


def test_missing_numpy_is_no_reason_to_warn(package, with_torch, tmp_path):
    done = python("-W", "default", package, "--self-test", site=with_torch, cwd=tmp_path)
    assert done.returncode == 0 and "NumPy" not in done.stderr, done.stderr


def test_bad_row_is_named_and_no_file_is_written(package, with_torch, tmp_path):
    (tmp_path / "rows.json").write_text("[[1, 2, 3], [-1, 2, 3]]")
    done = python(package, "rows.json", "-o", "out.json", site=with_torch, cwd=tmp_path)
    assert done.returncode == 2 and "rows.json: row 2: the model raised ValueError" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_self_test_compares_the_recorded_output(package, with_torch, tmp_path):
    done = python(package, "--self-test", site=with_torch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "self-test passed: 1 example, bit by bit" in done.stdout
    done = python(package, "--self-test", site=with_torch, cwd=tmp_path, SHIFT="1")
    assert done.returncode == 1 and "output['double']" in done.stdout


def test_unzipped_package_runs(package, with_torch, tmp_path):
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "net")
    (tmp_path / "rows.json").write_text("[[1, 2, 3]]")
    done = python("net", "rows.json", site=with_torch, cwd=tmp_path)
    assert json.loads(done.stdout) == {"double": [[2.0, 4.0, 6.0]], "sum": [6.0]}, done.stderr
    for folder in tmp_path / "net", tmp_path / "net" / "archive":
        assert verify_package(folder).passed
        assert modpack.load(folder).factor == 2


API = """
import sys

sys.path.insert(0, "net.modpack")
import os
import modpack
from modpack import errors


def refused(kind, text, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as failure:
        assert text in str(failure), str(failure)
    else:
        raise AssertionError(f"{function} accepts {arguments} and {options}")


os.mkdir("elsewhere")
os.chdir("elsewhere")
assert "site-packages" not in modpack.__file__
refused(AttributeError, "Install modpack", getattr, modpack, "save")
for text in "from modpack import save", "import modpack.cli":
    refused(ImportError, "Install modpack", exec, text)
assert not hasattr(modpack, "exporter")
path = "../net.modpack"
denied = modpack.TrustPolicy(allow_code=False)
signer = modpack.Signer("me", KEY)
signed = modpack.TrustPolicy(require_signature_from=[signer])
refused(modpack.TrustError, "doubling.py", modpack.load, path, policy=denied)
refused(errors.ModpackError, "pip install 'modpack[sign]'", modpack.load, path, policy=signed)
for name in "truncated", "changed", "text":
    refused(errors.ArchiveError, f"{name}.modpack", modpack.load, f"../{name}.modpack")
refused(errors.ModpackError, "missing.modpack", modpack.load, "missing.modpack")
import torch

model = modpack.load(path)
assert model(torch.ones(1, 3))["sum"] == 3
assert modpack.importer_of(model) and modpack.call_signature(path).inputs[0].name == "x"
import pickle

assert pickle.loads(pickle.dumps(model)).factor == 2
"""


def test_loader_is_the_api_of_loading(package, with_torch, tmp_path):
    content = package.read_bytes()
    (tmp_path / "net.modpack").write_bytes(content)
    (tmp_path / "truncated.modpack").write_bytes(content[:-200])
    (tmp_path / "text.modpack").write_text("no package")
    (tmp_path / "changed.modpack").write_bytes(_damaged(package, "archive/doubling.py"))
    key = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
    pem = f"-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n"
    script = API.replace("KEY", repr(pem))
    done = python("-c", script, site=with_torch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_installed_modpack_ignores_the_loader(package):
    plain = package.with_name("plain.modpack")
    with modpack.PackageImporter(package) as importer, modpack.PackageImporter(plain) as other:
        assert importer.modules.keys() == other.modules.keys()
        assert importer.load_pickle("__model__", "model.pkl").factor == 2


def test_loader_is_not_code_of_the_package(tmp_path):
    modpack.save({"w": torch.ones(2)}, tmp_path / "data.modpack", bundle_loader=True)
    policy = modpack.TrustPolicy(allow_code=False)
    assert modpack.load(tmp_path / "data.modpack", policy=policy)["w"].sum() == 2


def test_reports_say_that_a_loader_is_inside(package):
    facts = package_facts(package)
    assert facts.loader == (modpack.__version__, True)
    assert "loader" in CliRunner().invoke(cli, ["inspect", str(package)]).output
    for findings in verify_package(package).findings, audit_package(package).findings:
        (found,) = [each for each in findings if each.code.startswith("loader")]
        assert found.code == "loader" and f"modpack {modpack.__version__}" in found.message


def test_reports_warn_of_a_loader_with_other_files(tmp_path, monkeypatch):
    files = modpack.writing.loader.loader_files()
    changed = {**files, "modpack/api.py": files["modpack/api.py"] + b"\nimport os\n"}
    with monkeypatch.context() as patch:
        patch.setattr(modpack.writing.loader, "loader_files", lambda: changed)
        modpack.save([1], tmp_path / "other.modpack", bundle_loader=True)
    for findings in (
        verify_package(tmp_path / "other.modpack").findings,
        audit_package(tmp_path / "other.modpack").findings,
    ):
        (found,) = [each for each in findings if each.code.startswith("loader")]
        assert found.code == "loader-unknown" and found.severity == modpack.Severity.WARNING


def _damaged(package: Path, name: str) -> bytes:
    """Return the content of a package with one byte of a file's data changed."""
    content = bytearray(package.read_bytes())
    with zipfile.ZipFile(package) as archive:
        found = archive.getinfo(name)
    start = found.header_offset + 30 + len(name)
    content[start + found.compress_size // 2] ^= 1
    return bytes(content)


@pytest.mark.parametrize("name", ["__main__.py", "modpack/importer.py"])
def test_damaged_loader_is_refused_like_other_records(package, tmp_path, name):
    path = tmp_path / "damaged.modpack"
    path.write_bytes(_damaged(package, name))
    record = layout.LOADER_FILES + name
    with pytest.raises(ArchiveError, match=re.escape(record)):
        modpack.load(path)
    assert record in {each.subject for each in verify_package(path).findings}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"other.py": b""}, "not in the top-level folder"),
        ({"modpack/native.so": b""}, "not in the top-level folder"),
        ({"modpack/../../a.py": b""}, "component"),
        ({"archive/.data/modpack/loader/a.py": b""}, "next to the top-level folder"),
        ({"archive/.data/modpack/loader.json": None}, "not in the top-level folder"),
        ({"modpack/MAIN.py": b"", "modpack/main.py": b""}, "collides"),
    ],
)
def test_reader_accepts_only_the_files_of_a_loader(package, tmp_path, change, reason):
    path = tmp_path / "changed.modpack"
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(path, "w") as target:
        contents = {name: source.read(name) for name in source.namelist()} | change
        for name, content in contents.items():
            if content is not None:
                target.writestr(zipfile.ZipInfo(name), content)
    with pytest.raises(ArchiveError, match=reason):
        open_archive(path)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "folder")
    if not any(".." in name or name == "other.py" for name in change):
        with pytest.raises(ArchiveError):
            modpack.load(tmp_path / "folder")


def test_loader_without_manifest_entry_is_refused(package, tmp_path):
    path = tmp_path / "added.modpack"
    with zipfile.ZipFile(package) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            target.writestr(zipfile.ZipInfo(name), source.read(name))
        target.writestr("modpack/added.py", "")
    with pytest.raises(RepackedError):
        modpack.load(path)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "folder")
    with pytest.raises(ArchiveError, match="does not list"):
        modpack.load(tmp_path / "folder")


@pytest.mark.parametrize(("limit", "value"), [("MAX16", 50), ("MAX32", 50_000)])
def test_save_refuses_what_python_cannot_import_from(tmp_path, monkeypatch, limit, value):
    monkeypatch.setattr(modpack.writing.loader, limit, value)
    monkeypatch.setattr(modpack.writing.loader, "_ZIP64_SINCE", (99,))
    with pytest.raises(
        modpack.ModpackError, match=r"too large for a loader.*without bundle_loader"
    ):
        modpack.save([1], tmp_path / "large.modpack", bundle_loader=True)
    assert not (tmp_path / "large.modpack").exists()
    monkeypatch.setattr(modpack.writing.loader, "_ZIP64_SINCE", (3,))
    with pytest.warns(modpack.ModpackWarning, match=r"loader works in Python 3\.13 and newer only"):
        modpack.save([1], tmp_path / "large.modpack", bundle_loader=True)


def test_export_command_bundles_a_loader(tmp_path):
    (tmp_path / "bundled_nets.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.ReLU()\n"
    )
    output = tmp_path / "net.modpack"
    arguments = [
        "export",
        str(tmp_path / "bundled_nets.py:make"),
        "-o",
        str(output),
        "--bundle-loader",
    ]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert package_facts(output).loader is not None


def test_torch_package_refuses_a_package_with_a_loader(package):
    with pytest.raises(RuntimeError, match="not in a subdirectory"):
        torch.package.PackageImporter(str(package))


def _is_runtime(module: str) -> bool:
    return any(is_within(module, f"modpack.{each}") for each in LAYERS)


def test_loader_is_the_import_closure_of_the_runtime():
    contracts = read_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["contracts"]
    runtime = next(each for each in contracts if each["id"] == "runtime")["source_modules"]
    assert sorted(f"modpack.{each}" for each in LAYERS) == sorted(runtime)
    options = {"exclude_type_checking_imports": True}
    graph = grimp.build_graph("modpack", cache_dir=None, **options)
    todo = deque(module for module in graph.modules if _is_runtime(module))
    closure: set[str] = set()
    while todo:
        module = todo.popleft()
        if module not in closure:
            closure.add(module)
            todo += graph.find_modules_directly_imported_by(module)
    files = {name.removesuffix(".py").removesuffix("/__init__") for name in loader_files()}
    found = {name.replace("/", ".") for name in files} - {"modpack.diagnostic_codes.json"}
    moved = {"modpack.bundled.face": "modpack", "modpack.bundled.start": "__main__"}
    assert found == {moved.get(module, module) for module in closure}


def test_face_of_the_loader_has_all_public_names_of_the_runtime():
    runtime = {f"modpack.{each}" for each in modpack.writing.loader.LAYERS} | {"modpack._version"}
    for module, names in modpack._NAMES.items():
        is_runtime = ".".join(module.split(".")[:2]) in runtime
        assert is_runtime == (RUNTIME_NAMES.get(module) == names), module
