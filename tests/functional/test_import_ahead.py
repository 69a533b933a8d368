"""Imports of many modules with a helper process that compiles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.package

import modpack
from modpack.loading import compile
from tests.compile_helpers import awaited_helpers

COUNT = 400
MODULE = """
from app import {previous}
from app.base import note
note("m{number}")
def answer(value, count={number}):
    import app.base as base
    total = base.START
    for each in range(count):
        total += value * each if each % 3 else -value
    return total
"""
BASE = """
import sys
START = 3
noted = []
note = noted.append
def answers():
    return [sys.modules[f"app.m{number}"].answer(2) for number in range(400)]
"""
LOADING = """
import sys
import modpack
with modpack.PackageImporter(sys.argv[1]) as importer:
    importer.import_module("app.main")
    print(sum(importer.import_module("app.base").answers()))
"""


def sources():
    made = {
        f"app.m{n}": MODULE.format(number=n, previous=f"m{n - 1}" if n else "base")
        for n in range(COUNT)
    }
    lines = [f"import app.m{number}\n" for number in range(COUNT)]
    return {"app.base": BASE, **made, "app.main": "".join(lines)}


@pytest.fixture(params=[modpack.PackageExporter, torch.package.PackageExporter])
def package(request, tmp_path):
    return written(tmp_path / "many.pt", request.param)


@pytest.fixture
def many(tmp_path):
    return written(tmp_path / "many.pt", modpack.PackageExporter)


def written(target, exporter_of):
    with exporter_of(str(target)) as exporter:
        exporter.save_source_string("app", "", is_package=True)
        for name, source in sources().items():
            exporter.save_source_string(name, source, dependencies=False)
    return target


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MODPACK_WORKERS", raising=False)
    monkeypatch.setattr("modpack.loading.compile.usable_cores", lambda: 2)
    return tmp_path / "cache"


@pytest.fixture
def started(monkeypatch):
    return awaited_helpers(monkeypatch)


@pytest.fixture
def compiled(monkeypatch):
    """The files that were compiled in this process."""
    files = []
    compiling = compile.CompileAhead.take

    def take(self, key, waiting):
        piece = compiling(self, key, waiting)
        if piece is None:
            files.append(key[1])
        return piece

    monkeypatch.setattr(compile.CompileAhead, "take", take)
    return files


def answers_of(file, **options):
    with modpack.PackageImporter(str(file), **options) as importer:
        importer.import_module("app.main")
        base = importer.import_module("app.base")
        assert len(base.noted) == COUNT
        return base.answers()


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_packages_behave_the_same_with_a_helper(
    namespace, package, cache, monkeypatch, started, compiled
):
    helped = answers_of(package, namespace=namespace)
    assert len(started) == 1 and len(compiled) < 20
    assert answers_of(package, namespace=namespace) == helped  # from stored code
    assert len(compiled) < 20
    monkeypatch.setenv("MODPACK_CACHE_DIR", f"{cache}-alone")
    monkeypatch.setenv("MODPACK_WORKERS", "0")
    assert answers_of(package, namespace=namespace) == helped
    assert len(started) == 1 and len(compiled) > COUNT


def test_opening_and_inspecting_start_no_helper(many, started):
    with modpack.PackageImporter(str(many)) as importer:
        importer.get_source("app.m7")
        importer.file_structure()
        importer.import_module("app.base")
    assert started == []


def test_policy_rejects_the_same_with_helper(tmp_path, started):
    target = tmp_path / "asking.pt"
    warned = pytest.warns(modpack.ModpackWarning, match="computed at run time")
    with warned, modpack.PackageExporter(target) as exporter:
        exporter.save_source_string("app", "", is_package=True)
        for name, source in sources().items():
            exporter.save_source_string(name, source, dependencies=False)
        asking = "name = ''.join(['soc', 'ket'])\nimportlib.import_module(name)\n"
        exporter.save_source_string("app.ask", f"import importlib, app.main\n{asking}")
    policy = modpack.TrustPolicy(allow_code=True, allow_stdlib=["sys", "importlib"])
    importer = modpack.PackageImporter(str(target), policy=policy)
    with importer, pytest.raises(ImportError, match="socket"):
        importer.import_module("app.ask")
    assert len(started) == 1


def test_code_runs_in_this_process_alone(tmp_path, started):
    notes = tmp_path / "notes"
    notes.touch()
    target = tmp_path / "noting.pt"
    line = f"import os\nopen({str(notes)!r}, 'a').write(f'{{os.getpid()}} {{__name__}}\\n')\n"
    with modpack.PackageExporter(target) as exporter:
        exporter.save_source_string("app", "", is_package=True)
        for number in range(COUNT):
            exporter.save_source_string(f"app.m{number}", line)
        everything = "".join(f"import app.m{number}\n" for number in range(0, COUNT, 2))
        exporter.save_source_string("app.main", everything)
    with modpack.PackageImporter(str(target)) as importer:
        importer.import_module("app.main")
    lines = notes.read_text().splitlines()
    assert len(started) == 1
    assert len(lines) == COUNT // 2
    assert {line.split()[0] for line in lines} == {str(os.getpid())}


def test_compiler_warnings_appear_once(tmp_path, started):
    target = tmp_path / "warning.pt"
    with modpack.PackageExporter(target) as exporter:
        exporter.save_source_string("app", "", is_package=True)
        for name, source in sources().items():
            exporter.save_source_string(name, source, dependencies=False)
        exporter.save_source_string("app.warned", "import app.main\nodd = 1 is 2\n")
    with modpack.PackageImporter(str(target)) as importer:
        importer.import_module("app.main")
        with pytest.warns(SyntaxWarning):
            importer.import_module("app.warned")


def processes_at_work(file):
    return [
        subprocess.Popen(
            [sys.executable, "-c", LOADING, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]


def test_concurrent_processes_import_the_same(many, cache):
    outputs = [process.communicate(timeout=120) for process in processes_at_work(many)]
    assert len({out for out, _ in outputs}) == 1
    assert {err for _, err in outputs} == {""}
    kept = [file.name for file in (cache / "trees").rglob("code/*/*")]
    assert kept and all(name.endswith(".code") for name in kept)
    again = subprocess.run(
        [sys.executable, "-c", LOADING, str(many)], capture_output=True, text=True, check=True
    )
    assert again.stdout == outputs[0][0]


@pytest.mark.skipif(not hasattr(os, "pread"), reason="no helpers here")
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_import_survives_killed_or_stopped_helper(how, many, monkeypatch):
    start, processes = compile._start, []

    def interrupt(job, answers):
        process, notes = start(job, answers)
        processes.append(process)
        while os.fstat(answers.fileno()).st_size == 0:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        return process, notes

    monkeypatch.setattr("modpack.loading.compile._start", interrupt)
    expected = [3 + 2 * sum(e if e % 3 else -1 for e in range(n)) for n in range(COUNT)]
    assert answers_of(many) == expected
    [process] = processes
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no list of processes")
@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "sys.exit(0)", "1 / 0"])
def test_helper_ends_when_the_importing_process_is_killed(end, tmp_path, cache):
    target, note = tmp_path / "ending.pt", tmp_path / "helper"
    with modpack.PackageExporter(target) as exporter:
        exporter.save_source_string("app", "", is_package=True)
        for name, source in sources().items():
            exporter.save_source_string(name, source, dependencies=False)
        ending = f"import os, sys\nimport app.m30\nopen({str(note)!r}).close()\n{end}\n"
        exporter.save_source_string("app.ending", ending)
    code = f"""
