"""Source locations relative to modules."""

from __future__ import annotations

import torch
from torch import fx, nn

from modpack.saving.torch_archives import portable_path, portable_trace, without_folders


def test_portable_path_starts_with_module():
    assert portable_path(torch.__file__) == "torch/__init__.py"
    assert portable_path(fx.graph.__file__) == "torch/fx/graph.py"


def test_portable_path_of_other_file_is_its_name():
    assert portable_path("/home/somebody/train.py") == "train.py"
    assert portable_path("<string>") == "<string>"


def test_portable_trace_keeps_line_numbers():
    trace = f'  File "{fx.graph.__file__}", line 3, in f\n    x = "File /a/b"\n'
    shown = '  File "torch/fx/graph.py", line 3, in f\n    x = "File /a/b"\n'
    assert portable_trace(trace) == shown


def test_without_folders_leaves_live_graph_unchanged():
    graph = fx.symbolic_trace(nn.Tanh())
    trace = f'File "{torch.__file__}", line 1, in g'
    next(iter(graph.graph.nodes)).meta["stack_trace"] = trace
    state = {"_graphmodule_graph_node_meta_stack_trace": {"x": trace}, "training": True}
    _, (shown, name) = without_folders((len, (state, "name")))
    assert shown == {
        "_graphmodule_graph_node_meta_stack_trace": {"x": 'File "torch/__init__.py", line 1, in g'},
        "training": True,
    }
    assert name == "name"
    assert state["_graphmodule_graph_node_meta_stack_trace"] == {"x": trace}
