"""The cache, as users and crowds of processes meet it."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch

import modpack

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "json"
LOADING = """
import sys, time
import modpack
for turn in range(6):
    with modpack.PackageImporter(sys.argv[1]) as importer:
        numbers = {importer.import_module(f"many.m{each}").number for each in range(20)}
        assert numbers == {7}, numbers
        assert importer.import_module("many").__file__.endswith("many/__init__.py")
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path):
    target = tmp_path / "many.modpack"
    with modpack.PackageExporter(target) as exporter:
        exporter.save_source_string("many", "", is_package=True)
        for each in range(20):
            exporter.save_source_string(f"many.m{each}", "number = 7\n")
    return target


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "modpack", "cache", *arguments], capture_output=True, text=True
    )


SHARING = """
import sys, torch, modpack
first, second = map(modpack.load, files)
assert type(first) is not type(second)
assert sys.modules[type(first).__module__].__file__ == sys.modules[type(second).__module__].__file__
print(first(torch.ones(1)).item(), second(torch.ones(1)).item())
"""


def test_packages_with_equal_code_share_cache_entry(cache, tmp_path, monkeypatch, clean_python):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sharednet.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    import sharednet  # type: ignore[import-not-found]

    files = [str(tmp_path / name) for name in ("first.modpack", "second.modpack")]
    for weight, file in enumerate(files):
        net = sharednet.Net(1, 1, bias=False)
        torch.nn.init.constant_(net.weight, weight)
        modpack.save(net, file)
    assert clean_python(SHARING, files=files).stdout == "0.0 1.0\n"
    [tree] = (cache / "trees" / "v2").iterdir()
    assert len(list((tree / "code").rglob("*.code"))) == 1


@pytest.mark.parametrize("command", [["list"], ["clear"]])
def test_cache_commands_reject_cache_that_is_a_file(cache, command):
    cache.write_text("a file")
    done = run(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{cache}: the cache is not a folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="it keeps the current folder")
def test_cache_list_in_removed_folder_fails_with_hint(tmp_path, monkeypatch):
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    monkeypatch.setenv("MODPACK_CACHE_DIR", "kept")
    monkeypatch.setenv("PYTHONPATH", str(Path(modpack.__file__).parents[1]))
    (tmp_path / "removed").rmdir()
    done = run("list")
    assert (done.returncode, done.stdout) == (2, "")
    assert "kept is relative to the current folder, which was removed" in done.stderr
    assert "Set MODPACK_CACHE_DIR to a folder." in done.stderr
    assert "Traceback" not in done.stderr


def loaded_elsewhere(package):
    subprocess.run([sys.executable, "-c", LOADING, package], check=True)


def checked(name, document):
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    return document


def test_load_succeeds_while_other_processes_clear(cache, package):
    loading = [subprocess.Popen([sys.executable, "-c", LOADING, package]) for _ in range(16)]
    while any(process.poll() is None for process in loading):
        assert run("clear").returncode == 0
    assert [process.wait() for process in loading] == [0] * 16
    run("clear")
    assert list((cache / "trees" / "v2").iterdir()) == []


def test_cache_list_and_clear_report_counts(cache, package):
    loaded_elsewhere(package)
    listed = run("list")
    assert "many.modpack" in listed.stdout and str(cache) in listed.stdout
    assert run("clear", "--older-than", "1d").stdout.startswith("Removed 0 packages")
    assert run("clear").stdout.startswith("Removed 1 package")
    assert run("list").stdout.startswith("0 packages")


def test_cache_json_follows_schemas(cache, package):
    loaded_elsewhere(package)
    document = checked("cache-list", json.loads(run("list", "--json").stdout))
    [tree] = document["entries"]
    assert tree["name"] == "many.modpack" and tree["files"] >= 21
    document = checked("cache-clear", json.loads(run("clear", "--json").stdout))
    assert [each["digest"] for each in document["removed"]] == [tree["digest"]]


