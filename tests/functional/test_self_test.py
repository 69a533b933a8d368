"""Self-tests of packages in an interpreter that cannot see their contents."""

from __future__ import annotations

import json
import logging
import random
import sys

import pytest
import torch
from torch import nn

import modpack
from modpack.archive.reader import open_archive
from modpack.errors import ExampleError, ModpackError, ModpackWarning, SelfTestError
from modpack.report.package_info import package_facts
from modpack.writing.writer import ArchiveWriter
from tests.warm_python import run_python

ONE = torch.ones(1, 3)


def net(forward, more="", init="", name=""):
    """A library ``shop`` with a model with the given ``forward`` and other code.

    The model has a ``layer``, and a ``name`` that no source contains.
    """
    init = f"self.layer = nn.Linear(3, 3)\nself.name = {name!r}\n{init}"
    body = "\n".join(f"        {line}" for line in forward.splitlines())
    start = "\n".join(f"        {line}" for line in init.splitlines())
    source = (
        f"import importlib, sys\nimport torch\nfrom torch import nn\n\n{more}\n\n"
        f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{start}\n"
        f"    def forward(self, x):\n{body}\n"
    )
    return {"shop/__init__.py": "", "shop/net.py": source}


@pytest.fixture
def make(project):
    """Write a project with a model and return a live one."""

    def build(files):
        project(files)
        from shop.net import Net

        torch.manual_seed(0)
        return Net().eval()

    return build


@pytest.fixture
def target(tmp_path):
    return tmp_path / "net.modpack"


def self_test_of(path):
    facts = package_facts(path)
    assert facts.self_test is not None
    return facts.self_test


def test_self_contained_package_passes(make, target):
    model = make(net("return self.layer(x)"))
    plan = modpack.save(model, target, example_inputs=(ONE,))
    self_test = self_test_of(target)
    assert self_test.passed and self_test.deterministic
    assert (self_test.namespace, self_test.rounds, self_test.additions) == ("private", 1, ())
    assert self_test.hidden == ("shop",)
    assert self_test.torch == str(torch.__version__)
    assert plan.modules(modpack.Action.INTERN) == ["shop", "shop.net"]


def test_save_without_example_inputs_runs_no_self_test(make, target):
    modpack.save(make(net("return self.layer(x)")), target)
    assert package_facts(target).self_test is None


def test_no_self_test_leaves_neither_inputs_nor_a_record(make, target):
    model = make(net("raise ValueError('never called')"))
    modpack.save(model, target, example_inputs=(ONE,), self_test=False)
    with open_archive(target) as archive:
        assert not [name for name in archive.names() if "self_test" in name]


def test_module_with_computed_name_is_added(make, target, clean_python):
    model = make(
        {
            **net(
                "return importlib.import_module('shop.plugins.' + self.name).f(self.layer(x))",
                name="double",
            ),
            "shop/plugins/__init__.py": "",
            "shop/plugins/double.py": "from .tools import two\ndef f(x): return two * x\n",
            "shop/plugins/tools.py": "two = 2\n",
            "shop/plugins/unused.py": "",
        }
    )
    plan = modpack.save(model, target, example_inputs=(ONE,))
    added = {(each.kind, each.name, each.by) for each in self_test_of(target).additions}
    assert ("intern", "shop.plugins.double", "shop.net") in added
    assert "shop.plugins.tools" in plan.modules(modpack.Action.INTERN)
    assert "shop.plugins.unused" not in plan.modules(modpack.Action.INTERN)
    needed = plan.graph.edges_between("shop.net", "shop.plugins.double")
    assert [edge.kind.value for edge in needed] == ["self-test"]
    out = clean_python(
        "import modpack, torch; print(modpack.load(path)(torch.ones(1, 3)).tolist())", path=target
    ).stdout
    assert json.loads(out) == model(ONE).tolist()


