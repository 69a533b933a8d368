"""The cache of unpacked packages."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from modpack.core import cache_dir
from modpack.errors import ArchiveError, CacheError
from modpack.loading.cache import cache_folder, has_stamp, hold, put_stamp, unpack
from tests.full_disk import FullDisk

RECORDS = {"pkg/__init__.py": b"", "pkg/sub/mod.py": b"x = 1", "words.txt": b"alpha"}
SIZES = {name: len(content) for name, content in RECORDS.items()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    monkeypatch.setattr("modpack.loading.cache._temporary", {})
    return tmp_path / "deep" / "cache"


def unpacked(digest="ab12", records=RECORDS):
    sizes = {name: len(content) for name, content in records.items()}
    return unpack(digest, sizes, records.__getitem__)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_tree_is_in_cache_folder_named_by_digest(cache):
    place = unpacked()
    assert place == cache / "trees" / "v2" / "ab12" / "files"
    assert contents(place) == RECORDS
    assert [path.name for path in place.parent.parent.iterdir()] == ["ab12"]


def test_new_cache_folders_are_private(cache):
    before = os.umask(0o000)
    try:
        place = unpacked()
    finally:
        os.umask(before)
    folders = [place, place.parent, cache / "trees" / "v2", cache / "trees", cache, cache.parent]
    assert [mode_of(folder) for folder in folders] == [0o700] * 6


def test_unpack_of_damaged_record_raises_without_second_try(cache, caplog):
    asked = []

    def read(name):
        asked.append(name)
        raise ArchiveError("net.modpack", "it is damaged", name)

    with pytest.raises(ArchiveError, match="it is damaged"):
        unpack("ab12", SIZES, read)
    assert len(asked) == 1 and "cache" not in caplog.text


def test_existing_tree_is_not_rewritten(cache):
    place = unpacked()
    times = {path: path.stat().st_mtime_ns for path in place.rglob("*")}

    def read(name):
        raise AssertionError("read again")

    assert unpack("ab12", SIZES, read) == place
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == times


def test_tree_with_missing_files_is_recreated(cache):
    place = unpacked()
    (place / "pkg" / "sub" / "mod.py").unlink()
    assert unpacked() == place
    assert contents(place) == RECORDS
    (place / "words.txt").write_bytes(b"")
    assert contents(unpacked()) == RECORDS
    assert [path.name for path in place.parent.parent.iterdir()] == ["ab12"]


def test_stamp_of_files_that_are_absent_raises(cache):
    folder = unpacked().parent
    assert has_stamp(folder, "ab12", RECORDS)
    with pytest.raises(FileNotFoundError):
        has_stamp(folder, "ab12", ["absent"])
    with pytest.raises(FileNotFoundError):
        has_stamp(folder.with_name("cd34"), "cd34", [])


def test_changed_file_of_same_size_is_detected(cache, caplog):
    place = unpacked()
    (place / "words.txt").write_bytes(b"omega")
    assert contents(unpacked()) == RECORDS
    [record] = caplog.records
    assert "files were modified in the cache" in record.getMessage()


def test_changed_file_with_restored_times_is_detected(cache):
    place = unpacked()
    before = (place / "words.txt").stat()
    (place / "words.txt").write_bytes(b"omega")
    os.utime(place / "words.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert contents(unpacked()) == RECORDS


def test_files_are_compared_after_reboot(cache, monkeypatch):
    place = unpacked()
    words, stamps = place / "words.txt", place.parent / "stamps"
    words.write_bytes(b"\0" * 5)  # possible content of a file after a power failure
    put_stamp(place.parent, "ab12", SIZES)
    assert contents(unpacked())["words.txt"] == b"\0" * 5, "the stamp of this boot is believed"
    monkeypatch.setattr("modpack.loading.cache.boot", lambda: "another")
    assert contents(unpacked()) == RECORDS
    assert [file.name for file in stamps.iterdir()] == ["another"]


def test_intact_tree_is_not_rewritten_after_reboot(cache, monkeypatch):
    place = unpacked()
    inode = place.stat().st_ino
    monkeypatch.setattr("modpack.loading.cache.boot", lambda: "another")
    assert unpacked() == place
    assert place.stat().st_ino == inode
    assert has_stamp(place.parent, "ab12", SIZES)


def test_files_are_flushed_without_boot_id(cache, monkeypatch):
    flushed = []
    monkeypatch.setattr("modpack.loading.cache.boot", lambda: "")
    monkeypatch.setattr(os, "fsync", flushed.append)
    unpacked()
    assert len(flushed) == len(RECORDS)


def test_read_only_cache_is_used(cache, monkeypatch, caplog):
    place = unpacked()

    def refuse(*_, **__):
        raise PermissionError(13, "Read-only file system")

    for name in ("mkdir", "touch", "write_text", "write_bytes"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr("modpack.loading.cache._held", {})
    monkeypatch.setattr("modpack.loading.cache._locked", refuse)
    monkeypatch.setattr("modpack.loading.cache.boot", lambda: "another")
    assert unpacked() == place
    assert not caplog.records


def test_sweep_removes_only_leftovers_of_ended_processes(cache):
    unpacked()
    folder = cache / "trees" / "v2"
    (folder / "cd34.dead.tmp").mkdir()
    (folder / "ef56.alive.tmp").mkdir()
    hold(cache, "ef56.alive.tmp")
    unpacked("0789")
    assert sorted(each.name for each in folder.iterdir()) == ["0789", "ab12", "ef56.alive.tmp"]


def test_unpack_on_full_disk_leaves_no_partial_tree(cache, monkeypatch, tmp_path):
    def full(name):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CacheError, match=r"No space left.*Set MODPACK_CACHE_DIR"):
        unpack("ab12", SIZES, full)
    assert list((cache / "trees" / "v2").iterdir()) == []
    assert list(tmp_path.glob("modpack-*")) == []


def test_failed_unpacking_leaves_no_entry(cache, monkeypatch):
    def read(name):
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        unpack("ab12", SIZES, read)
    assert list((cache / "trees" / "v2").iterdir()) == []


def test_unwritable_cache_is_replaced_by_temporary_folder(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("modpack.loading.cache._temporary", {})
    with caplog.at_level(logging.WARNING, logger="modpack"):
        place = unpacked()
    assert contents(place) == RECORDS
    assert place.is_relative_to(tempfile.gettempdir())
    assert mode_of(place) == 0o700
    [record] = caplog.records
    assert "MODPACK_CACHE_DIR" in record.getMessage() and "temporary" in record.getMessage()
    assert unpacked() == place


@pytest.mark.parametrize("danger", ["other users can write", "is not a folder", "another user"])
def test_tree_of_another_user_is_not_used(cache, danger, monkeypatch, caplog):
    place = unpacked()
    if danger == "other users can write":
        place.parent.chmod(0o770)
    elif danger == "is not a folder":
        place.parent.rename(place.parent.with_name("aside"))
        place.parent.symlink_to(place.parent.with_name("aside"))
    else:
        os.chown(place.parent, 4242, -1) if os.getuid() == 0 else monkeypatch.setattr(
            os, "getuid", lambda: 4242
        )
    used = unpacked()
    assert used != place and contents(used) == RECORDS
    assert danger in caplog.text


def test_cache_without_home_folder_is_temporary(monkeypatch, caplog):
    for name in ("MODPACK_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr("modpack.loading.cache._temporary", {})
    assert contents(unpacked()) == RECORDS
    assert "MODPACK_CACHE_DIR" in caplog.text


def test_unpack_without_writable_folder_raises_with_fix(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("modpack.loading.cache._temporary", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="Set MODPACK_CACHE_DIR"):
        unpacked()


def test_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("MODPACK_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "modpack"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert cache_folder() == tmp_path / "me" / ".cache" / "modpack"
    monkeypatch.setenv("MODPACK_CACHE_DIR", "~/packages")
    assert cache_folder() == tmp_path / "me" / "packages"


def test_temporary_tree_is_removed_by_its_process_only(tmp_path):
    code = """
