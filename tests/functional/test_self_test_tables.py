"""Tables that constructors fill and that loading leaves empty."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from click.testing import CliRunner

import modpack
from modpack.cli import cli
from modpack.errors import ModpackWarning, SelfTestError
from modpack.report.package_info import package_facts

LIBRARY = """
import torch
from torch import nn

_RECORDED = {}
_IMPORTED = {}

class Layer(nn.Linear):
    pass

class Net(nn.Module):
    recorded = {"states": Layer}

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(2, 2), Layer(2, 2)])
        _RECORDED[KEY] = self.recorded

    def forward(self, x, states=False):
        kept = []
        targets = tuple(_RECORDED.get(KEY_HERE, {}).values())
        for layer in self.layers:
            x = layer(x)
            if states and isinstance(layer, targets):
                kept.append(x)
        return {"out": x, "states": kept or None}

_IMPORTED[Net] = True
"""
CLASS = LIBRARY.replace("KEY_HERE", "type(self)").replace("KEY", "type(self)")
TEXT = LIBRARY.replace("KEY_HERE", "str(type(self))").replace("KEY", "str(type(self))")
X = torch.ones(1, 2)


@pytest.fixture(params=[CLASS, TEXT], ids=["class", "text"])
def model(request, project):
    first = "from recorders.net import _RECORDED"  # the same table, listed once
    project({"recorders/__init__.py": first, "recorders/net.py": request.param})
    from recorders.net import Net

    return Net()


def test_differing_output_names_the_unfilled_table(model, tmp_path):
    with pytest.raises(SelfTestError) as caught:
        modpack.save(
            model, tmp_path / "net.modpack", example_inputs=(X,), example_kwargs={"states": True}
        )
    assert "output['states']: expected list of 2, found NoneType" in str(caught.value)
    assert "recorders.net._RECORDED names recorders.net.Net in this process" in str(caught.value)


def test_unfilled_table_is_a_warning_if_self_test_passes(model, tmp_path):
    path = tmp_path / "net.modpack"
    with pytest.warns(ModpackWarning, match="recorders.net._RECORDED names recorders.net.Net"):
        modpack.save(model, path, example_inputs=(X,))
    tables = [
        (t.module, t.name, t.kind)
        for t in package_facts(path).self_test.observations.unfilled_tables
    ]
    assert tables == [("recorders.net", "_RECORDED", "recorders.net.Net")]
    found = json.loads(CliRunner().invoke(cli, ["audit", str(path), "--json"]).output)["findings"]
    assert "self-test-unfilled-table" in [each["code"] for each in found]
    with pytest.warns(ModpackWarning, match=r"_RECORDED \(for recorders.net.Net\)"):
        loaded = modpack.load(path)
    assert loaded(X, states=True)["states"] is None
    type(loaded)()  # the suggested fix
    assert torch.equal(loaded(X, states=True)["states"][0], model(X, states=True)["states"][0])


def test_tables_filled_by_imports_are_not_reported(project, tmp_path):
    project({"shelves.py": CLASS.replace("_RECORDED[type(self)] = self.recorded", "pass")})
    from shelves import Net

    with warnings.catch_warnings():
        warnings.simplefilter("error", ModpackWarning)
        modpack.save(Net(), tmp_path / "net.modpack", example_inputs=(X,))


def test_plan_shows_structure_only_comparison(project, tmp_path):
    counting = """
    import itertools
    import torch
    numbers = itertools.count()
    class Net(torch.nn.Module):
        def forward(self, x):
            return x + next(numbers)
    """
    project({"counts.py": counting})
    from counts import Net

    model = Net()
    model(X)
    plan = modpack.save(model, tmp_path / "net.modpack", example_inputs=(X,))
    assert "passed, structure only" in str(plan)
    audit = CliRunner().invoke(cli, ["audit", str(tmp_path / "net.modpack")]).output
    assert "the self-test passed, structure only" in audit
