"""The runtime loads packages without the layers that write them, and without other libraries."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import grimp
import pytest
import torch

import modpack
import modpack.hooks
from modpack.core.json_values import read_toml
from modpack.pickling.rebuild import DEFINED_IN

ROOT = Path(__file__).parents[2]


def _contract() -> dict[str, list[str]]:
    """Return the contract of the linter that names the layers of the runtime."""
    contracts = read_toml(ROOT / "pyproject.toml")["tool"]["importlinter"]["contracts"]
    return next(each for each in contracts if each["id"] == "runtime")


RUNTIME = tuple(_contract()["source_modules"])
FORBIDDEN = tuple(_contract()["forbidden_modules"])


def _is_in(module: str, layers: tuple[str, ...]) -> bool:
    return any(module == layer or module.startswith(f"{layer}.") for layer in layers)


def test_contract_lists_every_layer():
    folder = ROOT / "modpack"
    found = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/*.py")}
    found -= {"__init__", "_version"}
    listed = [*RUNTIME, *(each for each in FORBIDDEN if each.startswith("modpack."))]
    assert sorted(listed) == sorted(f"modpack.{each}" for each in found)


def test_import_closure_of_loading_is_the_runtime():
    # Without the cache, which misses a second change in the same second.
    options = {"include_external_packages": True, "exclude_type_checking_imports": True}
    graph = grimp.build_graph("modpack", cache_dir=None, **options)
    todo = deque(["modpack.importer", "modpack.api", "modpack.packages"])
    # These are imported by name: pickles and the face of hooks name them.
    todo += [*DEFINED_IN.values(), "modpack.predicting.predictor", "modpack.loading.weights"]
    todo += ["modpack.predicting.row_sources", "modpack.examples.recorded"]
    todo += [each for name, each in modpack.hooks._DEFINED_IN.items() if name != "capture"]
    closure: set[str] = set()
    while todo:
        module = todo.popleft()
        if module not in closure:
            closure.add(module)
            todo += graph.find_modules_directly_imported_by(module)
    own = {module for module in closure if module.startswith("modpack")}
    assert own - {"modpack._version"} == {module for module in own if _is_in(module, RUNTIME)}
    assert closure - own <= {"torch", *sys.stdlib_module_names}


ALONE = """
import importlib.abc, pickle, sys, warnings

LAYERS, LIBRARIES = {layers!r}, {libraries!r}


class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in LAYERS):
            raise AssertionError(f"the runtime imports {{name}}")
        if name.partition(".")[0] in LIBRARIES:  # torch may use some of them
            frame = sys._getframe(1)
            while "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            assert not frame.f_globals["__name__"].startswith("modpack"), name
        return None


sys.meta_path.insert(0, Blocked())
import torch
import modpack
from modpack import errors, services

services.installed = services.Services()  # as in a runtime without the other layers


