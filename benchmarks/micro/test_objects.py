"""Micro benchmarks of saving and loading objects."""

import pickle

import pytest

from modpack import PackageExporter, PackageImporter
from modpack.core.process import gc_paused
from modpack.report.package_info import package_facts


@pytest.fixture
def save(tmp_path):
    def save(obj):
        with PackageExporter(tmp_path / "saved.modpack") as exporter:
            exporter.save_pickle("model", "model.pkl", obj)

    return save


def test_pickle_containers_only(benchmark, entries):
    """Only pickle, which every save includes."""
    with gc_paused():
        benchmark(pickle.dumps, entries)


def test_save_containers(benchmark, save, entries):
    benchmark(save, entries)


def test_save_small_tensors(benchmark, save, tensors):
    benchmark(save, tensors)


def test_save_tiny_object(benchmark, save):
    benchmark(save, {"step": 1})


def test_open_package(benchmark, package):
    benchmark(PackageImporter, package)


def test_load_small_tensors(benchmark, package, tensors):
    importer = PackageImporter(package)
    assert len(benchmark(importer.load_pickle, "model", "model.pkl")) == len(tensors)


def test_package_facts(benchmark, package):
    assert benchmark(package_facts, package).storages
