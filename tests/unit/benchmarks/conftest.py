"""What tests of the benchmarks share."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "benchmarks" / "peers"
TOOLS = ROOT / "tools"


@pytest.fixture
def tool(monkeypatch):
    """Import a module of the benchmark by its name, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(PEERS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(PEERS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def marks():
    """The module that replaces generated parts of pages."""
    spec = importlib.util.spec_from_file_location("marks", TOOLS / "marks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