def test_module_behind_guarded_import_is_added(make, target):
    forward = """\
try:
    factor = importlib.import_module("shop." + self.name).value
except ImportError:
    factor = 1
return factor * self.layer(x)"""
    model = make({**net(forward, name="factor"), "shop/factor.py": "value = 3\n"})
    modpack.save(model, target, example_inputs=(ONE,))
    assert [each.name for each in self_test_of(target).additions] == ["shop.factor"]


def test_another_local_library_is_added(make, target):
    model = make(
        {
            **net("return importlib.import_module(self.name).f(self.layer(x))", name="stockroom"),
            "stockroom.py": "def f(x): return x + 1\n",
        }
    )
    modpack.save(model, target, example_inputs=(ONE,))
    assert [each.name for each in self_test_of(target).additions] == ["stockroom"]


def test_installed_library_is_declared_extern(make, target):
    model = make(
        net("importlib.import_module(self.name).style('x')\nreturn self.layer(x)", name="click")
    )
    plan = modpack.save(model, target, example_inputs=(ONE,))
    assert [(each.kind, each.name) for each in self_test_of(target).additions] == [
        ("extern", "click")
    ]
    assert "click" in plan.modules(modpack.Action.EXTERN)


def test_requested_metadata_is_added(make, target):
    forward = """\
from importlib.metadata import version
return self.layer(x) + len(version(self.name))"""
    model = make(net(forward, name="iniconfig"))
    plan = modpack.save(model, target, example_inputs=(ONE,))
    assert [(e.kind, e.name) for e in self_test_of(target).additions] == [("metadata", "iniconfig")]
    assert [each.name for each in plan.distributions] == ["iniconfig"]


def test_file_with_computed_name_is_added(make, target, clean_python):
    forward = """\
import pathlib
text = (pathlib.Path(__file__).parent / "tables" / self.name).read_text()
return self.layer(x) * float(text)"""
    model = make({**net(forward, name="ofday.txt"), "shop/tables/ofday.txt": "2.5"})
    modpack.save(model, target, example_inputs=(ONE,))
    assert self_test_of(target).passed
    with open_archive(target) as archive:
        assert archive.read("shop/tables/ofday.txt") == b"2.5"


def test_probed_and_listed_resources_are_added(make, target):
    forward = """\
import pkgutil
import shop.parts
found = [name for _, name, _ in pkgutil.iter_modules(shop.parts.__path__)]
if not found:
    raise LookupError("no parts")
for name in found:
    x = importlib.import_module("shop.parts." + name).f(x)
return self.layer(x)"""
    model = make(
        {
            **net(forward),
            "shop/parts/__init__.py": "",
            "shop/parts/one.py": "def f(x): return x + 1\n",
            "shop/parts/two.py": "def f(x): return x * 2\n",
        }
    )
    modpack.save(model, target, example_inputs=(ONE,))
    with open_archive(target) as archive:
        assert {"shop/parts/one.py", "shop/parts/two.py"} <= set(archive.names())


def test_tests_for_resources_are_answered_in_one_run(make, target):
    step = """
import importlib, importlib.util
def f(x):
    name = "".join(["shop.step", "{}"])
    if importlib.util.find_spec(name) is None:
        raise RuntimeError("no module")
    return importlib.import_module(name).f(x)
"""
    files = net("return importlib.import_module('shop.' + self.name).f(x)", name="step0")
    files.update({f"shop/step{number}.py": step.format(number + 1) for number in range(3)})
    model = make({**files, "shop/step3.py": "def f(x): return x"})
    modpack.save(model, target, example_inputs=(ONE,))
    added = {each.name for each in self_test_of(target).additions}
    assert added == {"shop.step0", "shop.step1", "shop.step2", "shop.step3"}
    # One run fails, two run with requests (of uses, then also of tests), and the last one decides.
    assert self_test_of(target).rounds == 4


