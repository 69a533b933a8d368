import os

import pytest

from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, NotAPackageError


@pytest.fixture
def package(tmp_path):
    """An unzipped package:

    out/model/.data/version
    out/model/pkg/a.py
    """
    root = tmp_path / "out" / "model"
    (root / ".data").mkdir(parents=True)
    (root / ".data" / "version").write_bytes(b"6\n")
    (root / "pkg").mkdir()
    (root / "pkg" / "a.py").write_bytes(b"x = 1\n")
    return root


def test_folder_names_are_relative_and_sorted(package):
    assert open_archive(package).names() == (".data/version", "pkg/a.py")


def test_folder_containing_only_package_is_opened(package):
    assert open_archive(package.parent).names() == (".data/version", "pkg/a.py")
    (package.parent / "another").mkdir()
    with pytest.raises(NotAPackageError, match="not an unzipped package"):
        open_archive(package.parent)


def test_folder_ignores_pycache(package):
    (package / "pkg" / "__pycache__").mkdir()
    (package / "pkg" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"")
    assert open_archive(package).names() == (".data/version", "pkg/a.py")


def test_folder_without_package_is_rejected(tmp_path):
    with pytest.raises(NotAPackageError, match="this folder is not a package: it is empty"):
        open_archive(tmp_path)


def test_folder_follows_links_within_package(package):
    (package / "pkg" / "b.py").symlink_to("a.py")
    archive = open_archive(package)
    assert archive.read("pkg/b.py") == b"x = 1\n"


@pytest.mark.parametrize("kind", ["file", "folder", "folder inside", "dangling", "fifo"])
def test_folder_rejects_outside_links_and_special_files(package, tmp_path, kind):
    (tmp_path / "secret").write_bytes(b"secret")
    strange = package / "pkg" / "strange"
    if kind == "fifo":
        os.mkfifo(strange)
    else:
        goals = {"file": tmp_path / "secret", "folder": tmp_path, "folder inside": package}
        strange.symlink_to(goals.get(kind, "nowhere"))
    with pytest.raises(ArchiveError, match="pkg/strange"):
        open_archive(package)


def test_folder_rejects_colliding_names(package):
    (package / "pkg" / "A.py").write_bytes(b"")
    with pytest.raises(ArchiveError, match="the name collides"):
        open_archive(package)


def test_folder_with_vanished_file_raises_archive_error(package):
    archive = open_archive(package)
    (package / "pkg" / "a.py").unlink()
    for ask in (archive.read, archive.size, archive.crc32):
        with pytest.raises(ArchiveError, match="No such file"):
            ask("pkg/a.py")


@pytest.mark.parametrize("record", ["pkg/a.py", ".data/version", ".data/modpack/manifest.json"])
def test_sparse_code_record_is_rejected_unread(package, record):
    file = package / record
    file.parent.mkdir(exist_ok=True)
    file.touch()
    os.truncate(file, 1 << 42)  # takes no disk, and no machine has the memory
    archive = open_archive(package)
    with pytest.raises(ArchiveError, match="the record has 4398046511104 bytes"):
        archive.read(record)