import os, sys
from modpack.loading import cache
place = cache.unpack("ab12", {"a.py": 1}, lambda name: b"#")
child = os.fork()
if child == 0:
    sys.exit(0)  # runs the exit handlers
os.waitpid(child, 0)
print(place, place.joinpath("a.py").is_file())
"""
    (tmp_path / "file").write_text("in the way")
    environment = {**os.environ, "MODPACK_CACHE_DIR": str(tmp_path / "file" / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    place, was_there = done.stdout.split()
    assert was_there == "True"
    assert not Path(place).exists()


@pytest.mark.parametrize("folder", ["__pycache__", "pkg/__pycache__", "pkg/__PYCACHE__/deep"])
def test_bytecode_of_a_package_is_not_unpacked(cache, folder):
    place = unpacked(records={**RECORDS, f"{folder}/mod.cpython-311.pyc": b"anything"})
    assert contents(place) == RECORDS


def test_exchanged_trees_are_detected(cache):
    others = {**RECORDS, "words.txt": b"omega"}
    first, second = unpacked("ab12").parent, unpacked("cd34", others).parent
    first.rename(aside := first.with_name("aside"))
    second.rename(first)
    aside.rename(second)
    assert contents(unpacked("ab12")) == RECORDS
    assert contents(unpacked("cd34", others)) == others


def test_symlink_in_place_of_a_file_is_detected(cache, tmp_path):
    elsewhere = tmp_path / "mod.py"
    elsewhere.write_bytes(RECORDS["pkg/sub/mod.py"])
    file = unpacked() / "pkg" / "sub" / "mod.py"
    file.unlink()
    file.symlink_to(elsewhere)
    unpacked()
    elsewhere.write_bytes(b"x = 2")
    assert file.read_bytes() == RECORDS["pkg/sub/mod.py"]


def test_trees_in_folder_writable_by_others_are_not_used(cache, caplog):
    place = unpacked()
    (cache / "trees" / "v2").chmod(0o777)
    used = unpacked()
    assert used != place and contents(used) == RECORDS
    assert "other users can write" in caplog.text


def test_unwritable_marker_leaves_no_temporary_file(cache, monkeypatch):
    place = unpacked()
    monkeypatch.setattr("modpack.loading.cache.boot", lambda: "another")
    monkeypatch.setattr(cache_dir, "open", FullDisk, raising=False)
    unpacked()
    assert list((place.parent / "stamps").glob("*.tmp")) == []


def test_trees_in_a_cache_that_others_could_exchange_are_not_used(cache, caplog):
    unpacked()
    cache.chmod(0o777)
    used = unpacked()
    assert not used.is_relative_to(cache) and contents(used) == RECORDS
    assert f"other users can write to {cache}" in caplog.text
    assert "set MODPACK_CACHE_DIR to a folder that only you can write to" in caplog.text
