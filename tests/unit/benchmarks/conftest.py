"""What tests of the benchmarks share."""

import importlib
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"


@pytest.fixture
def tool(monkeypatch):
    """Import a module of the benchmark by its name, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(PEERS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(PEERS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
