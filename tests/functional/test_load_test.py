"""The load test at the end of a save: what was written loads, and is what was live."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch

import modpack
from modpack.errors import ModpackWarning, SelfTestError
from modpack.report.package_info import package_facts

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.names = ["a"]
        self.register_forward_hook(lambda module, args, output: output + 1)
    def forward(self, x):
        return self.first(x)
"""


@pytest.fixture(autouse=True)
def tested(monkeypatch):
    """Test every save, as modpack.save does by default."""
    monkeypatch.delenv("MODPACK_SELF_TEST")


@pytest.fixture
def net(project):
    """Return a function that builds a model of a class with more code."""

    def build(more: str = "") -> torch.nn.Module:
        project({"loadnet.py": NET + more})
        return importlib.import_module("loadnet").Net()

    return build


def self_test_of(path):
    return package_facts(path).self_test


def test_save_without_example_is_tested(net, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modpack.save(net(), tmp_path / "net.modpack")
    record = self_test_of(tmp_path / "net.modpack")
    assert (record.passed, record.cases, record.outcome) == (True, (), "passed, without examples")
    assert record.objects == (("__model__", "model.pkl"),)
    assert modpack.self_test(tmp_path / "net.modpack").passed


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise OSError('not here')", "OSError: not here"),
        ("self.first.weight.data.zero_()", "model.first.weight: saved .*, loaded"),
        ("self.first = torch.nn.Bilinear(2, 2, 2)", "model.first: saved .*Linear, loaded .*Bili"),
        ("del self.first", "model.first: saved .*, loaded nothing"),
        ("self.added = torch.nn.ReLU()", "model.added: saved nothing, loaded .*ReLU"),
        ("self.first.weight = torch.nn.Parameter(torch.ones(3))", "model.first.weight"),
        ("self.first.half()", "model.first.weight: saved .*float32.*, loaded .*float16"),
        ("self.first.requires_grad_(False)", "saved .*requires_grad.*, loaded"),
        ("self.register_buffer('extra', torch.ones(1))", "model.extra: saved nothing"),
    ],
)
def test_object_that_loads_as_another_is_not_written(net, tmp_path, code, expected):
    lines = ("    def __setstate__(self, state):", "super().__setstate__(state)", code)
    state = "\n        ".join(lines) + "\n"
    path = tmp_path / "net.modpack"
    path.write_bytes(b"before")
    with pytest.raises(SelfTestError, match=expected):
        modpack.save(net(state), path)
    assert path.read_bytes() == b"before"
    with pytest.warns(modpack.ModpackWarning, match=expected):
        modpack.save(net(state), path, self_test="warn")
    assert not self_test_of(path).passed
    modpack.save(net(state), path, self_test=False)
    assert self_test_of(path) is None


def test_attribute_that_loading_changes_is_a_warning(net, tmp_path):
    # a class that another class's state changes decides for itself only
    more = """
class Part:
    def __setstate__(self, state):
        vars(self).update(state)
        self.names.append("b")
"""
    model = net(more)
    model.part = importlib.import_module("loadnet").Part()
    model.part.names = model.names
    with pytest.warns(modpack.ModpackWarning, match=r"model.names: saved builtins.list of 1"):
        modpack.save(model, tmp_path / "net.modpack")
    record = self_test_of(tmp_path / "net.modpack")
    assert record.passed
    assert "model.names differs from that of the live object" in record.observations.warnings


