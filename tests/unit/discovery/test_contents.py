"""Contents of installed distributions."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from modpack.discovery.distributions import LazyDistribution, metadata_folder


def written(folder: Path, **files: str) -> LazyDistribution:
    for name, text in files.items():
        place = folder / name.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return LazyDistribution(str(folder))


def test_contents_lists_files_of_record(tmp_path):
    record = 'shop/__init__.py,sha256=x,3\n"shop/a, b.txt",,\nshop-1.0.dist-info/RECORD,,\n'
    found = written(tmp_path / "shop-1.0.dist-info", METADATA="Name: shop\n", RECORD=record)
    contents = found.contents
    assert contents.listed == ("shop/__init__.py", "shop/a, b.txt", "shop-1.0.dist-info/RECORD")
    assert contents.folder == tmp_path


def test_contents_keeps_portable_metadata_only(tmp_path):
    found = written(
        tmp_path / "shop-1.0.dist-info",
        METADATA="Name: shop\n",
        WHEEL="",
        entry_points_dot_txt="",
        LICENSE_dot_txt="",
        licenses__deep__NOTICE="",
        licenses__MIT_dot_md="",
        RECORD="",
        INSTALLER="pip",
        REQUESTED="",
        direct_url_dot_json="{}",
    )
    assert sorted(found.contents.metadata) == [
        "LICENSE.txt",
        "METADATA",
        "WHEEL",
        "entry_points.txt",
        "licenses/MIT.md",
        "licenses/deep/NOTICE",
    ]


def test_contents_of_egg_uses_wheel_names(tmp_path):
    files = {"PKG-INFO": "Name: shop\n", "SOURCES.txt": "setup.py\n", "top_level.txt": "shop\n"}
    folder = tmp_path / "shop.egg-info"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    contents = LazyDistribution(str(folder)).contents
    assert sorted(contents.metadata) == ["METADATA", "top_level.txt"]
    assert contents.metadata["METADATA"] == folder / "PKG-INFO"
    assert contents.listed == ()


def test_metadata_folder_normalizes_name(tmp_path):
    for name, version in (("ruamel.yaml", "1.0"), ("My-Shop", "2.0+local"), ("a_b", "1!3")):
        folder = tmp_path / metadata_folder(name, version)
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        for spelling in (name, name.lower(), name.replace("-", "_"), name.replace(".", "-")):
            found = importlib.metadata.Distribution.discover(name=spelling, path=[str(tmp_path)])
            assert next(iter(found)).version == version