def test_files_of_a_requested_module_come_with_it(make, target):
    reader = """
import os
FILE = os.path.join(os.path.dirname(__file__), "table.txt")
def f(x): return x if os.path.exists(FILE) else None
def read(): return open(FILE).read()
"""
    files = net(
        "return self.layer(importlib.import_module('shop.' + self.name).f(x))", name="reader"
    )
    model = make({**files, "shop/reader.py": reader, "shop/table.txt": "1"})
    modpack.save(model, target, example_inputs=(ONE,))
    assert [each.name for each in self_test_of(target).additions] == ["shop.reader"]
    assert self_test_of(target).rounds == 3


def test_classes_of_inputs_and_outputs_are_included(make, target):
    more = """\
from dataclasses import dataclass
@dataclass
class Batch:
    x: torch.Tensor
class Answer:
    def __init__(self, y): self.y, self.kind = y, type(self)"""
    model = make(net("return Answer(self.layer(x.x))", more=more))
    from shop.net import Batch

    modpack.save(model, target, example_inputs=Batch(ONE))
    assert self_test_of(target).passed


@pytest.mark.parametrize(
    ("inputs", "kwargs"),
    [((ONE,), {"scale": 2.0}), ({"x": ONE, "scale": 2.0}, None), (None, {"x": ONE, "scale": 2.0})],
)
def test_inputs_are_passed_in_one_call(make, target, inputs, kwargs):
    files = net("return self.layer(x) * scale")
    files["shop/net.py"] = files["shop/net.py"].replace("(self, x)", "(self, x, scale=1.0)")
    make_it = make(files)
    modpack.save(make_it, target, example_inputs=inputs, example_kwargs=kwargs)
    with open_archive(target) as archive:
        output = json.loads(archive.read(".data/modpack/self_test/0/output.json"))
        record = output["leaves"][0]["tensor"]["record"]
        expected = (make_it.layer(ONE) * 2).detach().flatten()
        assert torch.equal(
            torch.frombuffer(bytearray(archive.read(record)), dtype=torch.float32), expected
        )


def test_random_model_is_compared_bit_by_bit(make, target):
    init = "self.layer = nn.Linear(3, 300)\nself.drop = nn.Dropout(0.5)"
    forward = "import random\nreturn self.drop(self.layer(x)) * random.random()"
    model = make(net(forward, init=init)).train()
    modpack.save(model, target, example_inputs=(ONE,))
    assert self_test_of(target).passed and self_test_of(target).deterministic


def test_nondeterministic_model_is_compared_by_structure(make, target):
    forward = "import os\nreturn self.layer(x) + int.from_bytes(os.urandom(2), 'big')"
    modpack.save(make(net(forward)), target, example_inputs=(ONE,))
    self_test = self_test_of(target)
    assert self_test.passed and not self_test.deterministic
    assert modpack.self_test(target).passed


def test_self_test_uses_modes_of_the_live_run(make, target):
    forward = "return self.layer(x), torch.is_grad_enabled(), torch.get_default_dtype()"
    with torch.inference_mode():
        modpack.save(make(net(forward)), target, example_inputs=(ONE,))
    assert self_test_of(target).passed


def test_loaded_model_is_reexported_with_self_test(make, target, tmp_path):
    model = make(net("return {'y': self.layer(x), 'made by': repr(type(self))}"))
    modpack.save(model, tmp_path / "first.modpack", self_test=False)
    loaded = modpack.load(tmp_path / "first.modpack")
    importers = [modpack.importer_of(loaded), modpack.sys_importer]
    modpack.save(loaded, target, importer=importers, example_inputs=(ONE,))
    assert self_test_of(target).passed and self_test_of(target).hidden == ("shop",)


def test_code_found_by_name_needs_process_namespace(make, target, clean_python):
    forward = "import pydoc\nreturn pydoc.locate('shop.net.scale')(self.layer(x))"
    model = make(net(forward, more="def scale(x): return x * 2"))
    modpack.save(model, target, example_inputs=(ONE,))
    self_test = self_test_of(target)
    assert self_test.passed and self_test.namespace == "process"
    assert "NoneType" in (self_test.private_failure or "")
    assert package_facts(target).namespace == "process"
    out = clean_python(
        """
        import modpack, torch
        model = modpack.load(path)
        print(type(model).__module__, model(torch.ones(1, 3)).tolist() == expected)
        importers = [modpack.importer_of(model), modpack.sys_importer]
        modpack.save(model, "again.modpack", importer=importers)
        print(modpack.PackageImporter("again.modpack"))
        """,
        path=target,
        expected=model(ONE).tolist(),
        check=False,
    )
    assert out.stdout.startswith("shop.net True\n")
    assert "shop.net" in out.stderr, "the saved copy asks for the same names, which are taken here"
    assert "NamespaceConflictError" in out.stderr
    assert modpack.self_test(target).passed


