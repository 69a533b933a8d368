"""Packaged code with TorchScript, torch.compile, torch.export, and torch.save."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import modpack

NET = {
    "nets/__init__.py": "from .model import Net",
    "nets/model.py": """
    from __future__ import annotations
    import dataclasses
    import torch
    from torch import nn
    import torch.nn.functional as F
    from . import scale
    import nets.scale as absolute_scale

    @dataclasses.dataclass
    class Config:
        width: int = 4
        factor: float = 2.0

    class Net(nn.Module):
        def __init__(self, config: Config = Config()):
            super().__init__()
            torch.manual_seed(0)
            self.config = config
            self.layer = nn.Linear(4, config.width)

        def forward(self, x):
            return F.relu(self.layer(x)) * scale.FACTOR + absolute_scale.shift(x).sum()

    class LocalNet(Net):
        def forward(self, x):
            import nets.deep.more
            import nets.deep.more as more
            from nets.scale import shift
            from nets import deep
            import math
            y = self.layer(x) * nets.deep.more.FACTOR + more.FACTOR
            return shift(y) * deep.SIGN + math.pi
    """,
    "nets/scale.py": "FACTOR = 3\ndef shift(x):\n    return x + 1\n",
    "nets/deep/__init__.py": "SIGN = -1",
    "nets/deep/more.py": "FACTOR = 5.0",
}
X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def nets(packaged):
    return packaged(NET).import_module("nets.model")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_packaged_module_can_be_scripted(packaged):
    importer = packaged(
        {
            "scripted/__init__.py": "",
            "scripted/net.py": """
            from typing import List, Optional
            import torch
            from torch import nn
            from scripted.ops import double
            from . import ops

            class Net(nn.Module):
                names: List[str]
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(4, 2)
                    self.names = ["a"]

                def forward(self, x, bias: Optional[torch.Tensor] = None):
                    y = double(self.layer(x)) + ops.triple(x).sum()
                    if bias is not None:
                        y = y + bias
                    return y

            def function(x, times: int):
                for _ in range(times):
                    x = double(x)
                return x
            """,
            "scripted/ops.py": """
            def double(x):
                return x * 2

            def triple(x):
                return x * 3
            """,
        }
    )
    net = importer.import_module("scripted.net")
    model = net.Net()
    assert torch.equal(torch.jit.script(model)(X), model(X))
    assert torch.equal(torch.jit.script(net.function)(X, 3), X * 8)
    assert torch.equal(torch.jit.trace(model, X)(X), model(X))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["Net", "LocalNet"])
def test_packaged_model_compiles_into_one_graph(nets, backend, name):
    model = getattr(nets, name)()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.equal(compiled(X), model(X))


def test_compiled_model_uses_packaged_modules(packaged, project):
    host = {name: text.replace("5.0", "7.0").replace("= 3", "= 30") for name, text in NET.items()}
    project(host)
    import nets.model as of_host

    model = packaged(NET).import_module("nets.model").LocalNet()
    expected = model(X)
    assert not torch.equal(expected, of_host.LocalNet()(X))
    assert torch.equal(torch.compile(model, backend="eager")(X), expected)


def test_compiled_models_of_two_versions_stay_separate(packaged):
    newer = {name: text.replace("5.0", "7.0") for name, text in NET.items()}
    models = [packaged(files).import_module("nets.model").LocalNet() for files in (NET, newer)]
    eager = [model(X) for model in models]
    compiled = [torch.compile(model, backend="eager", fullgraph=True)(X) for model in models]
    assert not torch.equal(*eager)
    assert all(map(torch.equal, eager, compiled))


def test_compiled_model_can_be_trained(nets):
    model = nets.LocalNet()
    torch.compile(model, backend="aot_eager", fullgraph=True)(X).sum().backward()
    gradient = model.layer.weight.grad.clone()
    model.zero_grad()
    model(X).sum().backward()
    assert torch.allclose(model.layer.weight.grad, gradient)


def test_packaged_model_can_be_exported(nets):
    model = nets.LocalNet()
    assert torch.equal(torch.export.export(model, (X,)).module()(X), model(X))
    assert torch.equal(torch.fx.symbolic_trace(nets.Net())(X), nets.Net()(X))


def test_loaded_model_can_be_saved_and_loaded_by_torch(nets):
    buffer = io.BytesIO()
    model = nets.Net()
    torch.save(model, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert type(again) is nets.Net
    assert torch.equal(again(X), model(X))


def test_checkpoint_of_loaded_model_loads_while_package_is_open(packaged):
    importer = packaged(NET)
    model = importer.import_module("nets.model").Net()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    importer.close()
    buffer.seek(0)
    with pytest.raises(ModuleNotFoundError):
        torch.load(buffer, weights_only=False)
    buffer.seek(0)
    with modpack.PackageImporter(importer.filename):  # its namespace has the same name again
        assert torch.equal(torch.load(buffer, weights_only=False)(X), model(X))


def test_loaded_model_can_be_deep_copied(packaged):
    model = packaged(NET).import_module("nets.model").Net()
    copied = copy.deepcopy(model)
    assert type(copied) is type(model)
    assert copied.config == model.config and copied.config is not model.config
    with torch.no_grad():
        copied.layer.weight.zero_()
    assert model.layer.weight.abs().sum() > 0


def test_packaged_autograd_functions_and_tensor_types_work(packaged):
    importer = packaged(
        {
            "special.py": """
            import torch

            class Double(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x * 2
                @staticmethod
                def backward(ctx, grad):
                    return grad * 10

            class Named(torch.Tensor):
                @property
                def title(self):
                    return "named"
            """
        }
    )
    special = importer.import_module("special")
    x = torch.ones(2, requires_grad=True)
    special.Double.apply(x).sum().backward()
    assert x.grad.tolist() == [10.0, 10.0]
    named = torch.ones(2).as_subclass(special.Named)
    assert (named + 1).title == "named"


def test_data_loader_workers_use_packaged_data_sets(packaged):
    importer = packaged(
        {
            "data/__init__.py": "",
            "data/sets.py": """
            import torch
            from torch.utils.data import Dataset

            class Squares(Dataset):
                def __len__(self):
                    return 6
                def __getitem__(self, i):
                    from data.math import square
                    return torch.tensor(square(i))

            def collate(items):
                import data.math
                return torch.stack(items) + data.math.OFFSET
            """,
            "data/math.py": "OFFSET = 1\ndef square(i):\n    return i * i\n",
        }
    )
    sets = importer.import_module("data.sets")
    loader = torch.utils.data.DataLoader(
        sets.Squares(),
        batch_size=3,
        num_workers=1,
        collate_fn=sets.collate,
        multiprocessing_context="fork",
    )
    assert [batch.tolist() for batch in loader] == [[1, 2, 5], [10, 17, 26]]


def test_script_module_is_saved_with_eager_objects(tmp_path):
    scripted = torch.jit.script(torch.nn.Linear(4, 2))
    with modpack.PackageExporter(tmp_path / "s.pt") as exporter:
        exporter.save_pickle("m", "s.pkl", {"again": [scripted, scripted], "x": X})
    for source in (tmp_path / "s.pt", io.BytesIO((tmp_path / "s.pt").read_bytes())):
        loaded = modpack.load(source)
        assert torch.equal(loaded["again"][0](loaded["x"]), scripted(X))
        assert loaded["again"][0] is loaded["again"][1]
    on_cpu = modpack.load(tmp_path / "s.pt", map_location="cpu")
    assert on_cpu["again"][0].weight.device.type == "cpu"
