"""Where the cache is: what the environment says now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modpack.core.cachefolder import cache_folder, refuse_strangers
from modpack.discovery.scancache import scans_of_user


def test_the_chosen_folder_counts_as_soon_as_it_is_chosen(tmp_path, monkeypatch):
    for name in ("one", "other", "one"):
        monkeypatch.setenv("MODPACK_CACHE", str(tmp_path / name))
        assert cache_folder() == tmp_path / name


def test_a_relative_folder_is_one_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MODPACK_CACHE", "kept")
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert cache_folder() == tmp_path / name / "kept"


def test_the_folder_stays_where_it_was_when_the_process_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.delenv("MODPACK_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "kept")
    monkeypatch.chdir(tmp_path)
    assert cache_folder() == tmp_path / "kept" / "modpack"


@pytest.mark.skipif(sys.platform == "win32", reason="it keeps the current folder")
@pytest.mark.parametrize("variable", ["MODPACK_CACHE", "XDG_CACHE_HOME"])
def test_a_folder_that_is_relative_to_a_removed_one_is_unknown(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("MODPACK_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv(variable, "kept")
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with pytest.raises(RuntimeError, match=r"kept.* is relative to .* removed"):
        cache_folder()
    assert scans_of_user() is None


def test_a_home_may_move(tmp_path, monkeypatch):
    for variable in ("MODPACK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("one", "other"):
        monkeypatch.setenv("HOME", str(tmp_path / name))
        assert cache_folder() == tmp_path / name / ".cache" / "modpack"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "modpack"
    monkeypatch.setenv("MODPACK_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "other" / "mine"


def test_a_file_is_no_folder_to_keep_things_in(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="no folder"):
        refuse_strangers(Path(tmp_path / "file"))