def test_state_that_class_leaves_out_is_expected(net, tmp_path):
    more = """
    def __getstate__(self):
        return {**self.__dict__, "cache": None}
"""
    model = net(more)
    model.cache = {1: 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modpack.save(model, tmp_path / "net.modpack")


def test_hooks_that_are_left_out_are_expected(net, tmp_path):
    more = """
    def watch(self):
        seen = self.seen = [1]
        self.register_forward_hook(lambda module, args, output: seen.append(output))
"""
    model = net(more)
    model.watch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modpack.save(model, tmp_path / "net.modpack", hooks=False)
        modpack.save(model, tmp_path / "net.modpack", hooks=["forward/1"])


def test_exporter_tests_only_on_request(net, tmp_path):
    for self_test, expected in ((None, None), (False, None), (True, True)):
        options = {} if self_test is None else {"self_test": self_test}
        with modpack.PackageExporter(tmp_path / "net.modpack", **options) as exporter:
            exporter.use_preset("pinned")
            exporter.save_model("net", "model.pkl", net())
            exporter.save_pickle("net", "words.pkl", ["a"])
        record = self_test_of(tmp_path / "net.modpack")
        assert (record and record.passed) == expected
    assert record.objects == (("net", "model.pkl"), ("net", "words.pkl"))


@pytest.mark.parametrize(
    ("value", "plain", "with_example"), [("0", False, False), ("examples", False, True)]
)
def test_variable_sets_the_default(net, tmp_path, monkeypatch, value, plain, with_example):
    monkeypatch.setenv("MODPACK_SELF_TEST", value)
    path = tmp_path / "net.modpack"
    modpack.save(net(), path)
    assert (self_test_of(path) is not None) == plain
    modpack.save(net(), path, example_inputs=(torch.ones(1, 2),))
    assert (self_test_of(path) is not None) == with_example
    modpack.save(net(), path, self_test=True)
    assert self_test_of(path).passed


def test_code_can_ask_whether_a_self_test_imports_it(net, tmp_path, monkeypatch):
    more = "import os\nassert 'MODPACK_IN_SELF_TEST' not in os.environ, 'imported by the test'\n"
    with pytest.raises(SelfTestError, match="imported by the test"):
        modpack.save(net(more), tmp_path / "net.modpack")


LOOKS_UP = """
import importlib, sys
import torch
class Layer(torch.nn.Module):
    def METHOD
        package, _, rest = type(self).__module__.partition(".")
        if package != "lookups":
            raise TypeError("Could not locate class " + type(self).__name__)
        return RETURN
    def forward(self, x):
        return x
"""


@pytest.mark.parametrize(
    ("method", "returned"),
    [
        ("__deepcopy__(self, memo):", "Layer()"),
        ("__reduce__(self):", "(Layer, ())"),
    ],
)
def test_namespace_is_one_in_which_objects_can_be_copied(project, tmp_path, method, returned):
    code = LOOKS_UP.replace("METHOD", method).replace("RETURN", returned)
    project({"lookups/__init__.py": "", "lookups/layers.py": code})
    layer = importlib.import_module("lookups.layers").Layer()
    if method.startswith("__reduce__"):  # the private namespace cannot create it at all
        layer = torch.nn.Sequential(layer)
    modpack.save(layer, tmp_path / "net.modpack")
    record = self_test_of(tmp_path / "net.modpack")
    assert record.namespace == "process"
    assert "Could not locate class Layer" in record.private_failure


def test_namespace_stays_private_if_live_object_cannot_be_copied(project, tmp_path):
    code = LOOKS_UP.replace("METHOD", "__deepcopy__(self, memo):").replace('"lookups"', '"never"')
    project({"lookups/__init__.py": "", "lookups/layers.py": code.replace("RETURN", "0")})
    layer = importlib.import_module("lookups.layers").Layer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modpack.save(layer, tmp_path / "net.modpack")
    assert self_test_of(tmp_path / "net.modpack").namespace == "private"


OWN_ERROR = """
try:
    from chalk import width
except ImportError:
    raise RuntimeError("boards requires the optional part 'drawing'") from None
"""


@pytest.mark.parametrize(
    "boards", ["from chalk import width", "from chalk.sizes import width", OWN_ERROR]
)
def test_library_that_an_extern_module_imports_is_not_hidden(boards, installed, tmp_path):
    net = """
        import torch
        import boards
        import chalk
        class Net(torch.nn.Module):
            def forward(self, x):
                return x * boards.width * chalk.width
        """
    installed("chalk", {"chalk/__init__.py": "width = 2\n", "chalk/sizes.py": "width = 2\n"})
    installed("boards", {"boards/__init__.py": boards})
    installed("schools", {"schools/__init__.py": net})
    model = importlib.import_module("schools").Net()
    path = tmp_path / "net.modpack"
    modpack.save(model, path, preset="hermetic", extern="boards")
    record = self_test_of(path)
    assert record.passed and "chalk" not in record.hidden
    assert [each.distribution for each in record.observations.distributions] == ["chalk"]


def test_options_that_optimizers_complete_and_shared_tuples_are_not_reported(tmp_path):
    model = torch.nn.Linear(2, 2)
    model.sizes, model.shape = [(1, 2)], None
    model.shape = model.sizes[0]
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    del optimizer.defaults["differentiable"]
    for state in optimizer.state.values():
        state["step"] = int(state["step"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModpackWarning)
        modpack.save(model, tmp_path / "net.modpack", optimizer=optimizer, self_test=True)


def test_requirements_of_a_library_that_is_not_hidden_are_not_hidden(installed, tmp_path):
    installed("pigment", {"pigment.py": "hue = 1\n"})
    installed("chalk", {"chalk.py": "import pigment\nwidth = 2\n"}, requires=["pigment"])
    installed("boards", {"boards.py": "from chalk import width\n"})
    net = """
        import torch, boards, chalk, pigment
        class Net(torch.nn.Module):
            def forward(self, x):
                return x * boards.width * chalk.width * pigment.hue
        """
    installed("schools", {"schools.py": net})
    path = tmp_path / "net.modpack"
    modpack.save(importlib.import_module("schools").Net(), path, preset="hermetic", extern="boards")
    record = self_test_of(path)
    assert record.passed and record.hidden == ("schools",)
    assert record.rounds == 2
