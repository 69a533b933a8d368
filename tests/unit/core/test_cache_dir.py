"""Location and safety of the cache folder."""

from __future__ import annotations

import grp
import os
import pwd
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from modpack.core import cache_dir
from modpack.core.cache_dir import cache_folder, require_trusted_path
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.scan_cache import cached_scan


def test_cache_folder_follows_environment_variable(tmp_path, monkeypatch):
    for name in ("one", "other", "one"):
        monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / name))
        assert cache_folder() == tmp_path / name


def test_relative_cache_folder_is_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE_DIR", "kept")
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert cache_folder() == tmp_path / name / "kept"


def test_cache_folder_is_absolute_after_chdir(tmp_path, monkeypatch):
    monkeypatch.delenv("MODPACK_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "kept")
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == tmp_path / "kept" / "modpack"


@pytest.mark.skipif(sys.platform == "win32", reason="it keeps the current folder")
@pytest.mark.parametrize("variable", ["MODPACK_CACHE_DIR", "XDG_CACHE_HOME"])
def test_relative_cache_folder_in_removed_folder_raises(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("MODPACK_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv(variable, "kept")
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with pytest.raises(RuntimeError, match=r"kept.* is relative to .* removed"):
        cache_folder()
    assert cached_scan() is scan_source


def test_cache_folder_follows_home(tmp_path, monkeypatch):
    for variable in ("MODPACK_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("one", "other"):
        monkeypatch.setenv("HOME", str(tmp_path / name))
        assert cache_folder() == tmp_path / name / ".cache" / "modpack"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "modpack"
    monkeypatch.setenv("MODPACK_CACHE_DIR", "~/mine")
    assert cache_folder() == tmp_path / "other" / "mine"


def test_require_trusted_path_rejects_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="not a folder"):
        require_trusted_path(Path(tmp_path / "file"))


def test_require_trusted_path_accepts_private_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    require_trusted_path(tmp_path / "mine")


def test_require_trusted_path_accepts_sticky_parent(tmp_path):
    (tmp_path / "all" / "mine").mkdir(parents=True)
    (tmp_path / "all").chmod(0o1777)
    require_trusted_path(tmp_path / "all" / "mine")


@pytest.mark.parametrize("mode", [0o777, 0o772, 0o707])
def test_require_trusted_path_rejects_writable_parent(tmp_path, mode):
    (tmp_path / "all" / "sub" / "mine").mkdir(parents=True)
    (tmp_path / "all").chmod(mode)
    with pytest.raises(OSError, match=r"other users can write to .*all and replace its contents"):
        require_trusted_path(tmp_path / "all" / "sub" / "mine")


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user")
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_require_trusted_path_rejects_foreign_parent(tmp_path, mode):
    (tmp_path / "theirs" / "mine").mkdir(parents=True)
    (tmp_path / "theirs").chmod(mode)
    os.chown(tmp_path / "theirs", 4242, -1)
    with pytest.raises(OSError, match=r"theirs belongs to another user"):
        require_trusted_path(tmp_path / "theirs" / "mine")


@pytest.mark.skipif(os.getuid() != 0, reason="gives a symlink to another user")
def test_require_trusted_path_rejects_foreign_symlink(tmp_path):
    (tmp_path / "real" / "mine").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("real")
    require_trusted_path(link / "mine")
    os.chown(link, 4242, -1, follow_symlinks=False)
    with pytest.raises(OSError, match=r"link belongs to another user"):
        require_trusted_path(link / "mine")


def test_require_trusted_path_checks_symlink_targets(tmp_path):
    (tmp_path / "all" / "real" / "mine").mkdir(parents=True)
    (tmp_path / "all").chmod(0o777)
    (tmp_path / "link").symlink_to(Path("all", "real"))
    with pytest.raises(OSError, match="other users can write to"):
        require_trusted_path(tmp_path / "link" / "mine")


def test_require_trusted_path_rejects_symlink_loop(tmp_path):
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(OSError, match="one"):
        require_trusted_path(tmp_path / "one" / "mine")


@pytest.mark.parametrize(
    ("group", "members", "is_mine"),
    [("me", [], True), ("me", ["me"], True), ("me", ["me", "you"], False), ("staff", [], False)],
)
def test_require_trusted_path_accepts_private_group(tmp_path, monkeypatch, group, members, is_mine):
    (tmp_path / "ours" / "mine").mkdir(parents=True)
    (tmp_path / "ours").chmod(0o775)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="me"))
    found = SimpleNamespace(gr_name=group, gr_mem=members)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: found)
    cache_dir._is_private_group.cache_clear()
    gid = (tmp_path / "ours").stat().st_gid
    try:
        if is_mine or gid == 0:
            require_trusted_path(tmp_path / "ours" / "mine")
        else:
            with pytest.raises(OSError, match="other users can write"):
                require_trusted_path(tmp_path / "ours" / "mine")
        assert cache_dir._is_private_group(gid or 1000) is is_mine
    finally:
        cache_dir._is_private_group.cache_clear()


@pytest.mark.parametrize(
    ("mapped", "owner"),
    [
        ("         0          0 4294967295\n", -1),
        ("0 1000 1\n", 65534),
        ("0 1000 1\n1 100000 65536\n", -1),
        ("nonsense", -1),
        (None, -1),
    ],
)
def test_unmapped_uid_in_user_namespace(tmp_path, monkeypatch, mapped, owner):
    (tmp_path / "overflowuid").write_text("65534\n")
    if mapped is not None:
        (tmp_path / "uid_map").write_text(mapped)
    monkeypatch.setattr(cache_dir, "_UID_MAP", tmp_path / "uid_map")
    monkeypatch.setattr(cache_dir, "_OVERFLOW_UID", tmp_path / "overflowuid")
    assert cache_dir._unmapped_uid.__wrapped__() == owner
