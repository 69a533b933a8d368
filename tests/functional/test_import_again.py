"""Re-export of loaded packages."""

from __future__ import annotations

import inspect

import pytest
import torch

import modpack

NET = {
    "gen/__init__.py": "",
    "gen/net.py": """
    from __future__ import annotations
    import dataclasses
    import torch
    from torch import nn
    from gen import ops

    VERSION = "one"

    @dataclasses.dataclass
    class Config:
        width: int = 3

    def hook(module, inputs, output):
        return output + 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = Config()
            self.layer = nn.Linear(2, self.config.width)
            self.layer.register_forward_hook(hook)
            self.function = ops.scale

        def forward(self, x):
            from gen.late import shift
            return shift(self.function(self.layer(x)))
    """,
    "gen/ops.py": "def scale(x): return x * 2",
    "gen/late.py": "def shift(x): return x + 10",
}
X = torch.ones(1, 2)


@pytest.fixture
def first(project, tmp_path):
    """A package of the first generation, and its model's output for X."""
    project(NET)
    from gen.net import Net

    model = Net()
    modpack.save(model, tmp_path / "first.pt")
    torch.save(model(X), tmp_path / "expected.pt")
    return tmp_path / "first.pt"


AGAIN = """
import inspect, modpack, torch
importer = modpack.PackageImporter(source)
model = importer.load_pickle(*importer.main_resource())
expected = torch.load(folder / "expected.pt")
assert torch.equal(model(torch.ones(1, 2)), expected)
assert importer.get_source("gen.net") == inspect.getsource(inspect.getmodule(type(model)))
modpack.save(model, target, importer=[importer, modpack.sys_importer], pickle_protocol=protocol)
"""


def test_loaded_model_is_reexported_twice(first, clean_python):
    folder = first.parent
    names = [first, folder / "second.pt", folder / "third.pt"]
    for source, target, protocol in zip(names, names[1:], (3, 4), strict=False):
        clean_python(AGAIN, source=source, target=target, folder=folder, protocol=protocol)
    last = modpack.PackageImporter(names[-1])
    with last:
        assert last.get_source("gen.net") == modpack.PackageImporter(first).get_source("gen.net")
        model = modpack.load(names[-1])
        assert torch.equal(model(X), torch.load(folder / "expected.pt"))
        assert model.config.width == 3


def test_reexport_uses_source_of_the_owning_importer(first, project, tmp_path):
    newer = project({**NET, "gen/net.py": NET["gen/net.py"].replace('"one"', '"two"')})
    import sys

    for name in [name for name in sys.modules if name == "gen" or name.startswith("gen.")]:
        del sys.modules[name]
    import gen.net as host

    assert host.VERSION == "two" and str(newer) in host.__file__
    with modpack.PackageImporter(first) as importer:
        model = importer.load_pickle(*importer.main_resource())
        modpack.save(model, tmp_path / "again.pt", importer=[importer, modpack.sys_importer])
        modpack.save(host.Net(), tmp_path / "host.pt", importer=[importer, modpack.sys_importer])
    for name, version in (("again.pt", "one"), ("host.pt", "two")):
        module = inspect.getmodule(type(modpack.load(tmp_path / name)))
        found = module.VERSION
        assert found == version


def test_model_is_reexported_without_importer(first, tmp_path):
    modpack.save(modpack.load(first), tmp_path / "again.pt")
    assert torch.equal(modpack.load(tmp_path / "again.pt")(X), torch.load(tmp_path / "expected.pt"))


def test_model_from_process_namespace_is_reexported(first, clean_python, tmp_path):
    clean_python(
        """
        import modpack, torch
        importer = modpack.PackageImporter(first, namespace="process")
        model = importer.load_pickle(*importer.main_resource())
        modpack.save(model, target, importer=[importer, modpack.sys_importer])
        """,
        first=first,
        target=tmp_path / "again.pt",
    )
    assert torch.equal(modpack.load(tmp_path / "again.pt")(X), torch.load(tmp_path / "expected.pt"))


def test_get_name_returns_packaged_names(first):
    with modpack.PackageImporter(first) as importer:
        net = importer.import_module("gen.net")
        assert importer.get_name(net.Net) == ("gen.net", "Net")
        assert importer.get_name(net.Net.forward) == ("gen.net", "Net.forward")
        assert importer.whichmodule(net.hook, "hook") == "gen.net"
        assert importer.get_name(torch.nn.Linear) == ("torch.nn.modules.linear", "Linear")
        for stranger in (pytest.fixture, lambda: 0):
            with pytest.raises(modpack.ModpackError):
                importer.get_name(stranger)
        with pytest.raises(modpack.ObjMismatchError):  # the project is importable, too
            modpack.sys_importer.get_name(net.Net)
