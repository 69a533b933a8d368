"""Packages that torch.package can load, with equal values."""

from __future__ import annotations

import pytest
import torch
import torch.package

import modpack

NET = {
    "plainnet/__init__.py": "from .net import Net",
    "plainnet/net.py": """
    import torch
    from torch import nn
    import heavydep
    from plainnet import scale

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("brain", torch.tensor([1.0, -2.0]).bfloat16())
            self.register_buffer("row", self.embed.weight.detach()[1])
            self.register_buffer("empty", torch.zeros(0, 3))

        def forward(self, tokens):
            return self.head(self.embed(tokens)) * scale.FACTOR

        def track(self):
            return heavydep.log(self)
    """,
    "plainnet/scale.py": "FACTOR = 2.5",
    "heavydep.py": "def log(x): return x",
}


def write(path, model, protocol):
    with modpack.PackageExporter(path) as exporter:
        exporter.intern("plainnet.**")
        exporter.mock("heavydep")
        exporter.save_pickle("model", "model.pkl", model, pickle_protocol=protocol)
        exporter.save_text("model.data", "words.txt", "größe\n水")
        exporter.save_binary("model.data", "bytes.bin", bytes(range(256)))


@pytest.mark.parametrize("protocol", [3, 4])
def test_torch_package_loads_modules_tensors_mocks_and_resources(project, tmp_path, protocol):
    project(NET)
    from plainnet import Net

    torch.manual_seed(0)
    model, tokens = Net(), torch.tensor([[0, 1], [3, 4]])
    write(tmp_path / "net.pt", model, protocol)

    importer = torch.package.PackageImporter(str(tmp_path / "net.pt"))
    loaded = importer.load_pickle("model", "model.pkl")
    assert type(loaded) is not Net
    assert torch.equal(loaded(tokens), model(tokens))
    assert all(map(torch.equal, model.state_dict().values(), loaded.state_dict().values()))
    assert [t.dtype for t in loaded.buffers()] == [t.dtype for t in model.buffers()]
    assert loaded.head.weight is loaded.embed.weight
    assert loaded.row.untyped_storage().data_ptr() == loaded.embed.weight.data_ptr()
    assert importer.load_text("model.data", "words.txt") == "größe\n水"
    assert importer.load_binary("model.data", "bytes.bin") == bytes(range(256))
    with pytest.raises(NotImplementedError, match="heavydep"):
        loaded.track()


def test_torch_package_loads_package_without_sources(project, tmp_path, clean_python):
    project(NET)
    from plainnet import Net

    model = Net()
    write(tmp_path / "net.pt", model, 3)
    torch.save(model(torch.tensor([1, 2])), tmp_path / "expected.pt")
    clean_python(
        """
        import importlib.util, torch, torch.package
        assert importlib.util.find_spec("plainnet") is None
        importer = torch.package.PackageImporter(str(folder / "net.pt"))
        model = importer.load_pickle("model", "model.pkl")
        assert torch.equal(model(torch.tensor([1, 2])), torch.load(folder / "expected.pt"))
        assert importer.python_version()
        """,
        folder=tmp_path,
    )


def test_torch_package_loads_an_fx_graph(project, tmp_path):
    project(
        {
            "fxsource.py": """
            import torch
            @torch.fx.wrap
            def halve(x):
                return x / 2
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(3, 2)
                def forward(self, x):
                    return halve(self.layer(x)).relu()
            """
        }
    )
    import fxsource

    graph = torch.fx.symbolic_trace(fxsource.Net())
    with modpack.PackageExporter(tmp_path / "fx.pt") as exporter:
        exporter.intern("fxsource")
        exporter.save_pickle("model", "graph.pkl", graph)
    x = torch.randn(4, 3)
    for kind in (torch.package.PackageImporter, modpack.PackageImporter):
        loaded = kind(str(tmp_path / "fx.pt")).load_pickle("model", "graph.pkl")
        assert torch.equal(loaded(x), graph(x))


def test_torch_package_loads_reexported_archive(tmp_path, project):
    project({"onceold.py": "class Item:\n    def __init__(self, n): self.n = n\n"})
    import onceold

    with torch.package.PackageExporter(str(tmp_path / "old.pt")) as exporter:
        exporter.intern("onceold")
        exporter.save_pickle("m", "item.pkl", onceold.Item(torch.arange(3)))
    old = modpack.PackageImporter(tmp_path / "old.pt")
    item = old.load_pickle("m", "item.pkl")
    with modpack.PackageExporter(
        tmp_path / "new.pt", importer=[old, modpack.sys_importer]
    ) as exporter:
        exporter.intern("onceold")
        exporter.save_pickle("m", "item.pkl", item)
    again = torch.package.PackageImporter(str(tmp_path / "new.pt")).load_pickle("m", "item.pkl")
    assert again.n.tolist() == [0, 1, 2]
