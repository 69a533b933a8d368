"""Reproducible archives of ScriptModules and exported programs."""

from __future__ import annotations

import io
import warnings
import zipfile
from typing import Any

import pytest
import torch
from torch import nn

from modpack.saving.torch_archives import program_bytes, script_bytes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Scale(nn.Module):
    def __init__(self, factor: float, size: int) -> None:
        super().__init__()
        self.names: dict[str, int] = {"a": size}
        self.words: list[str] = ["__torch__.Scale", "b"]
        self.factor = factor
        self.layer = nn.Linear(size, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factor


class Other(Scale):
    """A class with the same name as a part of another module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) - self.factor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Scale(2.0, 2), Scale(3.0, 2), Other(1.0, 2)
        self.mixed = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.ReLU())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.mixed:
            x = each(x)
        return self.third(self.second(self.first(x)))


def made(how: str) -> Any:
    torch.manual_seed(0)
    net = Net()
    return torch.jit.script(net) if how == "script" else torch.jit.trace(net, torch.ones(1, 2))


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="torch 2.6 numbers the classes")
@pytest.mark.parametrize("how", ["script", "trace"])
def test_script_bytes_are_independent_of_earlier_compilations(how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = [made(how) for _ in range(3)]
        contents = {script_bytes(each) for each in kept}
    assert len(contents) == 1


@pytest.mark.parametrize("how", ["script", "trace"])
def test_script_module_computes_same_after_loading(how):
    module, x = made(how), torch.tensor([[1.0, -2.0]])
    again = torch.jit.load(io.BytesIO(script_bytes(module)))
    assert torch.equal(again(x), module(x))


def test_script_module_keeps_strings_and_containers():
    again = torch.jit.load(io.BytesIO(script_bytes(made("script"))))
    assert again.first.names == {"a": 2}
    assert again.first.words == ["__torch__.Scale", "b"]


def test_script_functions_are_kept():
    function = torch.jit.trace(lambda x: x * 2 + 1, torch.ones(2))
    again = torch.jit.load(io.BytesIO(script_bytes(function)))
    assert again(torch.ones(3)).tolist() == [3, 3, 3]


def test_script_and_program_bytes_contain_no_folders():
    program = torch.export.export(Net(), (torch.ones(1, 2),))
    for content in (script_bytes(made("script")), program_bytes(program)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            named = [name for name in archive.namelist() if b"/torch/" in archive.read(name)]
            shown = b"".join(map(archive.read, archive.namelist()))
        assert __file__.encode() not in shown and torch.__file__.encode() not in shown, named


@pytest.mark.skipif(not hasattr(torch, "float8_e8m0fnu"), reason="torch 2.6 drops the lines")
def test_exported_program_keeps_source_lines():
    program = torch.export.export(Net(), (torch.ones(1, 2),))
    again = torch.export.load(io.BytesIO(program_bytes(program)))
    traces = [node.meta.get("stack_trace") or "" for node in again.graph.nodes]
    assert any('File "torch/nn/modules/linear.py", line ' in trace for trace in traces)
