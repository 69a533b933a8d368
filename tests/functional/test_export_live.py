"""Warnings for modules whose live state differs from their sources."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from modpack.cli import cli
from tests.warm_python import run_python

NET = """
    import functools
    from dataclasses import dataclass
    from types import SimpleNamespace

    import torch

    K = 4
    FLAG = False
    LIMITS = (1, 2)
    DEPTHS = {"a": 1}
    UNSET = ...
    SIZES = {"a": 1}
    SIZES["a"] = 2
    NAMES = ["a", "b"]
    NAMES.remove("a")
    if K:
        del SIZES["a"]
    WIDE = {"ends": (..., 1e999)}
    REGISTRY = {}
    STEPS = 0
    _cache = None

    def register(function):
        REGISTRY[function.__name__] = function
        return function

    @register
    def act(x):
        return x

    @functools.lru_cache
    def size():
        return 2

    def set_flag(value):
        global FLAG
        FLAG = value

    def enable():
        global FLAG
        FLAG = True

    def cached():
        global _cache
        if _cache is None:
            _cache = torch.ones(1)
        return _cache

    class Config:
        W = 5

        def __init__(self, depth=2):
            self.depth = depth

    @dataclass
    class Options:
        width: int = 3

    cfg = Config(3)
    cfg.__module__ = "public"
    options = Options()
    space = SimpleNamespace(rate=0.5)

    class M(torch.nn.Linear):
        n = 2
        __private = 1

        @property
        def twice(self):
            return 2

        @torch.no_grad()
        def pred(self, x):
            return x

        @staticmethod
        def of():
            return 1

        def __hidden(self):
            return self.__private

        def forward(self, x):
            global STEPS
            STEPS += 1
            factor = 2 if FLAG else 1
            return torch.relu(x.sum() * self.n * K * cfg.W * factor)

    class N(M):
        pass
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
SAVE = """
import sys, warnings
import net, patches, torch
import modpack
warnings.simplefilter("ignore")
model = net.{kind}(2, 2)
model(torch.ones(2)); net.cached(); net.size()
{change}
warnings.simplefilter("always")
{save}
"""


def run(project: Path, code: str) -> str:
    """Return the standard error of a process in a project."""
    done = run_python("-c", code, folder=project)
    assert done.returncode == 0, done.stderr
    return done.stderr


def warnings_of(project, change: str, save: str = "", kind: str = "M") -> str:
    root = project({"net.py": NET, "patches.py": PATCHES})
    save = save or 'modpack.save(model, "net.modpack")'
    return run(root, SAVE.format(change=change, save=save, kind=kind))


CHANGES = {
    "net.K = 10": "K is 10 and not 4",
    "net.set_flag(True)": "FLAG is True and not False",
    "net.enable()": "FLAG is True and not False",
    "net.LIMITS = (1, 3)": "LIMITS is another tuple",
    "net.DEPTHS['a'] = 3": "DEPTHS has other items",
    "net.UNSET = 1": "UNSET is 1",
    "net.WIDE['ends'] = (..., 2)": "WIDE has other items",
    "net.M.n = 4": "M.n is 4 and not 2",
    "net.N.n = 4": "N.n was set to 4",
    "net.cfg.W = 7": "cfg.W was set to 7",
    "net.cfg.depth = 9": "cfg.depth is 9 and not 3",
    "net.options.width = 9": "options.width is 9 and not 3",
    "net.space.rate = 1.0": "space.rate is 1.0 and not 0.5",
    "net.Config.W = 9": "Config.W is 9 and not 5",
    "net.M.forward = patches.fast": "M.forward is patches.fast (patches.py:4)",
    "net.M.pred = patches.fast": "M.pred is patches.fast (patches.py:4)",
    "net.M.of = staticmethod(patches.fast)": "M.of is a staticmethod of patches",
    "net.M.twice = property(patches.fast)": "M.twice is a property of patches",
    "net.M.forward = net.M.pred": "M.forward is",
    "net.N.forward = patches.fast": "N.forward was set to patches.fast",
    "net.act = patches.fast": "act is patches.fast (patches.py:4)",
    "net.cached = lambda: 1": "cached is __main__.<lambda> (<string>:",
    "net.M.forward = patches.slowed(net.M.forward)": "M.forward is patches.",
    "net.M.forward.__code__ = patches.fast.__code__": "M.forward is",
    "net.Config = patches.fast": "Config is patches.fast (patches.py:4)",
    "del net.set_flag": "set_flag was deleted",
}

