"""Maintenance of the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from modpack.errors import CacheError
from modpack.loading import cache as leases
from modpack.loading import cache as tree
from modpack.loading import cache_maintenance

RECORDS = {"pkg/__init__.py": b"", "words.txt": b"alpha"}
SIZES = {name: len(content) for name, content in RECORDS.items()}
A, B, C, D = (letter * 64 for letter in "abcd")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with three trees, which this process does not use."""
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path))
    for age, digest in enumerate((A, B, C)):
        tree.unpack(digest, SIZES, RECORDS.__getitem__, f"{digest[0]}.modpack")
        used = time.time() - age * 86400 - 60
        os.utime(tree.trees_folder(tmp_path) / digest / "used", (used, used))
    release(tmp_path)
    return tmp_path


def release(cache):
    os.close(leases._held.pop(cache).descriptor)


def held(cache):
    return [each.digest for each in cache_maintenance.list_entries(cache)]


def test_list_entries_returns_most_recently_used_first(cache):
    first, *others = cache_maintenance.list_entries(cache)
    assert [first.digest, *(each.digest for each in others)] == [A, B, C]
    assert (first.name, first.files, first.size_bytes) == ("a.modpack", 2, 5)


def make_environment(cache, digest, age=0.0):
    folder = leases.environments_folder(cache) / digest
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_bytes(b"12345678")
    (folder / leases.ENVIRONMENT).write_bytes(b"{}")
    os.utime(folder / leases.ENVIRONMENT, (time.time() - age, time.time() - age))
    return folder


def test_environments_are_listed_and_cleared_like_packages(cache):
    folder = make_environment(cache, "e" * 32, age=1.5 * 86400)
    listed = cache_maintenance.list_entries(cache)
    assert [(each.kind, each.digest[0]) for each in listed] == [
        ("package", "a"),
        ("package", "b"),
        ("environment", "e"),
        ("package", "c"),
    ]
    assert (listed[2].name, listed[2].files, listed[2].size_bytes) == (None, 2, 10)
    removed = cache_maintenance.clear(cache, older_than=1.2 * 86400).removed
    assert [each.digest for each in removed] == ["e" * 32, C]
    assert not folder.exists() and list(folder.parent.iterdir()) == []
    assert held(cache) == [A, B]


def test_clear_keeps_environment_in_use_and_removes_incomplete_one(cache):
    used = make_environment(cache, "e" * 32)
    killed = make_environment(cache, "f" * 32)
    (killed / leases.ENVIRONMENT).unlink()
    leases.hold(cache, used.name)
    cleared = cache_maintenance.clear(cache)
    assert [each.digest for each in cleared.kept] == [used.name]
    assert cleared.leftovers == 1
    assert list(used.parent.iterdir()) == [used]
    release(cache)


def test_second_load_updates_last_use(cache):
    tree.unpack(C, SIZES, RECORDS.__getitem__)
    assert held(cache) == [C, A, B]


def test_list_and_clear_without_cache_return_nothing(tmp_path):
    assert cache_maintenance.list_entries(tmp_path / "none") == ()
    assert cache_maintenance.clear(tmp_path / "none").removed == ()


def test_clear_removes_trees_unused_for_long(cache):
    cleared = cache_maintenance.clear(cache, older_than=1.5 * 86400)
    assert [each.digest for each in cleared.removed] == [C]
    assert cleared.freed_bytes == 5
    assert held(cache) == [A, B]


def test_clear_removes_scans_too(cache):
    scan = cache / "scans" / "v1" / "ab" / "cd"
    scan.parent.mkdir(parents=True)
    scan.write_bytes(b"12345")
    cleared = cache_maintenance.clear(cache)
    assert len(cleared.removed) == 3 and cleared.scans == cache_maintenance.Scans(1, 5)
    assert held(cache) == [] and not scan.exists()
    assert list(tree.trees_folder(cache).iterdir()) == []


def test_clear_keeps_and_reports_trees_in_use(cache):
    tree.unpack(B, SIZES, RECORDS.__getitem__)
    cleared = cache_maintenance.clear(cache)
    assert [each.digest for each in cleared.kept] == [B]
    assert held(cache) == [B]
    release(cache)
    assert [each.digest for each in cache_maintenance.clear(cache).removed] == [B]