def test_extern_gets_interned_module_in_process_namespace(make, target, project):
    project({"helper.py": "def run(x):\n    import shop.net\n    return x\n"})
    model = make(net("import helper\nreturn helper.run(self.layer(x))"))
    modpack.save(model, target, example_inputs=(ONE,), extern="helper")
    self_test = self_test_of(target)
    assert (self_test.passed, self_test.namespace) == (True, "process")
    assert "No module named 'shop'" in (self_test.private_failure or "")


def test_failing_package_is_not_written(make, target):
    target.write_bytes(b"what was here before")
    forward = """\
if 'modpack' in sys.modules and not sys.argv[0]:
    raise RuntimeError('no till at ' + __name__)
return self.layer(x)"""
    with pytest.raises(SelfTestError, match=r"no till at shop\.net") as caught:
        modpack.save(make(net(forward)), target, example_inputs=(ONE,))
    assert any(line.startswith("at shop/net.py:1") for line in caught.value.details)
    assert caught.value.path == str(target)
    assert target.read_bytes() == b"what was here before"
    assert [path.name for path in target.parent.glob(".*")] == []


def test_differing_output_is_reported_with_path(make, target):
    forward = "y = self.layer(x)\ny[0, 1] += len(sys.argv[0]) > 0\nreturn {'scores': [y]}"
    with pytest.raises(SelfTestError, match="differs from the live one in 1 place") as caught:
        modpack.save(make(net(forward)), target, example_inputs=(ONE,))
    assert any(
        line.startswith("output['scores'][0]: 1 of 3 elements differ, the first at [0, 1]")
        for line in caught.value.details
    )


def test_changed_attributes_are_those_of_the_recorded_namespace(make, target):
    more = """
class Part:
    def __setstate__(self, state):
        vars(self).update(state)
        self.names.extend(["process"] * 2 if __name__ == "shop.net" else ["private"])
"""
    init = "self.names = ['live']\nself.part = Part()\nself.part.names = self.names"
    model = make(net("return self.layer(x) + len(sys.argv[0])", more, init))
    with pytest.warns(ModpackWarning, match=r"names: saved .*list of 1, loaded .*list of 2"):
        modpack.save(model, target, example_inputs=(ONE,), self_test="warn")
    assert self_test_of(target).namespace == "private"


def test_crashed_interpreter_is_reported(make, target):
    forward = "import os\nif not sys.argv[0]: print('bye', flush=True); os._exit(7)\nreturn x"
    with pytest.raises(SelfTestError, match="the interpreter exited with status 7") as caught:
        modpack.save(make(net(forward)), target, example_inputs=(ONE,))
    assert caught.value.log == "bye"


def test_self_test_hides_files_of_this_machine(make, target):
    forward = "return self.layer(x) + len(open(self.file).read())"
    init = "self.file = __file__"
    with pytest.raises(SelfTestError, match="FileNotFoundError") as caught:
        modpack.save(make(net(forward, init=init)), target, example_inputs=(ONE,))
    assert any("a file next to the original" in line for line in caught.value.details)


def test_package_that_fails_can_be_written_with_a_warning(make, target):
    forward = "if not sys.argv[0]: raise RuntimeError('no till')\nreturn self.layer(x)"
    with pytest.warns(ModpackWarning, match="no till"):
        modpack.save(make(net(forward)), target, example_inputs=(ONE,), self_test="warn")
    self_test = self_test_of(target)
    assert not self_test.passed and "no till" in (self_test.failure or "")
    outcome = modpack.self_test(target)
    assert not outcome.passed and "no till" in outcome.reason


