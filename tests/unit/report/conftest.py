"""A package that the report tests look at; made once, by modpack's own exporter."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from modpack import PackageExporter, Plan
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter

SOURCES = {
    "reportshop/__init__.py": "from .till import Till\n",
    "reportshop/till.py": (
        "import importlib\n"
        "import json\n"
        "import torch\n"
        "import numpy\n"
        "import reportspy\n"
        "try:\n"
        "    import reportabsent\n"
        "except ImportError:\n"
        "    pass\n"
        "class Till:\n"
        "    def __init__(self):\n"
        "        self.coins = torch.zeros(3)\n"
        "def plugin(name):\n"
        "    return importlib.import_module(name)\n"
    ),
    "reportspy.py": "def watch(): pass\n",
}


@dataclass(frozen=True)
class Made:
    """A package, and what it was made from."""

    file: Path
    plan: Plan
    project: Path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A package with all kinds of modules, a text resource, one object and one storage."""
    project = tmp_path_factory.mktemp("report-project")
    for name, text in SOURCES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    sys.path.insert(0, str(project))
    importlib.invalidate_caches()
    file = tmp_path_factory.mktemp("report") / "shop.modpack"
    with pytest.warns(match="known at run time"), PackageExporter(file) as exporter:
        exporter.mock("reportspy")
        exporter.use_policy("pinned")
        shop = importlib.import_module("reportshop")
        exporter.save_text("reportshop", "prices.txt", "tea 3")
        exporter.save_pickle("model", "till.pkl", shop.Till())
        plan = exporter.close()
    yield Made(file, plan, project)
    sys.path.remove(str(project))
    for name in [n for n in sys.modules if n.startswith("report")]:
        del sys.modules[name]


@pytest.fixture
def rewritten(made: Made, tmp_path: Path) -> Callable[[Mapping[str, bytes]], Path]:
    """A copy of the package with other contents for some records, its digests in order."""

    def write(changes: Mapping[str, bytes]) -> Path:
        copy = tmp_path / "changed.modpack"
        with open_archive(made.file) as archive, ArchiveWriter(copy) as writer:
            for name in archive.names():
                if name.startswith(".data/modpack/manifest."):
                    continue
                content = changes.get(name, archive.read(name))
                if name.endswith(".storage"):
                    writer.write_storage(name, memoryview(content))
                else:
                    writer.write(name, content)
            writer.commit()
        return copy

    return write