def test_cache_warm_leaves_nothing_to_compile(cache, tmp_path, monkeypatch):
    (tmp_path / "site" / "manywarm").mkdir(parents=True)
    (tmp_path / "site" / "manywarm" / "__init__.py").touch()
    (tmp_path / "site" / "manywarm" / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    pass\nprint('7')\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    from manywarm import net

    modpack.save(net.Net(1, 1), tmp_path / "net.modpack")
    run("clear")
    done = run("warm", tmp_path / "net.modpack")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/net.modpack: cached in {cache}\n")
    assert "7" in done.stderr.splitlines()  # what packaged code prints is not the report
    assert compiled_for(tmp_path / "net.modpack", "manywarm.net") == 0


def test_cache_warm_fails_without_usable_cache(package, tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").touch()
    modpack.save(torch.nn.Linear(1, 1), tmp_path / "net.modpack")
    done = run("warm", tmp_path / "net.modpack")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Not a directory" in done.stderr and "Traceback" not in done.stderr
    assert "Set MODPACK_CACHE_DIR to a folder" in done.stderr.splitlines()[-1]


def test_load_does_not_run_changed_cached_module(cache, package):
    loaded_elsewhere(package)
    [file] = cache.rglob("m3.py")
    file.write_text("number = 8\n")
    loaded_elsewhere(package)  # it says that all numbers are 7


def test_cache_clear_rejects_invalid_duration(cache, package):
    loaded_elsewhere(package)
    done = run("clear", "--older-than", "soon")
    assert done.returncode == 2 and "30d" in done.stderr and "Traceback" not in done.stderr
    assert run("list").stdout.count("many.modpack") == 1


def test_cache_list_does_not_import_torch(cache):
    code = "import sys; from modpack.cli import cli; cli(['cache', 'list'], standalone_mode=False)"
    code += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, capture_output=True)


def test_load_ignores_bytecode_in_package(cache, tmp_path):
    code = compile("number = 8", "many.py", "exec")
    unchecked = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    target = tmp_path / "many.modpack"
    with modpack.PackageExporter(target) as exporter:
        exporter.save_source_string("many", "number = 7\n")
        exporter.save_text("many", "words.txt", "")
        for place in ("", "private2."):
            name = f"many.{sys.implementation.cache_tag}.{place}pyc"
            exporter.save_binary("__pycache__", name, unchecked + marshal.dumps(code))
    for namespace in ("private", "process"):
        with modpack.PackageImporter(target, namespace=namespace) as importer:
            assert importer.import_module("many").number == 7


COMPILING = """
import sys
import modpack
compiled = []
sys.addaudithook(lambda event, given: compiled.append(given) if event == "compile" else None)
with modpack.PackageImporter(sys.argv[1]) as importer:
    before = len(compiled)
    for name in sys.argv[2:]:
        importer.import_module(name)
    print(sum("many" in str(file) for _, file in compiled[before:]))
"""


def compiled_for(package, *modules, **environment):
    """How many of a package's modules a process compiles that imports some."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILING, package, *modules],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("unwanted", ["", "1"])
def test_import_compiles_module_once_with_and_without_bytecode(cache, package, unwanted):
    plain = {"PYTHONDONTWRITEBYTECODE": unwanted}
    assert compiled_for(package, "many.m1", "many.m2", **plain) == 3
    assert compiled_for(package, "many.m2", "many.m3", **plain) == 1
    assert compiled_for(package, "many.m1", "many.m2", "many.m3", **plain) == 0
    assert list(cache.rglob("*.pyc")) == []


def test_import_in_function_compiles_module_once(cache, tmp_path):
    target = tmp_path / "many.modpack"
    with modpack.PackageExporter(target) as exporter:
        exporter.intern("many.**")
        exporter.save_source_string("many.late", "number = 7\n")
        exporter.save_source_string("many.asks", "def ask():\n    import many.late\n    return 7\n")
        exporter.save_source_string("many.main", "import many.asks\nmany.asks.ask()\n")
    assert compiled_for(target, "many.main") == 3
    assert compiled_for(target, "many.main") == 0


def test_concurrent_imports_cache_code_of_all_modules(cache, package):
    names = [f"many.m{each}" for each in range(20)]
    crowd = [
        subprocess.Popen([sys.executable, "-c", COMPILING, package, *names[number:]])
        for number in range(8)
    ]
    assert [process.wait() for process in crowd] == [0] * 8
    assert compiled_for(package, *names) == 0


def test_import_recompiles_damaged_code(cache, package):
    assert compiled_for(package, "many.m1") == 2
    [file] = cache.rglob("*.code")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert compiled_for(package, "many.m1") == 1


def test_import_of_file_changed_meanwhile_caches_no_code(cache, package):
    change = """
import sys
from pathlib import Path
import modpack
with modpack.PackageImporter(sys.argv[1]) as importer:
    importer.import_module("many")
    file = Path(sys.modules[importer.id()].__path__[0]) / "many" / "m3.py"
    file.write_text("number = 8\\n")
    assert importer.import_module("many.m3").number == 8
    file.write_text("number = 7\\n")
"""
    subprocess.run([sys.executable, "-c", change, package], check=True)
    loaded_elsewhere(package)  # it says that all numbers are 7
