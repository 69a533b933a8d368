"""Packages follow the sources of modules that other code changed after their import."""

from __future__ import annotations

import json
from pathlib import Path

from tests.warm_python import run_python

NET = """
    import functools

    import torch

    K = 4
    FLAG = False

    def set_flag(value):
        global FLAG
        FLAG = value

    class Config:
        W = 5

    cfg = Config()

    class M(torch.nn.Linear):
        n = 2

        def pred(self, x):
            return x

        def forward(self, x):
            factor = 2 if FLAG else 1
            return torch.relu(x.sum() * self.n * K * cfg.W * factor)
"""
PATCHES = """
    import functools

    def fast(self, x):
        return x * 0 - 1

    def relu(x):
        return -x

    def slowed(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) * 2
        return wrapper
"""
CHANGES = (
    "net.K = 10",
    "net.set_flag(True)",
    "net.M.n = 4",
    "net.cfg.W = 7",
    "net.Config.W = 9",
    "net.M.forward = patches.fast",
    "net.M.forward = net.M.pred",
    "net.M.forward = patches.slowed(net.M.forward)",
    "net.M.forward.__code__ = patches.fast.__code__",
    "torch.relu = patches.relu",
    "torch.nn.Module.__call__ = patches.fast",
)
EACH = """
import importlib, json, sys
import modpack, patches, torch
relu, call = torch.relu, torch.nn.Module.__call__
failed = {{}}
for change in {changes!r}:
    sys.modules.pop("net", None)
    net = importlib.import_module("net")
    model = net.M(2, 2)
    exec(change)
    try:
        modpack.save(model, "net.modpack", example_inputs=torch.ones(2))
    except modpack.SelfTestError as failure:
        failed[change] = str(failure)
    torch.relu, torch.nn.Module.__call__ = relu, call
print(json.dumps(failed))
"""


def run(project: Path, code: str) -> str:
    """Return the standard error of a process in a project."""
    done = run_python("-c", code, folder=project)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_changes_of_live_modules_fail_self_test_with_example_inputs(project):
    root = project({"net.py": NET, "patches.py": PATCHES})
    done = run_python("-c", EACH.format(changes=[*CHANGES, "pass"]), folder=root)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout)
    assert failed.keys() == set(CHANGES)
    assert all("the output differs from the live one" in each for each in failed.values()), failed


def test_treat_as_script_includes_live_values(project, clean_python):
    root = project({"net.py": NET, "patches.py": PATCHES})
    code = """
import modpack, net, patches, torch
model = net.M(2, 2)
net.M.forward = patches.fast; net.M.n = 4; net.K = 10; net.cfg.W = 7
with modpack.PackageExporter("net.modpack") as exporter:
    exporter.use_preset("pinned")
    exporter.treat_as_script("net")
    exporter.save_model("__model__", "model.pkl", model)
"""
    run(root, code)
    code = "import modpack, torch; print(modpack.load(package)(torch.ones(1)).item())"
    assert clean_python(code, package=str(root / "net.modpack")).stdout.strip() == "-1.0"


def test_proxies_in_modules_are_not_evaluated(project):
    lazy = """
        def early():
            raise RuntimeError("asked too early")

        class Lazy:
            @property
            def __class__(self):
                early()

            def __getattr__(self, name):
                early()

            __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __repr__ = lambda *given: early()
    """
    net = """
        import torch
        from lazily import Lazy

        CURRENT = Lazy()

        class M(torch.nn.Linear):
            owner = Lazy()
            kinds = {"a": Lazy(), 1: [Lazy()]}
    """
    root = project({"lazily.py": lazy, "net.py": net})
    code = 'import modpack, net\nmodpack.save(net.M(2, 2), "net.modpack")'
    assert "ModpackWarning" not in run(root, code)
    hooked = "model = net.M(2, 2)\nmodel.register_forward_hook(lambda *given: None)\n"
    script = "import modpack, net\nfrom lazily import Lazy\nCURRENT = Lazy()\n" + hooked
    root.joinpath("script.py").write_text(script + 'modpack.save(model, "net.modpack")\n')
    assert run(root, "import runpy; runpy.run_path('script.py', run_name='__main__')") == ""


def test_source_is_read_where_the_loader_read_it(project, tmp_path, clean_python):
    root = project(
        {"one/net.py": "def f():\n    return 1\n", "two/net.py": "def f():\n    return 2\n"}
    )
    code = f"""
import importlib.util, sys, modpack
from importlib.machinery import SourceFileLoader
spec = importlib.util.spec_from_file_location("net", {str(root / "one/net.py")!r})
spec.loader = SourceFileLoader("net", {str(root / "two/net.py")!r})
net = importlib.util.module_from_spec(spec)
sys.modules["net"] = net
spec.loader.exec_module(net)
assert net.f() == 2
modpack.save(net.f, {str(tmp_path / "f.modpack")!r})
"""
    assert run(root, code) == ""
    code = "import modpack; print(modpack.load(package)())"
    loaded = clean_python(code, package=str(tmp_path / "f.modpack"))
    assert loaded.stdout.strip() == "2"
