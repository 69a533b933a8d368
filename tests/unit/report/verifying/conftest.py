"""A package with everything that a package can have, and forgeries of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

import modpack
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter

Forge = Callable[[Mapping[str, bytes | None]], Path]

SOURCES = {
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
    """A package with hooks, an optimizer, a stand-in, data, metadata and a trial."""
    project = tmp_path_factory.mktemp("verify-project")
    for name, text in SOURCES.items():
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
        policy="hermetic",
        optimizer=optimizer,
        example_inputs=torch.ones(1, 4),
    )
    yield file
    sys.path.remove(str(project))
    for name in [name for name in sys.modules if name.startswith("verify")]:
        del sys.modules[name]


@pytest.fixture
def forge(good: Path, tmp_path: Path) -> Forge:
    """Make the package again with other contents, and with a manifest that agrees.

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