def refused(kind, text, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as failure:
        assert text in str(failure), str(failure)
    else:
        raise AssertionError(f"{{function}} accepts {{arguments}} and {{options}}")


"""
BLOCK = tuple(each for each in FORBIDDEN if each.startswith("modpack."))
LIBRARIES = tuple(each for each in FORBIDDEN if not each.startswith("modpack."))


@pytest.fixture
def alone(tmp_path):
    """Run code in an interpreter in which the runtime can import only what it may."""

    def run(code: str) -> str:
        script = ALONE.format(layers=BLOCK, libraries=LIBRARIES) + code
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", script]
            if sys.version_info >= (3, 11)
            else [sys.executable, "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


NET = {
    "net/__init__.py": "",
    "net/model.py": """
        import torch
        import plotting
        from net import losses

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)
                self.seen = []

            def forward(self, x):
                return {"score": losses.scaled(self.layer(x))}

            def draw(self):
                return plotting.draw(self)
    """,
    "net/losses.py": "def scaled(x):\n    return 2 * x\n",
    "net/hooks.py": """
        calls = []

        def add(layer):
            calls = []
            layer.register_forward_hook(lambda module, args, output: calls.append(1) or output + 1)
            layer.weight.register_hook(lambda grad: 2 * grad)
    """,
    "net/objects.py": """
        import dataclasses
        import threading
        import typing
        import weakref
        from collections import deque

        import torch

        def make():
            @dataclasses.dataclass
            class Point:
                x: int = 1

            class Pair(typing.NamedTuple):
                left: int = 1

            point = Point()
            return {
                "point": point,
                "kinds": [Pair(2)],
                "weak": weakref.ref(point),
                "double": lambda value: 2 * value,
                "lock": threading.Lock(),
                "queue": deque([1], maxlen=3),
                "traced": torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)),
                "normed": torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)),
            }
    """,
    "plotting.py": "def draw(model):\n    print(model)\n",
}


@pytest.fixture
def net(project):
    project(NET)
    return importlib.import_module("net.model").Net().eval()


def test_runtime_loads_and_calls_a_model_with_hooks_and_mocks(net, alone, tmp_path):
    importlib.import_module("net.hooks").add(net.layer)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    modpack.save(
        net,
        tmp_path / "net.modpack",
        optimizer=optimizer,
        extern="torch.**",
        mock="plotting",
        example_inputs=(torch.ones(3, 2),),
        dynamic={"x": {0: "batch"}},
        self_test=True,
    )
    torch.save(net(torch.ones(3, 2))["score"].detach(), tmp_path / "expected.pt")
    alone("""
expected = torch.load("expected.pt")
policy = modpack.TrustPolicy(allow_code=True)
model, optimizer = modpack.load("net.modpack", with_optimizer=True, policy=policy)
assert torch.equal(model(torch.ones(3, 2))["score"], expected)
model(torch.ones(3, 2))["score"].sum().backward()
optimizer.step()
importer = modpack.importer_of(model)
assert importer.hook_specs("__model__", "model.pkl") and modpack.is_from_package(model)
(forward,) = [name for name in importer.hooks if "forward" in name]
before = len(importer.hook_state(forward)["calls"])
model(torch.ones(3, 2))
assert len(importer.hook_state(forward)["calls"]) == before + 1
refused(errors.ModpackError, "no hook named", importer.hook_state, "other")
refused(NotImplementedError, "plotting.draw", model.draw)
assert importer.import_module("net.losses").scaled(1) == 2
assert "def scaled" in importer.get_source("net.losses")
assert importer.file_structure().has_file("net/model.py")
assert modpack.call_signature("net.modpack").inputs == modpack.call_signature(model).inputs
refused(ValueError, "unknown hook names", modpack.load, "net.modpack", hooks=["other"])
assert modpack.load("net.modpack", namespace="process", hooks=False, progress=True).seen == []
assert modpack.load_weights("net.modpack")
refused(AssertionError, "the runtime imports modpack.exporter", getattr, modpack, "save")

from modpack.predicting.predictor import Predictor

with Predictor("net.modpack") as predictor:
    assert torch.equal(predictor.predict({"x": torch.ones(3, 2)})["score"], expected)
    many = predictor.predict_many([{"x": torch.ones(1, 2)}, {"x": torch.ones(2, 2)}, {}], print)
    assert [type(each) for each in many] == [dict, dict, errors.InputMismatchError]
    refused(errors.InputMismatchError, "unknown name", predictor.predict, {"y": 1})
""")


def test_runtime_recreates_objects_that_cannot_be_imported(project, alone, tmp_path):
    project(NET)
    objects = importlib.import_module("net.objects").make()
    modpack.save(objects, tmp_path / "objects.modpack", extern="torch.**")
    alone("""