def test_failing_live_model_raises_example_error(make, target):
    with pytest.raises(ExampleError, match="the model fails on the example inputs") as caught:
        modpack.save(make(net("return self.layer(x)")), target, example_inputs=(torch.ones(1, 4),))
    assert "in forward: return self.layer(x)" in caught.value.location
    assert caught.value.location in str(caught.value)
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"example_inputs": [ONE]}, "A list is ambiguous"),
        ({"example_inputs": (ONE,), "example_kwargs": 3}, "example_kwargs must be a mapping"),
        ({"self_test": 3}, "self_test must be True, False, 'warn', or None"),
    ],
)
def test_invalid_example_raises_type_error(target, arguments, message):
    with pytest.raises(TypeError, match=message):
        modpack.save(nn.Identity(), target, **arguments)


def test_object_that_cannot_be_called_is_a_type_error(target):
    with pytest.raises(TypeError, match="a dict is not callable"):
        modpack.save({"a": 1}, target, example_inputs=(ONE,))


def test_save_keeps_live_model_and_random_states(make, target):
    init = "self.norm = nn.BatchNorm1d(3)\nself.register_buffer('n', torch.zeros(1))"
    forward = """\
with torch.no_grad():
    self.layer.weight.data.mul_(2)
    self.n = self.n + 1
x.add_(1)
return self.norm(self.layer(x)) + torch.rand(1)"""
    model = make(net(forward, init=init)).train()
    counter, weight = model.n, model.layer.weight
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    given = torch.rand(4, 3)
    copy, states = given.clone(), (torch.get_rng_state(), random.getstate())
    modpack.save(model, target, example_inputs=(given,))
    assert model.n is counter and model.layer.weight is weight
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    assert torch.equal(given, copy)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.equal(modpack.load(target).norm.running_mean, before["norm.running_mean"])


def test_package_contains_model_from_before_the_run(make, target):
    model = make(
        net(
            "self.seen.append(1)\nreturn self.layer(x)",
            init="self.seen = []",
        )
    )
    modpack.save(model, target, example_inputs=(ONE,))
    assert model.seen == [] and modpack.load(target).seen == []


def test_storages_are_written_once_for_all_rounds(make, target, monkeypatch):
    written = []
    real = ArchiveWriter.write_storage

    def write_storage(self, name, data):
        written.append(name)
        real(self, name, data)

    monkeypatch.setattr(ArchiveWriter, "write_storage", write_storage)
    model = make(
        {
            **net(
                "return importlib.import_module('shop.' + self.name).f(self.layer(x))", name="more"
            ),
            "shop/more.py": "def f(x): return x\n",
        }
    )
    modpack.save(model, target, example_inputs=(ONE,))
    assert self_test_of(target).rounds == 3
    assert len(written) == len(set(written))


def test_package_in_buffer_is_self_tested(make, tmp_path):
    path = tmp_path / "net.modpack"
    with path.open("wb") as file:
        modpack.save(make(net("return self.layer(x)")), file, example_inputs=(ONE,))
    assert self_test_of(path).passed


def test_plan_does_not_run_the_self_test(make):
    model = make(net("raise ValueError('never called')"))
    with modpack.PackageExporter(None) as exporter:
        exporter.use_preset("pinned")
        exporter.save_model("model", "model.pkl", model, example_inputs=(ONE,))
        assert "shop.net" in exporter.interned_modules()


def test_torch_package_reads_a_self_tested_package(make, target):
    model = make(net("return self.layer(x)"))
    modpack.save(model, target, example_inputs=(ONE,))
    loaded = torch.package.PackageImporter(str(target)).load_pickle("__model__", "model.pkl")
    assert torch.equal(loaded(ONE), model(ONE))


