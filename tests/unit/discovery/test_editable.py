"""Modules that an editable install makes importable."""

from __future__ import annotations

from pathlib import Path

import pytest

from modpack.discovery.distributions import import_root, pth_folders


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "own.pth").write_text("# the project\n/code/shop/src\n\n../beside\n")
    (tmp_path / "runs.pth").write_text("/code/shop\nimport _shop_finder\n")
    (tmp_path / "empty.pth").write_text("\n")
    (tmp_path / "odd.pth").write_bytes(b"\xff\xfe\xff")
    return tmp_path


def test_pth_folders_resolves_relative_lines(site):
    found = pth_folders(site, ["own.pth", "own-1.0.dist-info"])
    assert found == {"/code/shop/src", str(site.parent / "beside")}


@pytest.mark.parametrize(
    "files",
    [[], ["shop"], ["own.pth", "runs.pth"], ["empty.pth"], ["odd.pth"], ["gone.pth"]],
    ids=", ".join,
)
def test_pth_folders_without_path_file_or_with_code_is_none(site, files):
    assert pth_folders(site, files) is None


@pytest.mark.parametrize(
    ("module", "place", "is_folder"),
    [
        ("cart", "/src/cart.py", False),
        ("shop", "/src/shop/__init__.py", False),
        ("shop.cart", "/src/shop/cart.cpython-311-x86_64-linux-gnu.so", False),
        ("shop.parts", "/src/shop/parts/__init__.cpython-311-x86_64-linux-gnu.so", False),
        ("shop.parts", "/src/shop/parts", True),
    ],
)
def test_import_root_is_folder_above_module_path(module, place, is_folder):
    assert import_root(module, Path(place), is_folder) == "/src"


def test_import_root_with_too_few_folders_is_empty():
    assert import_root("a.b.c", Path("/c.py"), False) == ""
