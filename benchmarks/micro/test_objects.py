"""Objects: into a package, and out of it."""

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


def test_pickling_containers_alone(benchmark, entries):
    """What no save can do without."""
    with gc_paused():
        benchmark(pickle.dumps, entries)


def test_saving_containers(benchmark, save, entries):
    benchmark(save, entries)


def test_saving_small_tensors(benchmark, save, tensors):
    benchmark(save, tensors)


def test_saving_next_to_nothing(benchmark, save):
    benchmark(save, {"step": 1})


def test_opening_a_package(benchmark, package):
    benchmark(PackageImporter, package)


def test_loading_small_tensors(benchmark, package, tensors):
    importer = PackageImporter(package)
    assert len(benchmark(importer.load_pickle, "model", "model.pkl")) == len(tensors)


def test_facts_about_a_package(benchmark, package):
    assert benchmark(package_facts, package).storages