def test_clear_keeps_trees_of_forked_child_after_parent_ends(cache):
    code = f"""
import os, sys
from modpack.loading import cache as tree
tree.unpack({B!r}, {SIZES!r}, {RECORDS!r}.__getitem__)
reading, writing = os.pipe()
if os.fork():
    os._exit(0)
os.close(1); os.close(2)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        parent.stdout.read()  # until parent and child have closed it
        parent.wait()
        assert [each.digest for each in cache_maintenance.clear(cache).kept] == [B]
        parent.stdin.close()
    deadline = time.monotonic() + 60
    while held(cache) and time.monotonic() < deadline:
        cache_maintenance.clear(cache)
    assert held(cache) == []


def test_clear_removes_leftovers_of_killed_processes(cache):
    (tree.trees_folder(cache) / "dead.tmp").mkdir()
    assert cache_maintenance.clear(cache, older_than=7 * 86400).leftovers == 1
    assert held(cache) == [A, B, C]


def test_clear_without_locks_raises(cache, monkeypatch):
    def no_locks(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(leases.fcntl, "flock", no_locks)
    with pytest.raises(CacheError, match=r"cannot be locked.*by hand"):
        cache_maintenance.clear(cache)
    assert held(cache) == [A, B, C]
    assert tree.unpack(A, SIZES, RECORDS.__getitem__).is_dir(), "packages can still be loaded"


def test_lease_in_removed_folder_is_recreated(cache):
    tree.unpack(A, SIZES, RECORDS.__getitem__)
    for file in (cache / "leases").iterdir():
        file.unlink()
    tree.unpack(A, SIZES, RECORDS.__getitem__)
    assert [each.digest for each in cache_maintenance.clear(cache).kept] == [A]
    release(cache)


def test_clear_removes_nothing_outside_the_cache(cache, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    precious = [outside / "v1" / "ab" / "cdef", outside / D / "f", outside / "f"]
    for file in precious:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    (cache / "scans").symlink_to(outside)
    trees = tree.trees_folder(cache)
    for name in (D, "0123.dead.tmp"):
        (trees / name).symlink_to(outside)
    cache_maintenance.clear(cache)
    trees.rmdir() if not any(trees.iterdir()) else trees.rename(trees.with_name("aside"))
    trees.symlink_to(outside)
    cache_maintenance.clear(cache)
    assert all(file.is_file() for file in precious)


def test_clear_removes_tree_with_last_use_in_the_future(cache):
    later = time.time() + 86400
    os.utime(tree.trees_folder(cache) / A / "used", (later, later))
    cache_maintenance.clear(cache, older_than=60.0)
    assert held(cache) == [A]
    cache_maintenance.clear(cache)
    assert held(cache) == []


def test_clear_keeps_unknown_files(cache):
    files = [cache / "scans" / "head.png", cache / "scans" / "v1" / "ab" / "notes.txt"]
    files.append(tree.trees_folder(cache) / "oak" / "leaf")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    assert cache_maintenance.clear(cache).scans == cache_maintenance.Scans()
    assert all(file.is_file() for file in files) and held(cache) == []


def test_daemon_that_closes_all_files_renews_its_lease(cache):
    tree.unpack(A, SIZES, RECORDS.__getitem__)
    descriptor = leases._held[cache].descriptor
    with (cache / "other").open("w+b") as other:
        os.dup2(other.fileno(), descriptor)
        tree.unpack(B, SIZES, RECORDS.__getitem__)
        assert (cache / "other").read_bytes() == b""
    os.close(descriptor)
    kept = cache_maintenance.clear(cache).kept
    assert {each.digest for each in kept} == {A, B}
    release(cache)


@pytest.mark.parametrize("is_partial", [False, True])
def test_clear_with_incomplete_lease_raises(cache, monkeypatch, is_partial):
    write = os.write

    def full(descriptor, text):
        if is_partial:
            return write(descriptor, text[:9])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        tree.unpack(A, SIZES, RECORDS.__getitem__)
    with pytest.raises(CacheError, match=r"the disk was full\. Free disk space"):
        cache_maintenance.clear(cache)
    tree.unpack(A, SIZES, RECORDS.__getitem__)
    assert [each.digest for each in cache_maintenance.clear(cache).kept] == [A]
    release(cache)


@pytest.mark.parametrize("used", [-1e9, 1e11])
def test_last_use_in_the_future_counts_as_now(cache, used):
    file = tree.trees_folder(cache) / A / "used"
    os.utime(file, (used, used))
    [last_use] = [each.used for each in cache_maintenance.list_entries(cache) if each.digest == A]
    assert last_use == (0 if used < 0 else pytest.approx(time.time(), abs=60))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"files": {"a": [Infinity, ""]}}', "\0"])
def test_list_entries_accepts_unreadable_record(cache, text):
    first = cache_maintenance.list_entries(cache)[0]
    (first.folder / "tree.json").write_text(text)
    assert cache_maintenance.list_entries(cache)[0].name is None
