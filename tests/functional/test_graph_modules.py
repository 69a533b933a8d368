"""GraphModules with several Graphs, and of derived classes, as in libraries."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

import modpack

LIBRARY = """
import copy
import torch
from torch import fx, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.drop = nn.Dropout(0.5)
        self.exam = nn.Linear(3, 2)
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x):
        x = self.body(x) * self.scale
        return self.drop(x) if self.training else self.exam(x)


class Dual(fx.GraphModule):
    "One graph for training, one for evaluation, with its constructor's own signature."

    limit = 1

    def __init__(self, root, train_graph, eval_graph, name):
        nn.Module.__init__(self)
        type(self).__name__ = name
        self.train_graph, self.eval_graph = train_graph, eval_graph
        for key, module in root.named_children():
            self.add_module(key, module)
        for key, buffer in root.named_buffers(recurse=False):
            self.register_buffer(key, buffer)
        self.limit = 7
        self.graph = train_graph
        self._tracer_cls = None

    def train(self, mode=True):
        if mode != self.training:
            self.graph = self.train_graph if mode else self.eval_graph
        return super().train(mode)

    def greeting(self):
        return f"{type(self).__name__} up to {self.limit}"


def dual():
    net = Net()
    return Dual(net, fx.Tracer().trace(net.train()), fx.Tracer().trace(net.eval()), "Extractor")


class Named(fx.GraphModule):
    def greeting(self):
        return "hello"
"""


@pytest.fixture
def library(project):
    project({"graphs/__init__.py": LIBRARY})
    import graphs

    return graphs


@pytest.fixture
def again(tmp_path):
    def save_and_load(model, **options):
        modpack.save(model, tmp_path / "net.modpack", **options)
        return modpack.load(tmp_path / "net.modpack")

    return save_and_load


X = torch.ones(2, 3)


def test_module_with_two_graphs_switches_after_loading(library, again):
    model = library.dual()
    loaded = again(model.eval(), example_inputs=(X,))
    assert loaded.greeting() == "Extractor up to 7"
    assert torch.equal(loaded(X), model(X)) and loaded(X).shape == (2, 2)
    assert loaded.graph is loaded.eval_graph and loaded.graph.owning_module is loaded
    for module in (model.train(), loaded.train()):
        torch.manual_seed(0)
        module.out = module(X)
    assert torch.equal(loaded.out, model.out) and loaded.graph is loaded.train_graph
    loaded.train_graph.lint()
    assert list(loaded.state_dict()) == list(model.state_dict())


def test_save_does_not_change_live_graphs(library, again):
    model = library.dual()
    owners = [graph.owning_module for graph in (model.train_graph, model.eval_graph)]
    again(model)
    found = [graph.owning_module for graph in (model.train_graph, model.eval_graph)]
    assert [a is b for a, b in zip(owners, found, strict=True)] == [True, True]


def test_hooks_of_module_with_two_graphs_load_once(library, again):
    model = library.dual()
    model.register_forward_hook(lambda module, args, out: out + 1)
    model.exam.register_forward_hook(lambda module, args, out: out * 2)
    loaded = again(model.eval())
    assert torch.equal(loaded(X), model(X))
    assert len(loaded._forward_hooks) == len(loaded.exam._forward_hooks) == 1


def test_derived_graph_module_keeps_its_class(library, again):
    net = library.Net().eval()
    model = library.Named(net, fx.Tracer().trace(net))
    loaded = again(nn.Sequential(model))[0]
    assert loaded.greeting() == "hello" and torch.equal(loaded(X), model(X))
    loaded.recompile()
    assert torch.equal(loaded(X), model(X))


@pytest.mark.parametrize("in_list", [False, True])
def test_module_with_graphs_as_attributes_loads(again, in_list):
    model = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    before = fx.Tracer().trace(model)
    before.owning_module = model
    model.before = [before] if in_list else before
    loaded = again(model)
    graph = loaded.before[0] if in_list else loaded.before
    assert [node.op for node in graph.nodes] == [node.op for node in before.nodes]
    assert torch.equal(fx.GraphModule(loaded, graph)(X), model(X))


def test_module_with_two_graphs_loads_without_library(library, tmp_path, clean_python):
    model = library.dual().eval()
    modpack.save(model, tmp_path / "net.modpack")
    code = "import modpack, torch; print(modpack.load(path)(torch.ones(2, 3)).tolist())"
    out = clean_python(code, path=tmp_path / "net.modpack").stdout
    assert out.strip() == str(model(X).tolist())
