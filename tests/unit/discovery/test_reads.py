"""Static detection of data files that a source reads."""

from __future__ import annotations

import pytest

from modpack.core.scan import ReadKind
from modpack.discovery.import_scanner import scan_source

HEAD = """
import glob, importlib.resources as ir, os, os.path as osp, pathlib, pkgutil
from importlib import resources
from importlib.resources import files
from os.path import abspath, dirname, join
from pathlib import Path
import other.pkg
HERE = Path(__file__).resolve().parent
ROOT = dirname(dirname(abspath(__file__)))
NAME = "words.txt"
"""


def paths(code: str, module: str = "pkg.mod", is_package: bool = False) -> list[str]:
    """Return the reads: ``"a/b"`` is a file, ``"a/*"`` a folder, ``"other: a"`` in a module."""
    short = []
    for read in scan_source(HEAD + code, module, is_package).reads:
        if read.kind is not ReadKind.NAME and read.line > HEAD.count("\n"):
            end = "/*" if read.kind is ReadKind.FOLDER else ""
            short.append((f"{read.module}: " if read.module else "") + read.path + end)
    return short


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        ('Path(__file__).parent / "a" / "b.json"', "a/b.json"),
        ('Path(__file__).with_name("b.json")', "b.json"),
        ('HERE.joinpath("a", "b.json").read_text()', "a/b.json"),
        ("open(HERE / NAME)", "words.txt"),
        ('HERE.parent / "VERSION"', "../VERSION"),
        ('Path(__file__).parents[1] / "VERSION"', "../VERSION"),
        ('os.path.join(os.path.dirname(__file__), "a", "b.json")', "a/b.json"),
        ('osp.join(osp.dirname(osp.realpath(__file__)), "b.json")', "b.json"),
        ('join(ROOT, "data", "b.json")', "../data/b.json"),
        ('join(dirname(__file__), "..", "b.json")', "../b.json"),
        ('os.path.split(os.path.abspath(__file__))[0] + "/b.json"', "b.json"),
        ('f"{HERE}/a/b.json"', "a/b.json"),
        ('str(HERE) + "/" + NAME', "words.txt"),
        ('pkgutil.get_data(__name__, "b.json")', "b.json"),
        ('files(__package__).joinpath("b.json")', "pkg: b.json"),
        ('ir.files("pkg.data") / "b.json"', "pkg.data: b.json"),
        ('resources.open_text("pkg.data", "b.json")', "pkg.data: b.json"),
        ('files() / "b.json"', "b.json"),
        ('__path__[0] + "/b.json"', "b.json"),
        ('join(dirname(other.pkg.__file__), "b.json")', "other.pkg: b.json"),
        ('join(other.pkg.__path__[0], "b.json")', "other.pkg: b.json"),
        ('Path(__spec__.origin).parent / "b.json"', "b.json"),
        ('glob.glob(join(dirname(__file__), "a", "*.json"))', "a/*"),
        ('(HERE / "a").glob("*.json")', "a/*"),
        ('os.listdir(HERE / "a")', "a/*"),
        ('HERE / "a" / f"{name}.json"', "a/*"),
        ('f"{HERE}/a/{name}.json"', "a/*"),
        ("HERE / name", "/*"),
        ("join(ROOT, name)", "../*"),
    ],
)
def test_find_reads_follows_path_from_module(expression, path):
    assert set(paths(f"name = input()\nfound = {expression}\nprint(found)")) == {path}


def test_find_reads_follows_path_through_function():
    code = """
def default():
    return join(dirname(__file__), "vocabulary.gz")

class Tokenizer:
    def __init__(self, path=default()): ...
"""
    assert set(paths(code)) == {"vocabulary.gz"}


def test_find_reads_reports_assigned_path_at_its_use():
    assert paths('CONF = HERE / "conf.json"\nopen(CONF)\n') == ["conf.json"]


def test_find_reads_reports_unused_path():
    assert paths('MODELS = HERE / "models"\n') == ["models"]


def test_find_reads_ignores_sys_path_changes():
    assert paths("import sys\nsys.path.insert(0, dirname(__file__))\nsys.path.append(ROOT)") == []


def test_find_reads_ignores_own_file():
    assert paths("print(__file__)\nopen(__file__)\n") == []


def test_find_reads_ignores_name_assigned_twice():
    assert paths('x = HERE / "a.txt"\nx = input()\nopen(x)') == ["a.txt"]


def test_find_reads_separates_file_names_from_prose():
    code = '"""See notes.txt."""\nload("words.txt", "a/b.json", "Hello, world.", "VERSION", "x")'
    reads = scan_source(HEAD + code, "pkg.mod", False).reads
    names = [read.path for read in reads if read.kind is ReadKind.NAME]
    assert names == ["words.txt", "words.txt", "a/b.json", "VERSION"]


def test_find_reads_needs_own_path():
    assert scan_source('open("words.txt")', "pkg.mod", False).reads == ()


def test_find_reads_handles_deep_nesting():
    deep = "(" * 80 + "HERE" + ")" * 80
    chain = " / 'a'" * 300
    assert len(paths(f"found = {deep}{chain}\nprint(found)")) == 1
    assert paths("table = 1" + " + x" * 3000) == []
