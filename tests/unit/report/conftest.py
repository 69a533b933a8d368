"""Packages for the report tests, written by modpack's own exporter."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import modpack
from modpack import PackageExporter, Plan
from modpack.archive.reader import open_archive
from modpack.writing.writer import ArchiveWriter

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
    """A package, and its plan and project."""

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
    with pytest.warns(match="computed at run time"), PackageExporter(file) as exporter:
        exporter.mock("reportspy")
        exporter.use_preset("pinned")
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
    """Copy the package with other contents for some records, and valid digests."""

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


Forge = Callable[[Mapping[str, bytes | None]], Path]

VERIFY_SOURCES = {
    "verifyshop/__init__.py": "",
    "verifyshop/net.py": (
        "import torch\n"
        "import verifyspy\n"
        "import verifytools\n"
        "relu = lambda module, args, output: {**output, 'out': output['out'].relu()}\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return {'out': super().forward(x), 'words': verifytools.words()}\n"
    ),
    "verifyspy.py": "def watch(): pass\n",
    "verifytools/__init__.py": (
        "import pathlib\n"
        "def words():\n"
        "    return pathlib.Path(__file__).with_name('words.txt').read_text()\n"
    ),
    "verifytools/words.txt": "three words here\n",
    "verifytools-1.5.dist-info/METADATA": "Name: verifytools\nVersion: 1.5\n",
    "verifytools-1.5.dist-info/top_level.txt": "verifytools\n",
    "verifytools-1.5.dist-info/RECORD": (
        "verifytools/__init__.py,,\nverifytools/words.txt,,\n"
        "verifytools-1.5.dist-info/METADATA,,\nverifytools-1.5.dist-info/top_level.txt,,\n"
    ),
}


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package with hooks, an optimizer, a mock, data, metadata and a self-test."""
    project = tmp_path_factory.mktemp("verify-project")
    for name, text in VERIFY_SOURCES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    sys.path.insert(0, str(project))
    importlib.invalidate_caches()
    net = importlib.import_module("verifyshop.net")
    model = net.Net(4, 3)
    model.register_forward_hook(net.relu)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 4))["out"].sum().backward()
    optimizer.step()
    file = tmp_path_factory.mktemp("verify") / "good.modpack"
    modpack.save(
        model,
        file,
        mock="verifyspy",
        preset="hermetic",
        optimizer=optimizer,
        example_inputs=torch.ones(1, 4),
    )
    yield file
    sys.path.remove(str(project))
    for name in [name for name in sys.modules if name.startswith("verify")]:
        del sys.modules[name]


@pytest.fixture
def forge(good: Path, tmp_path: Path) -> Forge:
    """Copy the package with other contents, and a manifest that matches.

    ``forge({"byteorder": b"middle", ".data/0.storage": None})`` changes one record and leaves
    another one out; names that are not there yet are added.
    """

    def make(changes: Mapping[str, bytes | None]) -> Path:
        forged = tmp_path / "forged.modpack"
        with open_archive(good) as archive, ArchiveWriter(forged) as writer:
            names = [n for n in archive.names() if not n.startswith(".data/modpack/manifest.")]
            for name in dict.fromkeys([*names, *changes]):
                content = changes[name] if name in changes else archive.read(name)
                if content is not None:
                    writer.write(name, content)
            writer.commit()
        return forged

    return make


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Make a package: ``package("a", sources={...}, objects={"m/m.pkl": obj}, mock=[...])``."""

    def make(
        name: str,
        sources: Mapping[str, str] | None = None,
        objects: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
        mock: tuple[str, ...] = (),
        extern: tuple[str, ...] = (),
    ) -> Path:
        file = tmp_path / f"{name}.modpack"
        with PackageExporter(file) as exporter:
            exporter.mock(mock) if mock else None
            exporter.extern(extern) if extern else None
            exporter.intern("difflib_*.**")
            exporter.use_preset("pinned")
            for path, text in (sources or {}).items():
                is_package = path.endswith("/__init__.py")
                module = path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
                exporter.save_source_string(module, text, is_package)
            for record, obj in (objects or {}).items():
                folder, _, resource = record.rpartition("/")
                exporter.save_pickle(folder.replace("/", "."), resource, obj)
            for record, text in (texts or {}).items():
                folder, _, resource = record.rpartition("/")
                exporter.save_text(folder, resource, text)
        return file

    yield make
    for module in [each for each in sys.modules if each.startswith("difflib_shop")]:
        del sys.modules[module]
    importlib.invalidate_caches()
