"""The sources in the HTML report."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import pytest

from modpack.errors import ArchiveError
from modpack.report.html_document import packed, read_sources
from modpack.report.package_info import package_facts


@pytest.fixture
def package(packaged) -> Path:
    files = {
        "shop/__init__.py": "total = 3\n",
        "shop/till.py": "from . import total\n" * 50,
        "shop/odd.py": "name = 'a\\u202e'  # \u202e\u00e9\n",
        "shop/latin.py": "# coding: latin-1\n",
    }
    return Path(packaged(files, dependencies=False).filename)


def test_read_sources_returns_interned_sources(package):
    sources = read_sources(package, package_facts(package).modules)
    assert sources.texts["shop"] == "total = 3\n"
    assert sources.texts["shop.till"].startswith("from . import total\n")
    assert sources.left_out == {}


def test_read_sources_escapes_misleading_characters(package):
    text = read_sources(package, package_facts(package).modules).texts["shop.odd"]
    assert "# \\u202e\u00e9\n" in text


def test_read_sources_omits_large_source(package):
    sources = read_sources(package, package_facts(package).modules, largest=100)
    assert set(sources.left_out) == {"shop.till"}
    assert "1.0 kB exceeds the limit" in sources.left_out["shop.till"]


def test_read_sources_limits_total_size(package):
    sources = read_sources(package, package_facts(package).modules, most=60)
    assert "shop.till" in sources.left_out
    assert sum(map(len, sources.texts.values())) <= 60


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"# coding: rot13\n", b"# coding: undefined\n", b"# coding: x\n"]
)
def test_read_sources_omits_undecodable_source(made, rewritten, content):
    file = rewritten({"reportshop/till.py": content})
    sources = read_sources(file, package_facts(file).modules)
    assert "not source text" in sources.left_out["reportshop.till"]
    assert "reportshop" in sources.texts


def test_read_sources_rejects_damaged_package(package, tmp_path):
    modules = package_facts(package).modules
    damaged = tmp_path / "damaged.modpack"
    damaged.write_bytes(package.read_bytes()[:-30])
    with pytest.raises(ArchiveError):
        read_sources(damaged, modules)


def test_packed_text_is_smaller_and_unpacks():
    text = "import os  # \u00e9\n" * 100
    unpacked = zlib.decompress(base64.b64decode(packed(text)), -zlib.MAX_WBITS)
    assert unpacked.decode() == text
    assert len(packed(text)) < len(text) / 5
