"""Stored code of other users, and files without code."""

from __future__ import annotations

import marshal
import os
from types import CodeType

import pytest

from tests.unit.loading.test_bytecode_cache import MODULES, files_of, keep, kept, place

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
__all__ = ["place"]


def test_code_folder_writable_by_others_is_ignored(place):
    keep(place)
    [file] = files_of(place)
    for folder in (file.parent, file.parents[1]):
        folder.chmod(0o770)
        assert kept(place) == {}
        folder.chmod(0o700)
    assert len(kept(place)) == len(MODULES)


def test_symlinked_code_folder_is_ignored(place, tmp_path):
    keep(place)
    [file] = files_of(place)
    for folder in (file.parent, file.parents[1]):
        aside = folder.with_name("aside")
        folder.rename(aside)
        folder.symlink_to(aside)
        assert kept(place) == {}
        folder.unlink()
        aside.rename(folder)
    assert len(kept(place)) == len(MODULES)


@pytest.mark.parametrize("piece", [b"", b"garbage", marshal.dumps("text"), b"\xe3", b"\xff\xff"])
def test_intact_file_without_code_is_ignored(place, monkeypatch, piece):
    dumps = marshal.dumps

    def damaged(value):
        return piece if isinstance(value, CodeType) else dumps(value)

    with monkeypatch.context() as patched:
        patched.setattr(marshal, "dumps", damaged)
        keep(place)
    assert len(files_of(place)) == 1
    assert kept(place) == {}