def test_several_models_share_one_self_test(make, target):
    model = make(net("return self.layer(x)"))
    with modpack.PackageExporter(target) as exporter:
        exporter.use_preset("pinned")
        exporter.save_model("one", "model.pkl", model, example_inputs=(ONE,))
        exporter.save_model("two", "model.pkl", model, example_inputs=(ONE * 2,))
    self_test = self_test_of(target)
    assert [case.resource for case in self_test.cases] == [
        ("one", "model.pkl"),
        ("two", "model.pkl"),
    ]
    assert self_test.rounds == 1 and modpack.self_test(target).passed


def test_each_run_is_logged(make, target, caplog):
    with caplog.at_level(logging.INFO, "modpack"):
        modpack.save(make(net("return self.layer(x)")), target, example_inputs=(ONE,))
    assert "self-test 1 of" in caplog.text and "passed after" in caplog.text


def test_stored_self_test_runs_without_the_project(make, target, clean_python):
    modpack.save(make(net("return self.layer(x)")), target, example_inputs=(ONE,))
    out = clean_python(
        "import modpack; r = modpack.self_test(path); print(r.passed, r.recorded.namespace)",
        path=target,
    ).stdout
    assert out == "True private\n"


def test_package_without_a_self_test_cannot_be_self_tested(target):
    modpack.save(nn.Identity(), target)
    with pytest.raises(ModpackError, match="contains no self-test"):
        modpack.self_test(target)