objects = modpack.load("objects.modpack")
assert objects["weak"]() is objects["point"] and objects["point"].x == 1
assert objects["double"](2) == 4 and objects["kinds"][0].left == 2
assert objects["traced"](torch.ones(1, 2)).shape == (1, 2)
""")


def test_runtime_refuses_damaged_packages(net, alone, tmp_path):
    good = tmp_path / "good.modpack"
    modpack.save(net, good, extern="torch.**", mock="plotting")
    content = good.read_bytes()
    (tmp_path / "truncated.modpack").write_bytes(content[:-200])
    (tmp_path / "text.modpack").write_text("no package")
    at = content.index(b"return 2 * x")
    (tmp_path / "changed.modpack").write_bytes(content[:at] + b"return 3 * x" + content[at + 12 :])
    at = content.rindex(net.layer.weight.detach().numpy().tobytes())
    (tmp_path / "weights.modpack").write_bytes(content[:at] + bytes(8) + content[at + 8 :])
    alone("""
for name in "truncated", "text", "changed":
    refused(errors.ArchiveError, f"{name}.modpack", modpack.load, f"{name}.modpack")
refused(errors.ArchiveError, "SHA-256", modpack.load, "weights.modpack", verify="full")
refused(errors.ModpackError, "missing.modpack", modpack.load, "missing.modpack")
importer = modpack.PackageImporter("good.modpack")
refused(errors.ModpackError, "other.pkl", importer.load_pickle, "net", "other.pkl")
refused(ModuleNotFoundError, "net.other", importer.import_module, "net.other")
refused(errors.ModpackError, "net/x", modpack.load, "good.modpack", package="net", resource="x")
""")


def test_runtime_enforces_trust_policies(net, alone, tmp_path):
    importlib.import_module("net.hooks").add(net.layer)
    modpack.save(net, tmp_path / "code.modpack", extern="torch.**", mock="plotting")
    modpack.save({"w": torch.ones(2)}, tmp_path / "data.modpack")
    key = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
    pem = f"-----BEGIN PUBLIC KEY-----\\n{key}\\n-----END PUBLIC KEY-----\\n"
    alone(f"""
policy = modpack.TrustPolicy
assert modpack.load("data.modpack", policy=policy(allow_code=False))["w"].sum() == 2
for options in dict(allow_code=False), dict(allow_externs=()):
    denied = policy(**options)
    refused(errors.TrustError, "code.modpack", modpack.load, "code.modpack", policy=denied)
signed = policy(require_signature_from=[modpack.Signer("me", "{pem}")])
refused(errors.ModpackError, "cannot verify", modpack.load, "code.modpack", policy=signed)
""")


def test_runtime_reports_missing_extern_modules(project, alone, tmp_path):
    project(
        {
            "shop.py": "import absentlib\n\nclass Till:\n    lib = absentlib\n",
            "absentlib.py": "rate = 3\n",
        }
    )
    till = importlib.import_module("shop").Till
    modpack.save(till(), tmp_path / "shop.modpack", extern="absentlib", self_test=False)
    alone("""
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    refused(errors.ModpackError, "absentlib", modpack.load, "shop.modpack")
assert any(issubclass(each.category, modpack.EnvironmentMismatchWarning) for each in found)
mismatch = errors.EnvironmentMismatchError
refused(mismatch, "absentlib", modpack.load, "shop.modpack", on_mismatch="error")
""")


def test_runtime_loads_archives_of_torch_package(project, alone, tmp_path, monkeypatch):
    project({"cart.py": "class Cart:\n    size = 3\n"})
    with torch.package.PackageExporter(tmp_path / "cart.pt") as exporter:
        exporter.intern("cart")
        exporter.save_pickle("cart", "cart.pkl", importlib.import_module("cart").Cart())
        gate = "torch.package.package_exporter._gate_torchscript_serialization"
        monkeypatch.setattr(gate, False)
        exporter.save_pickle("jit", "jit.pkl", torch.jit.script(torch.nn.Linear(2, 2)))
    alone("""
with modpack.PackageImporter("cart.pt") as importer:
    assert importer.load_pickle("cart", "cart.pkl").size == 3
    assert importer.load_pickle("jit", "jit.pkl")(torch.ones(1, 2)).shape == (1, 2)
""")
