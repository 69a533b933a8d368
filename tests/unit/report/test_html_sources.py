"""The sources in the HTML report."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.scan import ImportKind
from modpack.errors import ArchiveError
from modpack.report.audit import audit_package
from modpack.report.html_document import packed, read_sources


@pytest.fixture
def package(packaged) -> Path:
    files = {
        "shop/__init__.py": "total = 3\n",
        "shop/till.py": "from . import total\n" * 50,
        "shop/odd.py": "name = 'a\\u202e'  # \u202e\u00e9\n",
        "shop/latin.py": "# coding: latin-1\n",
    }
    return Path(packaged(files, dependencies=False).filename)


def unpacked(text: str) -> str:
    return zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS).decode()


def test_read_sources_returns_interned_sources(package):
    sources = read_sources(package, audit_package(package))
    assert unpacked(sources.texts["shop"]) == "total = 3\n"
    assert unpacked(sources.texts["shop.till"]).startswith("from . import total\n")
    assert sources.left_out == {}


def test_read_sources_escapes_misleading_characters(package):
    text = unpacked(read_sources(package, audit_package(package)).texts["shop.odd"])
    assert "# \\u202e\u00e9\n" in text


def test_read_sources_omits_large_source(package):
    sources = read_sources(package, audit_package(package), largest=100)
    assert set(sources.left_out) == {"shop.till"}
    assert "1.0 kB exceeds the limit" in sources.left_out["shop.till"]


def test_read_sources_limits_total_size(package):
    sources = read_sources(package, audit_package(package), most=60)
    assert "shop.till" in sources.left_out
    assert sum(len(unpacked(text)) for text in sources.texts.values()) <= 60


def test_read_sources_omits_sources_farthest_from_the_model(package):
    audit = audit_package(package)
    modules = tuple(
        replace(facts, distribution=None if facts.module == "shop.till" else "lib")
        for facts in audit.modules
    )
    graph = DependencyGraph()
    graph.mark_root("shop")
    graph.add_edge(Edge("shop", "shop.odd", ImportKind.REQUIRED))
    audit = replace(audit, modules=modules, graph=graph)
    whole = read_sources(package, audit, room=None)
    assert list(whole.texts)[:3] == ["shop.till", "shop", "shop.odd"]
    assert whole.too_many == 0
    room = len(whole.texts["shop.till"]) + len(whole.texts["shop"])
    some = read_sources(package, audit, room)
    assert list(some.texts) == ["shop.till", "shop"]
    assert "--all-sources" in some.left_out["shop.odd"]
    assert some.too_many == len(whole.texts) - 2


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"# coding: rot13\n", b"# coding: undefined\n", b"# coding: x\n"]
)
def test_read_sources_omits_undecodable_source(made, rewritten, content):
    file = rewritten({"reportshop/till.py": content})
    sources = read_sources(file, audit_package(file))
    assert "not source text" in sources.left_out["reportshop.till"]
    assert "reportshop" in sources.texts


def test_read_sources_rejects_damaged_package(package, tmp_path):
    audit = audit_package(package)
    damaged = tmp_path / "damaged.modpack"
    damaged.write_bytes(package.read_bytes()[:-30])
    with pytest.raises(ArchiveError):
        read_sources(damaged, audit)


def test_packed_text_is_smaller_and_unpacks():
    text = "import os  # \u00e9\n" * 100
    assert unpacked(packed(text)) == text
    assert len(packed(text)) < len(text) / 5