def test_operators_declared_by_script_are_reported(make, target):
    library = torch.library.Library("testshop", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    more = """\
@torch.library.register_fake("testshop::twice")
def fake(x): return x
torch.library.impl("testshop::twice", "CPU")(lambda x: x * 2)"""
    model = make(net("return torch.ops.testshop.twice(self.layer(x))", more=more))
    with pytest.warns(ModpackWarning, match="Declare them before loading: testshop::twice"):
        modpack.save(model, target, example_inputs=(ONE,))
    assert self_test_of(target).operators == ("testshop::twice(Tensor x) -> Tensor",)
    assert modpack.self_test(target).passed
    assert "testshop" in sys.modules["torch"].ops.testshop.name or library


def test_operators_of_a_library_are_declared_together(make, target):
    library = torch.library.Library("testpair", "DEF")
    library.define("one(Tensor x) -> Tensor")
    library.define("two(Tensor x) -> Tensor")
    more = "\n".join(
        f'@torch.library.register_fake("testpair::{name}")\ndef {name}(x): return x'
        for name in ("one", "two")
    )
    with pytest.warns(ModpackWarning, match="testpair::one.*testpair::two"):
        modpack.save(make(net("return self.layer(x)", more=more)), target, example_inputs=(ONE,))
    assert self_test_of(target).rounds == 2
    assert library


def test_operators_that_the_package_declares_are_not_declared_for_it(make, target):
    script = torch.library.Library("testown", "FRAGMENT")
    script.define("given(Tensor x) -> Tensor")
    more = """\
library = torch.library.Library("testown", "FRAGMENT")
if "testown::early" not in torch.library._defs:
    library.define("early(Tensor x) -> Tensor")
torch.library.register_fake("testown::given")(lambda x: x)
if "testown::late" not in torch.library._defs:
    library.define("late(Tensor x) -> Tensor")
"""
    with pytest.warns(ModpackWarning, match="Declare them before loading: testown::given"):
        modpack.save(make(net("return self.layer(x)", more=more)), target, example_inputs=(ONE,))
    assert self_test_of(target).operators == ("testown::given(Tensor x) -> Tensor",)
    assert script


def test_missing_operators_are_reported_before_loading(make, target, clean_python):
    library = torch.library.Library("testlack", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    more = 'torch.library.impl("testlack::twice", "CPU")(lambda x: x * 2)'
    model = make(net("return torch.ops.testlack.twice(self.layer(x))", more=more))
    with pytest.warns(ModpackWarning, match="Declare them before loading: testlack::twice"):
        modpack.save(model, target, example_inputs=(ONE,))
    assert library
    clean_python(
        """
        import modpack, torch
        try:
            modpack.load(path)
        except modpack.errors.OperatorNotFoundError as error:
            assert error.schemas == ("testlack::twice(Tensor x) -> Tensor",)
        else:
            raise AssertionError
        torch.library.define("testlack::twice", "(Tensor x) -> Tensor")
        modpack.load(path)
        """,
        path=target,
    )


def run(arguments, folder):
    return run_python("-m", "modpack", *arguments, folder=folder)


def test_command_line_repeats_the_self_test(project, target):
    app = "import torch\nfrom shop.net import Net\nmodel = Net().eval()\n"
    inputs = "def inputs(): return {'x': torch.ones(1, 3)}\n"
    root = project({**net("return self.layer(x)"), "app.py": app + inputs})
    given = ["export", "app.py:model", "-o", target, "--example-inputs", "app.py:inputs"]
    exported = run([*given, "--json"], root)
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["package"]["self_test"]["passed"] is True
    repeated = run(["self-test", target, "--json"], root)
    assert (repeated.returncode, json.loads(repeated.stdout)["passed"]) == (0, True)


def test_command_line_exits_with_finding_on_failure(make, target):
    forward = "if not sys.argv[0]: raise RuntimeError('no till')\nreturn self.layer(x)"
    with pytest.warns(ModpackWarning, match="no till"):
        modpack.save(make(net(forward)), target, example_inputs=(ONE,), self_test="warn")
    repeated = run(["self-test", target], target.parent)
    assert repeated.returncode == 1
    assert repeated.stdout.startswith("failed: RuntimeError: no till\n  at shop/net.py:")


def test_command_line_reports_missing_self_test(target):
    modpack.save(nn.Identity(), target)
    repeated = run(["self-test", target], target.parent)
    assert repeated.returncode == 2
    assert "contains no self-test" in repeated.stderr


def test_model_with_special_tensors_is_self_tested(make, target):
    init = """\
self.scripted = torch.jit.script(nn.BatchNorm1d(3))
self.lazy, self.unused = nn.LazyLinear(3), nn.UninitializedParameter()
self.register_buffer("sparse", torch.eye(3).to_sparse())
self.register_buffer("rows", torch.eye(3).to_sparse_csr())
self.register_buffer("ragged", torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]))"""
    forward = "return self.scripted(self.layer(x)), self.sparse @ x.T, self.rows, self.ragged"
    modpack.save(make(net(forward, init=init)), target, example_inputs=(ONE,))
    assert self_test_of(target).passed and self_test_of(target).deterministic


def test_deep_import_chain_fits_in_the_self_test(project, target, clean_python):
    """The chain is 119 modules deep, a few frames short of Python's recursion limit."""
    chain = {f"link{n}.py": f"import link{n + 1}\n" for n in range(119)}
    files = {**net("return self.layer(x)", more="import link0"), **chain, "link119.py": ""}
    code = """
    import sys
    sys.path.insert(0, str(folder))
    import torch
    from shop.net import Net
    import modpack
    modpack.save(Net(), target, example_inputs=(torch.ones(1, 3),))
    """
    clean_python(code, folder=project(files), target=str(target))
    assert self_test_of(target).passed
    clean_python("import modpack; modpack.load(target)", target=str(target))


def test_examples_run_on_chosen_device(tmp_path):
    path = tmp_path / "net.modpack"
    model = torch.nn.Linear(1, 1)
    modpack.save(model, path, example_inputs=torch.ones(2, 1), self_test_device="cpu")
    again = modpack.self_test(path)
    assert again.passed
    assert (again.recorded.device, again.recorded.extent) == ("cpu", "within tolerances, on cpu")


@pytest.mark.parametrize(("device", "error"), [("gpu", ValueError), (0, TypeError)])
def test_unknown_device_is_rejected(device, error, tmp_path):
    with pytest.raises(error, match="self_test_device"):
        modpack.save(torch.nn.Linear(1, 1), tmp_path / "net.modpack", self_test_device=device)
    assert not (tmp_path / "net.modpack").exists()
