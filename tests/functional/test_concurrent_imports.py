"""Imports of many modules by several processes at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

import modpack

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


@pytest.fixture
def many(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    target = tmp_path / "many.pt"
    with modpack.PackageExporter(target) as exporter:
        exporter.save_source_string("app", "", is_package=True)
        for name, source in sources().items():
            exporter.save_source_string(name, source, dependencies=False)
    return target


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


def test_concurrent_processes_import_the_same(many, tmp_path):
    outputs = [process.communicate(timeout=120) for process in processes_at_work(many)]
    assert len({out for out, _ in outputs}) == 1
    assert {err for _, err in outputs} == {""}
    kept = [file.name for file in (tmp_path / "cache" / "trees").rglob("code/*/*")]
    assert kept and all(name.endswith(".code") for name in kept)
    again = subprocess.run(
        [sys.executable, "-c", LOADING, str(many)], capture_output=True, text=True, check=True
    )
    assert again.stdout == outputs[0][0]