EACH = """
import importlib, json, sys, warnings
import modpack, patches, torch
reported = {{}}
for change in {changes!r}:
    sys.modules.pop("net", None)
    net = importlib.import_module("net")
    exec(change)
    exporter = modpack.PackageExporter(None)
    exporter.use_preset("pinned")
    exporter.save_model("__model__", "model.pkl", net.N(2, 2))
    reported[change] = [str(note) for note in exporter.plan().warnings()]
print(json.dumps(reported))
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> dict[str, list[str]]:
    """Return the warnings of a plan after each change to a freshly imported module."""
    root = tmp_path_factory.mktemp("project")
    (root / "net.py").write_text(textwrap.dedent(NET))
    (root / "patches.py").write_text(textwrap.dedent(PATCHES))
    code = EACH.format(changes=[*CHANGES, "pass"])
    done = run_python("-c", code, folder=root)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("change", CHANGES)
def test_change_from_outside_is_reported_with_location(reported, change):
    (note,) = reported[change]
    lines = textwrap.dedent(NET).split("\n")
    expected = f"net differs from its source in this process: {CHANGES[change]}"
    assert expected in _without_lines(note)
    line = int(re.search(r"\(line (\d+)\)", note)[1])
    assert re.search(r"net.py:(\d+)", note)[1] == str(line)
    name = CHANGES[change].split()[0].split(".")
    assert any(part in "".join(lines[line - 1 : line + 1]) for part in name)
    assert "the package follows the source" in note


def test_unchanged_module_has_no_diagnostic(reported):
    assert reported["pass"] == []


def _without_lines(text: str) -> str:
    return re.sub(r" \(line \d+\)", "", text)


def test_state_set_by_own_code_has_no_warning(project):
    assert "ModpackWarning" not in warnings_of(project, "")


def test_all_changes_are_reported_without_texts(project):
    said = warnings_of(project, "net.K = 'hunter2secret'; net.M.n = 4")
    assert "K is another text" in _without_lines(said)
    assert "M.n is 4 and not 2" in _without_lines(said)
    assert "hunter2secret" not in said


def test_package_records_the_warning(project, tmp_path):
    warnings_of(project, "net.K = 10")
    package = str(tmp_path / "project0/net.modpack")
    audited = CliRunner().invoke(cli, ["audit", "--fail-on", "live-changed", package])
    assert audited.exit_code == 1
    assert "K (line 8) is 10 and not 4" in " ".join(audited.output.split())


def test_treat_as_script_includes_live_values(project, tmp_path, clean_python):
    save = """
with modpack.PackageExporter("net.modpack") as exporter:
    exporter.use_preset("pinned")
    exporter.treat_as_script("net")
    exporter.save_model("__model__", "model.pkl", model)
"""
    change = "net.M.forward = patches.fast; net.M.n = 4; net.K = 10; net.cfg.W = 7"
    said = warnings_of(project, change, save)
    assert "differs from its source" not in said
    package = tmp_path / "project0/net.modpack"
    code = "import modpack, torch; print(modpack.load(package)(torch.ones(1)).item())"
    assert clean_python(code, package=str(package)).stdout.strip() == "-1.0"


def test_hook_reads_a_global_that_has_changed(project):
    root = project(
        {"hooks.py": "K = 4\n\ndef scale(module, args, output):\n    return output * K\n"}
    )
    code = """
import hooks, modpack, torch
model = torch.nn.Linear(2, 2)
model.register_forward_hook(hooks.scale)
hooks.K = 10
modpack.save(model, "net.modpack")
"""
    assert "K (line 1) is 10 and not 4" in run(root, code)


def test_failed_self_test_lists_live_changes(project):
    save = """
try:
    modpack.save(model, "net.modpack", example_inputs=torch.ones(2))
except modpack.SelfTestError as failure:
    print(failure, file=sys.stderr)