import json, sys
import modpack
from modpack.loading import compile
from tests.compile_helpers import awaited_helpers
compile.usable_cores = lambda: 2
start = compile._start
def noting(*arguments):
    process, notes = start(*arguments)
    open({str(note)!r}, "w").write(str(process.pid))
    return process, notes
compile._start = noting
modpack.PackageImporter(sys.argv[1]).import_module("app.ending")
"""
    subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, timeout=60)
    helper, limit = Path("/proc") / note.read_text(), time.monotonic() + 30
    while (helper / "cmdline").exists() and b"compilehelper" in (helper / "cmdline").read_bytes():
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert not list(cache.rglob("*.tmp"))


def test_without_standard_streams_imports_are_the_same(many, tmp_path):
    result = tmp_path / "result"
    code = f"""
import os
for each in (0, 1, 2):
    os.close(each)
import json, sys
import modpack
from modpack.loading import compile
from tests.compile_helpers import awaited_helpers
compile.usable_cores = lambda: 2
start, started = compile._start, []
def waiting(*arguments):
    process, notes = start(*arguments)
    started.append(process.wait(60))
    return process, notes
compile._start = waiting
helped = []
take = compile._Helper.take
def taking(self, key):
    piece = take(self, key)
    helped.append(piece is not None)
    return piece
compile._Helper.take = taking
importer = modpack.PackageImporter(sys.argv[1])
importer.import_module("app.main")
counts = [sum(importer.import_module("app.base").answers()), started, sum(helped)]
open({str(result)!r}, "w").write(json.dumps(counts))
"""
    subprocess.run([sys.executable, "-c", code, str(many)], check=True, timeout=120)
    total, started, helped = json.loads(result.read_text())
    assert (total, started) == (sum(answers_of(many)), [0])
    assert helped > COUNT - 20
