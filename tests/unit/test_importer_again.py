"""Caching across packages and imports."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from modpack import PackageExporter, PackageImporter
from modpack.archive import module_index, records

SOURCES = {"stall/__init__.py": "", "stall/fruit.py": "class Pear:\n    ripe = True\n"}


@pytest.fixture
def crates(project, tmp_path):
    """Two packages of one project, with other weights."""
    project(SOURCES)
    pear = importlib.import_module("stall.fruit").Pear
    files = []
    for number in range(2):
        files.append(tmp_path / f"crate{number}.pt")
        with PackageExporter(files[-1]) as exporter:
            exporter.intern("stall.**")
            exporter.save_pickle("model", "model.pkl", [pear(), torch.full((3,), number)])
    return files


def test_packages_of_one_project_share_parsed_records(crates, monkeypatch):
    read = {"names": 0, "environments": 0}
    paths, decode = module_index._index_records, records.environment_from_json

    def counting_paths(names):
        read["names"] += 1
        return paths(names)

    def counting_decode(record):
        read["environments"] += 1
        return decode(record)

    module_index._build_cached.cache_clear()
    records._decode_environment.cache_clear()
    monkeypatch.setattr(module_index, "_index_records", counting_paths)
    monkeypatch.setattr(records, "environment_from_json", counting_decode)
    for number, file in enumerate(crates):
        with PackageImporter(file) as package:
            pear, weights = package.load_pickle("model", "model.pkl")
            assert pear.ripe and weights.tolist() == [number] * 3
    assert read == {"names": 1, "environments": 1}


def test_packages_of_one_project_have_separate_classes(crates):
    one, other = map(PackageImporter, crates)
    first, second = (each.load_pickle("model", "model.pkl")[0] for each in (one, other))
    assert type(first) is not type(second)
    one.close()
    assert type(other.load_pickle("model", "model.pkl")[0]) is type(second)
    other.close()


def test_ready_module_returns_only_loaded_modules(crates):
    with PackageImporter(crates[0]) as package:
        assert package._ready_module("stall.fruit") is None
        fruit = package.import_module("stall.fruit")
        assert package._ready_module("stall.fruit") is fruit
        assert package._ready_module(fruit.__name__) is fruit
        assert package._ready_module("collections") is sys.modules["collections"]
        with pytest.raises(ModuleNotFoundError, match="pytest"):
            package._ready_module("pytest")


def test_ready_module_skips_initializing_module(crates):
    with PackageImporter(crates[0]) as package:
        fruit = package.import_module("stall.fruit")
        fruit.__spec__._initializing = True
        assert package._ready_module("stall.fruit") is None


def test_overridden_import_module_is_called_each_time(crates):
    asked = []

    class Asking(PackageImporter):
        def import_module(self, name, package=None):
            asked.append(name)
            return super().import_module(name, package)

    with Asking(crates[0]) as package:
        package.load_pickle("model", "model.pkl")
        package.load_pickle("model", "model.pkl")
    assert asked.count("stall.fruit") == 2
