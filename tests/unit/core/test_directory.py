from __future__ import annotations

from modpack.core.names import Directory

FILES = ["pkg/__init__.py", "pkg/sub/deep.py", "pkg/net.py", "notes.txt", ".data/version"]


def test_directory_prints_sorted_tree():
    assert str(Directory.from_names("file.pt", FILES)).splitlines() == [
        "file.pt",
        "├── .data",
        "│   └── version",
        "├── notes.txt",
        "└── pkg",
        "    ├── __init__.py",
        "    ├── net.py",
        "    └── sub",
        "        └── deep.py",
    ]


def test_files_and_folders_are_found_by_path():
    tree = Directory.from_names("file.pt", FILES)
    assert tree.has_file("pkg/sub/deep.py") and tree.has_file("pkg/sub")
    assert not tree.has_file("sub") and not tree.has_file("pkg/sub/deep.py/more")
    assert not tree.has_file("")


def test_children_are_folders_and_files_by_name():
    tree = Directory.from_names("file.pt", FILES)
    assert list(tree.children) == [".data", "notes.txt", "pkg"]
    assert tree.is_dir and not tree.children["notes.txt"].is_dir
    assert tree.children["pkg"].children["sub"].children["deep.py"].name == "deep.py"


def test_patterns_choose_files_by_whole_paths():
    tree = Directory.from_names("file.pt", FILES, include="pkg/**", exclude=["**/deep.py"])
    assert tree.has_file("pkg/net.py") and not tree.has_file("pkg/sub")
    assert not tree.has_file("notes.txt")
    assert Directory.from_names("file.pt", FILES, include=["*.txt"]).has_file("notes.txt")


def test_empty_directory_prints_its_name():
    assert str(Directory.from_names("file.pt", [])) == "file.pt"
