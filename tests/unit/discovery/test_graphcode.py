from __future__ import annotations

import pickle

import pytest
import torch

from modpack.discovery.graphcode import odd_part
from modpack.discovery.pickles import FlawKind, scan_pickle


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x, scale=1.0):
        shape = x.shape[0]
        y = torch.relu(self.layer(x)) * scale + torch.nn.functional.gelu(x, approximate="none")
        return {"out": y.reshape(shape, -1).sum(dim=(0, 1)), "all": [y, x[..., 1:], -y]}


def test_what_torch_generates_is_a_graph():
    data = pickle.dumps(torch.fx.symbolic_trace(Net()))
    assert FlawKind.CODE not in [flaw.kind for flaw in scan_pickle(data).flaws]


@pytest.mark.parametrize(
    "body",
    [
        "return torch.load(x)",
        "return torch.hub.load(x)",
        "return torch.ops.load_library(x)",
        "return x.__class__",
        "return getattr(x, '__class__')",
        "return getattr(x, y)",
        "get = getattr; return get(x, '__class__')",
        "return eval(x)",
        "return (lambda: x)()",
        "return [y for y in x]",
        "import os; return os",
        "t = torch; return t.hub",
        "torch = x; return torch.relu(x)",
        "return torch.Tensor.__init__.__globals__",
        "return f'{x}'",
        "global x; return x",
        "with x: return x",
    ],
)
def test_anything_else_is_odd(body):
    assert odd_part("import torch", f"def forward(self, x, y):\n    {body}") is not None


@pytest.mark.parametrize(
    "method", ["copy_", "repeat", "uniform_", "to_dense", "masked_fill_", "type"]
)
def test_methods_of_tensors_are_a_part_of_graphs(method):
    code = f"def forward(self, x, y):\n    made = x.{method}(y)\n    return made.{method}(x)"
    assert odd_part("import torch", code) is None


@pytest.mark.parametrize("method", ["tofile", "system", "numpy", "share_memory_", "apply_", "map_"])
def test_methods_that_do_more_than_compute_are_odd(method):
    assert odd_part("import torch", f"def forward(self, x):\n    return x.{method}(x)") is not None


def test_code_around_the_function_is_odd():
    forward = "def forward(self, x):\n    return x"
    assert odd_part("import torch\nfrom math import inf", forward) is None
    assert odd_part("import os", forward) == "import os"
    assert odd_part("from builtins import getattr as relu", forward) is not None
    assert odd_part("from operator import attrgetter as a", forward) is not None
    assert odd_part("from torch import os as o", forward) is not None
    assert odd_part("", f"{forward}\nforward(1)") == "something besides one function"
    assert odd_part("", f"@print\n{forward}") == "something besides one function"
    assert odd_part("", "def forward(self, x=open('a')):\n    return x") == "open"
    assert odd_part("", "def") is not None


def test_code_that_the_pickle_hides_is_a_flaw():
    class Made:
        def __init__(self, body, imports="import torch"):
            self.parts = body, imports

        def __reduce__(self):
            return torch.fx.graph_module.reduce_graph_module, self.parts

    code = "def forward(self, x):\n    return x"
    fine = {"_code": code}
    twice = [("_code", code), ("_code", "import os")]
    for body, is_fine in ((fine, True), ({}, False), ({"_code": None}, False), (twice, False)):
        scan = scan_pickle(pickle.dumps(Made(body)))
        assert (FlawKind.CODE not in [flaw.kind for flaw in scan.flaws]) == is_fine
