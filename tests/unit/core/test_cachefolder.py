"""Where the cache is: what the environment says now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modpack.core.cachefolder import cache_folder, refuse_strangers


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
