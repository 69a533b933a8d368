"""Distributions that packaged code sees."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from modpack.archive.module_index import IndexEntryKind, ModuleIndex
from modpack.loading.metadata import VisibleDistributions, metadata_functions

EXTENSION = f"shop/_fast{EXTENSION_SUFFIXES[0]}"


@pytest.fixture
def visible(tmp_path, installed):
    """``visible(records, externs)``: what a package of these records sees beside the host's."""

    def see(*records: str, hides: bool = True, **externs: str | None) -> VisibleDistributions:
        tree = tmp_path / "tree"
        for record in records:
            name, _, version = record.partition(".dist-info")[0].rpartition("-")
            place = tree / record
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        index = ModuleIndex.build(records, externs, hides)
        load = importlib.import_module
        return VisibleDistributions(importlib.metadata, lambda: index, tree, load)

    return see


def versions(visible: VisibleDistributions, name: str) -> list[str]:
    return [found.version for found in visible.all(name)]


def test_packaged_distribution_hides_installed_one(visible, installed):
    installed("shop", {"shop.py": ""}, version="2.0")
    assert versions(visible("shop-1.0.dist-info/METADATA"), "Shop") == ["1.0"]


def test_host_distribution_of_extern_module_is_visible(visible, installed):
    installed("shop-tools", {"shop.py": ""}, version="2.0")
    assert versions(visible(shop=None), "shop_tools") == ["2.0"]
    assert versions(visible(), "shop_tools") == []


def test_distribution_without_modules_is_visible(visible, installed):
    installed("only-data", {"share/data.txt": ""}, version="2.0", metadata={"top_level.txt": "\n"})
    installed("bundle", {}, version="3.0")
    assert versions(visible(), "bundle") == ["3.0"]


def test_requirements_of_externs_are_visible_without_extras(visible, installed):
    installed("shop", {"shop.py": ""}, requires=["coins>=1", "stamps; extra == 'more'"])
    installed("coins", {"coins.py": ""}, requires=["metal"])
    installed("metal", {"metal.py": ""})
    installed("stamps", {"stamps.py": ""})
    seen = visible(shop="shop==1.0")
    assert [name for name in ("coins", "metal", "stamps") if versions(seen, name)] == [
        "coins",
        "metal",
    ]


def test_package_without_metadata_hides_no_distribution(visible, installed):
    installed("shop", {"shop.py": ""})
    assert versions(visible(hides=False), "shop") == ["1.0"]


def test_error_names_absent_distribution(visible):
    functions = metadata_functions(visible(), importlib.metadata)
    for question in ("version", "metadata", "requires", "files", "distribution"):
        with pytest.raises(importlib.metadata.PackageNotFoundError) as caught:
            functions[question]("no-such-shop")
        assert caught.value.name == "no-such-shop"


def test_explicit_path_is_searched_as_usual(visible, installed):
    site = installed("shop", {"shop.py": ""})
    functions = metadata_functions(visible(), importlib.metadata)
    found = functions["distributions"](path=[str(site)], name="shop")
    assert [each.version for each in found] == ["1.0"]


def test_copies_of_importlib_metadata_are_proxied(packaged):
    proxy = packaged({"shop.py": ""})._namespace._proxy
    for module in (importlib.metadata, importlib.import_module("importlib_metadata")):
        assert proxy(module) is not module
    assert proxy(sys) is sys


def test_metadata_folders_are_not_modules():
    index = ModuleIndex.build(["my_shop-1.0.dist-info/METADATA", "my_shop-1.0.dist-info/x.py"], {})
    assert index.distributions == {"my-shop": "my_shop-1.0.dist-info"}
    assert not index.entries
    assert not index.roots


def test_compiled_modules_are_entries_and_come_before_sources():
    index = ModuleIndex.build(["shop/__init__.py", "shop/_fast.py", EXTENSION], {})
    entry = index.find("shop._fast")
    assert entry is not None
    assert entry.kind is IndexEntryKind.NATIVE
    assert entry.record == EXTENSION
    assert Path(entry.record).name.startswith("_fast.")
