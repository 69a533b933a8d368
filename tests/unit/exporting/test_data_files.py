"""Classification of files as data, code, or private, and the size limits."""

from __future__ import annotations

import os

import pytest

from modpack.exporting.data_files import (
    SizeLimit,
    is_code,
    is_in_tests,
    is_native,
    is_private,
    iter_data_files,
)


@pytest.mark.parametrize("name", ["a.py", "a.PYC", "a.pyi", "a.pyx", "notebook.ipynb"])
def test_code_is_not_data(name):
    assert is_code(name)


@pytest.mark.parametrize("name", ["a.so", "liba.so.1.2", "a.pyd", "a.dll", "a.dylib", "a.a"])
def test_native_code_is_not_data(name):
    assert is_native(name)


@pytest.mark.parametrize("name", ["kernel.cu", "ops.cpp", "a.social.txt", "solo"])
def test_sources_compiled_at_run_time_are_not_native(name):
    assert not is_native(name)
    assert not is_code(name)


@pytest.mark.parametrize(
    "path",
    (
        *(".env", "a/.git/config", "prod.env", "key.pem", "id_ed25519", "x.p12"),
        *("aws_credentials", "Secrets.yaml", "my-api_key.txt", ".netrc"),
    ),
)
def test_hidden_files_and_secrets_are_private(path):
    assert is_private(path)


@pytest.mark.parametrize(
    "path", ["words.txt", "environment.yml", "tokenizer.json", "keys.json", "../VERSION"]
)
def test_ordinary_names_are_not_private(path):
    assert not is_private(path)


def test_tests_are_recognized_by_folder():
    assert is_in_tests("tests/a.json")
    assert is_in_tests("deep/test/a.json")
    assert not is_in_tests("tests.json")


def test_listing_does_not_follow_links_to_folders(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.txt").write_text("")
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "outside")
    found = [file.name for file in iter_data_files(tmp_path / "folder")]
    assert found == ["b.txt"]


def test_size_limit_applies_to_all_files_together(tmp_path):
    limit = SizeLimit()
    files = [tmp_path / f"{number}.bin" for number in range(6)]
    for file in files:
        with file.open("wb") as stream:
            stream.truncate(60 * 2**20)
    assert [limit.admits(file, "shop") for file in files] == [True] * 4 + [False] * 2
    assert limit.excluded == {"shop": {files[4]: 60 * 2**20, files[5]: 60 * 2**20}}


def test_size_limit_rejects_missing_file(tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    limit = SizeLimit()
    assert not any(limit.admits(tmp_path / name) for name in ("dangling", "pipe", "", "absent"))
