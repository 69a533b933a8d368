"""Packages in torch.package: loaded with equal values, or refused with an error that helps."""

from __future__ import annotations

import functools
import os
import threading
import zipfile

import pytest
import torch
import torch.package

import modpack
from modpack.report.verify import verify_package

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


HOOKED = {
    "hookednet.py": """
    import torch

    def add_one(module, inputs, output):
        return output + 1

    def ignore(module, *others):
        pass

    class Counter:
        def __call__(self, module, inputs, output):
            return output + 100

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def add_ten(self, module, inputs, output):
            return output + 10

        def forward(self, x):
            return self.layer(x)
    """
}


def hooked_by_handle(net):
    net.handle = net.layer.register_forward_hook(imported("add_one"))


def imported(name):
    import hookednet

    return getattr(hookednet, name)


def as_graph_with_hook(net):
    graph = torch.fx.symbolic_trace(net)
    graph.register_forward_hook(imported("add_one"))
    return graph


REFUSED = {
    "bound method": lambda net: net.layer.register_forward_hook(net.add_ten),
    "callable object": lambda net: net.layer.register_forward_hook(imported("Counter")()),
    "lambda": lambda net: net.layer.register_forward_hook(lambda module, inputs, out: out * 2),
    "partial": lambda net: net.register_forward_hook(functools.partial(imported("add_one"))),
    "tensor": lambda net: net.layer.weight.register_hook(torch.neg),
    "load_state_dict": lambda net: net.register_load_state_dict_pre_hook(imported("ignore")),
    "handle": hooked_by_handle,
    "hook of an FX graph": as_graph_with_hook,
    "module as value": lambda net: setattr(net, "value", os),
    "lambda as value": lambda net: setattr(net, "value", lambda x: x),
    "lock": lambda net: setattr(net, "value", threading.Lock()),
    "parametrization": lambda net: torch.nn.utils.parametrizations.weight_norm(net.layer),
    "ScriptModule": torch.jit.script,
}
READABLE = {
    "importable": lambda net: net.layer.register_forward_hook(imported("add_one")),
    "with flags": lambda net: net.register_forward_hook(imported("add_one"), always_call=True),
    "torch's own": lambda net: torch.nn.utils.spectral_norm(net.layer),
    "FX graph": torch.fx.symbolic_trace,
}


def save_changed(path, change, **options):
    net = imported("Net")().eval()
    made = change(net)
    net = made if isinstance(made, torch.nn.Module) and made is not net.layer else net
    with modpack.PackageExporter(path) as exporter:
        exporter.intern("hookednet")
        exporter.extern("**")
        exporter.save_model("model", "model.pkl", net, **options)
    return net


@pytest.mark.parametrize("change", REFUSED.values(), ids=list(REFUSED))
def test_torch_package_refuses_what_it_would_lose(project, tmp_path, change):
    project(HOOKED)
    net, x = save_changed(tmp_path / "net.pt", change), torch.ones(1, 2)
    with pytest.raises(ImportError, match=r"load this package with modpack\.load"):
        torch.package.PackageImporter(str(tmp_path / "net.pt"))
    assert torch.equal(modpack.load(tmp_path / "net.pt")(x), net(x))


@pytest.mark.parametrize("change", READABLE.values(), ids=list(READABLE))
def test_torch_package_reads_what_it_can_restore(project, tmp_path, change):
    project(HOOKED)
    net, x = save_changed(tmp_path / "net.pt", change), torch.ones(1, 2)
    importer = torch.package.PackageImporter(str(tmp_path / "net.pt"))
    assert torch.equal(importer.load_pickle("model", "model.pkl")(x), net(x))


def test_torch_package_refuses_a_model_with_its_optimizer(project, tmp_path):
    project(HOOKED)
    net = imported("Net")()
    modpack.save(net, tmp_path / "net.pt", optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(ImportError, match=r"modpack\.load"):
        torch.package.PackageImporter(str(tmp_path / "net.pt"))


def test_torch_package_reads_a_model_saved_without_its_hooks(project, tmp_path):
    project(HOOKED)
    save_changed(tmp_path / "net.pt", REFUSED["lambda"], hooks=False)
    importer = torch.package.PackageImporter(str(tmp_path / "net.pt"))
    assert not importer.load_pickle("model", "model.pkl").layer._forward_hooks


@pytest.mark.parametrize(
    "code",
    [
        "import importlib\nWORDS = importlib.import_module('filenet.words').WORDS",
        "import pathlib\nWORDS = pathlib.Path(__file__).with_name('words.txt').read_text()",
    ],
)
def test_torch_package_refuses_code_that_it_runs_differently(project, tmp_path, code):
    files = {"filenet/words.py": "WORDS = 'a b'", "filenet/words.txt": "a b"}
    project({"filenet/__init__.py": code, **files})
    with modpack.PackageExporter(tmp_path / "words.pt") as exporter:
        exporter.intern("filenet.**")
        exporter.save_module("filenet")
    with pytest.raises(ImportError, match=r"modpack\.load"):
        torch.package.PackageImporter(str(tmp_path / "words.pt"))
    with modpack.PackageImporter(tmp_path / "words.pt") as importer:
        assert importer.import_module("filenet").WORDS == "a b"


def test_torch_package_refuses_the_unzipped_package(project, tmp_path):
    project(HOOKED)
    save_changed(tmp_path / "net.pt", REFUSED["lambda"])
    with zipfile.ZipFile(tmp_path / "net.pt") as file:
        file.extractall(tmp_path / "unzipped")
    folder = tmp_path / "unzipped" / "archive"
    with pytest.raises(ImportError, match=r"modpack\.load"):
        torch.package.PackageImporter(str(folder))
    modpack.load(folder)


def test_notice_for_torch_package_is_no_extern_module_and_no_resource(project, tmp_path):
    project(HOOKED)
    save_changed(tmp_path / "net.pt", REFUSED["lambda"])
    with modpack.PackageImporter(tmp_path / "net.pt") as importer:
        assert not [name for name in importer.extern_modules if "-" in name]
        assert "only" not in str(importer.file_structure(include="**/*.txt"))
    assert not verify_package(tmp_path / "net.pt").findings