"""
    save = save.replace("modpack.SelfTestError", "modpack.errors.SelfTestError")
    said = warnings_of(project, "net.M.n = 4", f"import modpack.errors\n{save}")
    assert "differ" in said
    assert "possible cause: net differs from its source in this process: M.n (line " in said


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            "torch.relu = patches.relu",
            "torch.relu was replaced in this process by patches.relu (patches.py:7)",
        ),
        ("torch.nn.Linear.reset_parameters = patches.fast", "Linear.reset_parameters was replaced"),
        ("torch.nn.Module.__call__ = patches.fast", "Module.__call__ was replaced in this"),
        ("torch.nn.functional.linear = patches.relu", "functional.linear was replaced in"),
    ],
)
def test_replaced_extern_function_is_reported(project, change, reported):
    said = warnings_of(project, change)
    assert reported in said
    assert "but it is extern" in said


def test_extern_function_that_nothing_uses_may_be_replaced(project):
    assert "ModpackWarning" not in warnings_of(project, "torch.sinh = patches.relu")


def test_module_patching_at_import_has_no_warning(project):
    net = """
        import torch

        class M(torch.nn.Linear):
            def forward(self, x):
                return x
    """
    root = project(
        {
            "lib/__init__.py": "from lib import net, patches\npatches.apply()\n",
            "lib/net.py": net,
            "lib/patches.py": (
                "from lib import net\n\ndef fast(self, x):\n    return -x\n\n"
                "def apply():\n    net.M.forward = fast\n"
            ),
        }
    )
    code = 'import modpack, lib\nmodpack.save(lib.net.M(2, 2), "net.modpack")'
    assert "ModpackWarning" not in run(root, code)


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


def test_metaclasses_and_decorators_have_no_warning(project):
    net = """
        import abc, enum, functools, typing
        from typing import NamedTuple, Protocol, overload
        import torch

        if typing.TYPE_CHECKING:
            HIDDEN = 1

        try:
            import nowhere
            HAS = True
        except ImportError:
            HAS = False

        def wraps(function):
            @functools.wraps(function)
            def inner(*args):
                return function(*args)
            return inner

        class Meta(type):
            def __new__(cls, name, bases, names):
                made = {k: wraps(v) if callable(v) else v for k, v in names.items()}
                return super().__new__(cls, name, bases, {**made, "added": 3})

        class Made(metaclass=Meta):
            def run(self):
                return 1

        class Base:
            def __init_subclass__(cls):
                cls.run = wraps(cls.run)
                cls.count = 4

        class Derived(Base):
            count = 3
            def run(self):
                return 1

        class Color(enum.Enum):
            RED = 1
            def __new__(cls, value):
                made = object.__new__(cls)
                made._value_ = value
                return made

        class Point(NamedTuple):
            x: int = 3

        class Shape(Protocol):
            side: int = 1
            def area(self): ...

        @functools.total_ordering
        class Ordered:
            __slots__ = ("a",)
            def __lt__(self, other):
                return True

        class Step(torch.optim.Optimizer):
            def step(self, closure=None):
                return None

        @overload
        def twice(x: int): ...
        @overload
        def twice(x: str): ...
        def twice(x):
            return x

        def late(x):
            return x
        late = wraps(late)

        class Net(torch.nn.Linear):
            names = ["a"]
            _abc: int = 0
            @property
            def size(self):
                return 1
            @size.setter
            def size(self, value):
                pass
            @functools.cached_property
            def slow(self):
                return 2

        Net.names.append("b")
        Net.extra = 5
        net = Net(2, 2)
        Step(net.parameters(), {})
    """
    root = project({"net.py": net})
    code = 'import modpack, net\nnet.net.slow\nmodpack.save([net.net, net.Made()], "n.pt")'
    assert run(root, code) == ""


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


def test_class_also_bound_by_import_has_no_warning(project):
    """Libraries define placeholder classes for features that need an optional dependency."""
    shop = """
        try:
            from .real import Kind
        except ImportError:
            class Kind:
                def work(self):
                    raise RuntimeError("not installed")
    """
    files = {
        "shop/__init__.py": shop,
        "shop/real.py": "class Kind:\n    def work(self): return 3\n    def more(self): return 4\n",
        "net.py": "import torch, shop\nclass M(torch.nn.Linear):\n    kind = shop.Kind()\n",
    }
    root = project(files)
    assert "ModpackWarning" not in run(
        root, 'import modpack, net\nmodpack.save(net.M(2, 2), "net.modpack")'
    )


def test_patch_by_packaged_code_has_no_warning(project):
    """The package repeats the replacement when it is loaded."""
    files = {
        "shop/__init__.py": "from shop import patches\n",
        "shop/patches.py": "import torch\ndef relu(x): return -x\ntorch.relu = relu\n",
        "net.py": (
            "import torch, shop\nclass M(torch.nn.Linear):\n"
            "    def forward(self, x): return torch.relu(x)\n"
        ),
    }
    root = project(files)
    assert "ModpackWarning" not in run(
        root, 'import modpack, net\nmodpack.save(net.M(2, 2), "net.modpack")'
    )
