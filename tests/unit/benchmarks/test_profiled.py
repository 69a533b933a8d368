"""Shares of a profile by layer, and their tables. Nothing is timed."""

import cProfile
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "benchmarks" / "peers"


@pytest.fixture
def stats():
    """Profile data: a layer that calls a C function, and the standard library."""
    scan = (str(ROOT / "modpack" / "discovery" / "source.py"), 3, "scan")
    parse = (str(Path(importlib.import_module("ast").__file__)), 7, "parse")
    built_in = ("~", 0, "<built-in method builtins.compile>")
    return {
        scan: (1, 1, 1.0, 10.0, {}),
        parse: (1, 1, 2.0, 8.0, {scan: (1, 1, 2.0, 8.0)}),
        built_in: (4, 4, 7.0, 7.0, {parse: (3, 3, 6.0, 6.0), scan: (1, 1, 1.0, 1.0)}),
    }


def test_functions_in_c_belong_to_who_calls_them(tool, stats):
    library, layer = tool("profiled").shares_of(stats)
    assert (library.part, library.share, library.in_c) == ("standard library: ast", 0.8, 0.6)
    assert (layer.part, layer.share, layer.in_c) == ("`modpack/discovery`", 0.2, 0.1)


def test_largest_part_of_profile_is_named(tool, stats):
    library, layer = tool("profiled").shares_of(stats)
    assert library.most == ("compile", "ast.parse")
    assert set(layer.most) == {"compile", "source.scan"}


def test_profile_omits_parts_below_one_percent(tool):
    shares = tool("profiled")
    table = shares.table([shares.Share("a", 0.99, 0.5, ("f",)), shares.Share("b", 0.009, 0, ())])
    assert table.splitlines()[2:] == ["| a | 99% | 50% | `f` |"]


def test_only_timed_code_is_profiled(tool, monkeypatch):
    clocks = tool("clocks")
    profile = cProfile.Profile()
    monkeypatch.setattr(clocks, "_profile", profile)
    with clocks.clock(warming_up=True):
        sorted([1])
    with clocks.clock() as seconds:
        len([2])
    profile.create_stats()
    names = {name for _, _, name in profile.stats}
    assert any("len" in name for name in names)
    assert not any("sorted" in name for name in names)
    assert seconds() > 0


def test_profile_tables_name_versions(tool):
    inside = tool("profiled").inside(["### new\n", "### another"])
    assert inside.startswith("Measured with Python")
    assert inside.endswith("\n\n### new\n\n### another")


def test_only_modpack_rows_are_profiled(tool):
    profiled = tool("profiled")
    ours = {row.name: profiled._ours(row) for row in tool("rows").rows()}
    assert ours["load-one"] == ["modpack"]
    assert ours["walk-sympy"] == ["modpack", "modpack, warm scan cache"]
    assert ours["start"] == ours["machine"] == []
