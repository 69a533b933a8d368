"""The store of compiled code."""

from __future__ import annotations

import os
import sys

import pytest

from modpack.archive.module_index import ModuleIndex
from modpack.core import cache_dir
from modpack.loading.cache import unpack
from modpack.loading.cache_maintenance import list_entries
from modpack.loading.compile import BytecodeCache
from modpack.loading.finder import PackageFinder
from tests.full_disk import FullDisk

DIGEST = "ab12"
RECORDS = {"pkg/__init__.py": b"", "pkg/one.py": b"value = 1", "pkg/two.py": b"value = 2"}
MODULES = {"pkg": "pkg/__init__.py", "pkg.one": "pkg/one.py", "pkg.two": "pkg/two.py"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    sizes = {name: len(content) for name, content in RECORDS.items()}
    return unpack(DIGEST, sizes, RECORDS.__getitem__)


def opened(place, kind="private"):
    prefix = "modpack.packages.pab12." if kind == "private" else ""
    return BytecodeCache(place, prefix)


def keep(place, modules=MODULES, **options):
    store = opened(place, **options)
    for module, record in modules.items():
        file = place / record
        source = file.read_bytes()
        store.put(module, str(file), source, compile(source, file, "exec"))
    store.write()


def kept(place, **options):
    """The values of the modules whose code is kept."""
    store, found = opened(place, **options), {}
    for module, record in MODULES.items():
        code = store.get(module, str(place / record))
        if code is not None:
            names = {}
            exec(code, names)
            found[module] = names.get("value")
    return found


def files_of(place):
    return sorted((place.parent / "code").glob("*/*"))


def test_stored_code_is_used_by_later_processes(place):
    assert kept(place) == {}
    keep(place)
    assert kept(place) == {"pkg": None, "pkg.one": 1, "pkg.two": 2}


def test_one_import_writes_one_file(place):
    keep(place)
    keep(place)
    assert len(files_of(place)) == 1
    keep(place, {"pkg.one": "pkg/one.py"})
    assert len(files_of(place)) == 2
    assert kept(place) == {"pkg": None, "pkg.one": 1, "pkg.two": 2}


def test_code_of_modified_source_is_not_stored(place):
    (place / "pkg" / "one.py").write_bytes(b"value = 7")
    keep(place)
    assert kept(place) == {"pkg": None, "pkg.two": 2}


def test_code_belongs_to_its_module_and_file(place):
    keep(place, {"pkg.one": "pkg/two.py"})
    assert kept(place) == {}
    assert opened(place).get("pkg.one", str(place / "pkg" / "two.py")) is not None


def test_each_kind_of_namespace_has_its_own_code(place):
    keep(place, kind="process")
    assert kept(place) == {}
    assert len(kept(place, kind="process")) == 3


def test_each_python_has_its_own_code(place, monkeypatch):
    keep(place)
    monkeypatch.setattr("importlib.util.MAGIC_NUMBER", b"else")
    assert kept(place) == {}


def test_code_without_asserts_is_used_only_with_optimize(place, monkeypatch):
    keep(place)

    class Optimizing:
        optimize = 1

    monkeypatch.setattr(sys, "flags", Optimizing)
    assert kept(place) == {}


def test_code_of_moved_tree_is_rejected(place):
    keep(place)
    other = place.parents[1] / "cd34"
    place.parent.rename(other)
    assert kept(other / "files") == {}
    assert list_entries(place.parents[3]) != ()
    cache = place.parents[3]
    cache.rename(cache.with_name("elsewhere"))
    (cache.with_name("elsewhere") / "trees" / "v2" / "cd34").rename(
        cache.with_name("elsewhere") / "trees" / "v2" / DIGEST
    )
    assert kept(cache.with_name("elsewhere") / "trees" / "v2" / DIGEST / "files") == {}


def test_damaged_code_is_ignored(place):
    keep(place)
    [file] = files_of(place)
    content = file.read_bytes()
    expected = kept(place)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x20
        file.unlink()
        file.write_bytes(changed)
        assert kept(place).items() <= expected.items()
        assert len(kept(place)) < len(expected)
    for length in range(0, len(content), 7):
        file.unlink()
        file.write_bytes(content[:length])
        assert kept(place).items() <= expected.items()


def test_read_only_bytecode_cache_is_read(place, monkeypatch):
    keep(place)

    def refuse(*_, **__):
        raise PermissionError(13, "Read-only file system")

    monkeypatch.setattr("modpack.loading.compile.make_private", refuse)
    keep(place, {"pkg.one": "pkg/one.py"})
    assert len(kept(place)) == 3 and len(files_of(place)) == 1


def test_write_on_full_disk_leaves_no_partial_file(place, monkeypatch):
    monkeypatch.setattr(cache_dir, "open", FullDisk, raising=False)
    keep(place)
    assert files_of(place) == []


def test_tree_without_record_stores_no_code(place):
    (place.parent / "tree.json").write_text("{}")
    keep(place)
    assert files_of(place) == []


def test_temporary_tree_stores_no_code(tmp_path):
    index = ModuleIndex.build([], {})
    finder = PackageFinder("a.modpack", "modpack.packages.pab12.", index, tmp_path, vars)
    assert finder.code is None


def test_code_folders_are_private(place):
    before = os.umask(0o000)
    try:
        keep(place)
    finally:
        os.umask(before)
    [file] = files_of(place)
    assert [each.stat().st_mode & 0o777 for each in (file.parent, file.parents[1])] == [0o700] * 2


def test_size_of_tree_includes_code(place):
    cache = place.parents[3]
    [before] = list_entries(cache)
    keep(place)
    [after] = list_entries(cache)
    [file] = files_of(place)
    assert after.files == before.files + 1
    assert after.size_bytes == before.size_bytes + file.stat().st_size
