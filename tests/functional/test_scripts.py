"""Definitions of scripts and notebooks, included as source and loaded without the script."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.warm_python import run_python

Story = Callable[..., str]

SAVE = """
with modpack.PackageExporter("o.modpack") as exporter:
    exporter.use_preset("pinned")
    exporter.save_pickle("m", "o.pkl", saved)
"""
LOAD = """
import inspect, sys
import modpack, torch
importer = modpack.PackageImporter(package)
loaded = importer.load_pickle("m", "o.pkl")
module = lambda: importer.import_module("train_definitions")
source = lambda: inspect.getsource(module())
"""


def execute(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return run_python(*command, folder=folder)


@pytest.fixture
def story(tmp_path, clean_python) -> Story:
    """Run a script that saves ``saved``; then, elsewhere, code that has ``loaded``.

    ``story("saved = 1", "print(loaded)")`` is ``"1\\n"``. The first may read other files, and
    saves as the last thing that it does unless it calls modpack itself.
    """

    def run(script: str, use: str, files: Mapping[str, str] | None = None) -> str:
        folder = tmp_path / "work"
        for name, content in {"train.py": _script(script), **(files or {})}.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(content))
        done = execute(folder, "train.py")
        assert done.returncode == 0, done.stderr
        code = textwrap.dedent(LOAD) + textwrap.dedent(use)
        return clean_python(code, package=folder / "o.modpack").stdout

    return run


def _script(script: str) -> str:
    text = textwrap.dedent(script).lstrip()
    future, text = text.split("\n", 1) if text.startswith("from __future__") else ("", text)
    text = f"{future}\nimport modpack, torch\n{text}"
    return text if "modpack." in script else text + SAVE


TRAIN = '''
"""Trains a net on two numbers."""
import torch
from torch import nn

import modpack
from parts import Block  # of this project

WIDTH = 4
STEPS = 3
losses = []


class Scale(nn.Module):
    """Scales what it gets."""

    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor  # that is all


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, WIDTH), Block(), Scale())

    def forward(self, x):
        return self.layers(x)


class Unused(nn.Module):
    pass


def collect(module, args, output):
    losses.append(float(output.sum()))


print("training")
torch.manual_seed(0)
model = Net()
model.register_forward_hook(collect)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
x = torch.ones(1, 2)
with torch.no_grad():
    torch.save((x, model(x)), "expected.pt")
modpack.save(model, "net.modpack")
'''
PARTS = "import torch\nclass Block(torch.nn.Tanh):\n    pass\n"


def test_model_of_a_training_script_loads_elsewhere_and_trains_nothing(tmp_path, clean_python):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "parts.py").write_text(PARTS)
    done = execute(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (0, "training\n"), done.stderr
    use = """
        import copy, inspect, io
        import modpack, torch
        model = modpack.load(folder / "net.modpack")
        x, y = torch.load(folder / "expected.pt")
        print(torch.equal(model(x), y), type(model).__module__.split(".", 3)[3])
        print(inspect.getsource(type(model.layers[2])))
        print(torch.equal(copy.deepcopy(model)(x), y))
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        print(torch.equal(torch.load(buffer, weights_only=False)(x), y))
        """
    printed = clean_python(use, folder=tmp_path).stdout
    lines = TRAIN.splitlines()
    text = "\n".join(lines[lines.index("class Scale(nn.Module):") :][:9])
    assert printed == f"True train_definitions\n{text}\n\nTrue\nTrue\n"


def test_definitions_module_keeps_script_source(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "parts.py").write_text(PARTS)
    assert execute(tmp_path, "train.py").returncode == 0
    done = execute(
        tmp_path, "-m", "modpack", "inspect", "--source", "train_definitions", "net.modpack"
    )
    assert done.stdout == textwrap.dedent(
        '''\
        # Definitions from train.py that objects in this package need.
        # The script itself is not in the package and never runs. Values that it computed
        # are stored with the objects.

        __modpack_script__ = 'train.py'

        from torch import nn
        from parts import Block  # of this project

        WIDTH = 4
        losses = []


        class Scale(nn.Module):
            """Scales what it gets."""

            def __init__(self, factor=2.0):
                super().__init__()
                self.factor = factor

            def forward(self, x):
                return x * self.factor  # that is all


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(2, WIDTH), Block(), Scale())

            def forward(self, x):
                return self.layers(x)


        def collect(module, args, output):
            losses.append(float(output.sum()))
        '''
    )


def test_imports_of_definitions_follow_the_rules(tmp_path):
    (tmp_path / "train.py").write_text(
        "import modpack, parts, unusedparts\n"
        "class Net(parts.Block): pass\n"
        "plan = modpack.save(Net(), 'net.modpack')\n"
        "print(plan.modules(modpack.Action.INTERN))\n"
        "print(plan.decisions['train_definitions'].why, '|', plan.why('parts'))\n"
    )
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "unusedparts.py").write_text("")
    assert execute(tmp_path, "train.py").stdout.splitlines() == [
        "['parts', 'train_definitions']",
        "definitions of train.py that objects need | ('train_definitions', 'parts')",
    ]


def test_package_whose_definitions_need_no_values_loads_in_torch_package(tmp_path):
    (tmp_path / "train.py").write_text(
        "import modpack, torch, torch.package\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x): return x + 1\n"
        "modpack.save(Net(), 'net.modpack')\n"
        "importer = torch.package.PackageImporter('net.modpack')\n"
        "print(importer.load_pickle('__model__', 'model.pkl')(1))\n"
    )
    assert execute(tmp_path, "train.py").stdout == "2\n"


def test_classes_of_all_kinds_load(story):
    script = """
        import abc, collections, dataclasses, enum, functools, typing
        T = typing.TypeVar("T")
        LIMIT = 7
        class Color(enum.Enum):
            RED = "r"
        Mood = enum.Enum("Mood", "GOOD BAD")
        Point = collections.namedtuple("Point", "x y")
        class Pair(typing.NamedTuple):
            x: int
            y: float = 2.0
        class Box(typing.Generic[T]):
            def __init__(self, value: T): self.value = value
        @dataclasses.dataclass(frozen=True)
        class Config:
            width: int = LIMIT
            tags: list = dataclasses.field(default_factory=list)
        class Meta(type):
            def __call__(cls, *args):
                made = super().__call__(*args)
                made.limit = LIMIT
                return made
        class Made(metaclass=Meta): pass
        class Abstract(abc.ABC):
            @abc.abstractmethod
            def f(self): ...
        class Concrete(Abstract):
            __slots__ = ("a",)
            def f(self): return self.a
        Dynamic = type("Dynamic", (torch.nn.Module,), {"forward": lambda self, x: x + LIMIT})
        class Outer:
            class Inner:
                def hi(self): return "hi"
            @staticmethod
            def static(a=LIMIT): return a
            @functools.cached_property
            def cached(self): return self.__private()
            def __private(self): return LIMIT + 1
        concrete = Concrete()
        concrete.a = 5
        saved = [Color.RED, Mood.BAD, Point(1, 2), Pair(1), Box(3), Config(), Made(), concrete,
                 Dynamic(), Outer.Inner(), Outer(), T, Box[int], Color]
        """
    use = """
        color, mood, point, pair, box, config, made, concrete, dynamic, inner, outer, *_ = loaded
        print(color, mood, point, pair, box.value, config, made.limit, concrete.f())
        print(dynamic(1), inner.hi(), outer.static(), outer.cached, *loaded[11:12])
        print(color.__class__ is loaded[-1], loaded[12].__args__, type(point)(3, 4))
        """
    assert story(script, use).splitlines() == [
        "Color.RED Mood.BAD Point(x=1, y=2) Pair(x=1, y=2.0) 3 Config(width=7, tags=[]) 7 5",
        "8 hi 7 8 ~T",
        "True (<class 'int'>,) Point(x=3, y=4)",
    ]


def test_functions_of_all_kinds_load(story):
    script = """
        import functools, sys
        def announced(function):
            @functools.wraps(function)
            def wrapper(*args): return "announced", function(*args)
            return wrapper
        @announced
        def decorated(x): return helper(x)
        @functools.lru_cache(None)
        def cached(x): return helper(x)
        def helper(x): return x + len(sys.argv[:1])
        times = lambda x: x * helper(1)
        def outer(y):
            def inner(x): return x + y + helper(0)
            return inner
        if len(sys.argv) > 1:
            def branch(): return "other"
        else:
            def branch():
                return '''two
            lines'''
        saved = [decorated, cached, helper, times, outer(10), branch, functools.partial(helper, 5)]
        """
    use = """
        decorated, cached, helper, times, inner, branch, partial = loaded
        print(decorated(1), cached(1), helper(1), times(2), inner(1), repr(branch()), partial())
        print(cached.__wrapped__.__globals__ is helper.__globals__ is times.__globals__
              is inner.__globals__ is vars(module()), helper is module().helper)
        """
    assert story(script, use).splitlines() == [
        "('announced', 2) 2 2 4 12 'two\\n    lines' 6",
        "True True",
    ]


def test_later_additions_to_definition_are_included(story):
    script = """
        import dataclasses, functools
        @functools.singledispatch
        def show(x): return "any"
        @show.register
        def _(x: int): return "int"
        @show.register(str)
        def _(x): return "text" + mark()
        def mark(): return "!"
        def slow(x): return x + 1
        slow = functools.lru_cache(None)(slow)
        class Out:
            a: int = 3
        Out = dataclasses.dataclass(Out)
        saved = [show, slow, Out()]
        """
    use = """
        show, slow, out = loaded
        print(show(1), show("a"), show(None), slow(1), slow.cache_info().misses, out)
        """
    assert story(script, use) == "int text! any 2 1 Out(a=3)\n"


def test_used_imports_of_all_kinds_are_included(story):
    script = """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import json, os.path as osp, thenothing as _unused
        import pkg.deep, pkg.other
        from starred import *
        try:
            import missing_for_sure as fast
        except ImportError:
            fast = None
        if TYPE_CHECKING:
            from collections.abc import Sequence
        def f(x: Sequence[int]) -> str:
            return json.dumps([osp.basename("a/b"), pkg.deep.value, star(x), fast is None])
        saved = f
        """
    files = {
        "starred.py": "def star(x): return x * 2\ndef star2(): pass\n",
        "thenothing.py": "",
        "pkg/__init__.py": "",
        "pkg/deep.py": "value = 'deep'",
        "pkg/other.py": "",
    }
    use = """
        print(loaded(2))
        lines = source().splitlines()
        print([line for line in lines if "import" in line or "Checking" in line])
        """
    printed = story(script, use, files).splitlines()
    assert printed[0] == '["b", "deep", 4, true]'
    assert printed[1] == str(
        [
            "from __future__ import annotations",
            "from typing import TYPE_CHECKING",
            "import json, os.path as osp",
            "import pkg.deep, pkg.other",
            "from starred import star",
            "    import missing_for_sure as fast",
            "    from collections.abc import Sequence",
        ]
    )


def test_relative_imports_of_script_resolve_to_package(tmp_path, clean_python):
    (tmp_path / "pkg").mkdir()
    for name, content in {
        "__init__": "",
        "layers": "value = 5",
        "train": "import modpack\nfrom . import layers\nfrom .layers import value\n"
        "class Net:\n    def f(self): return layers.value, value\n"
        "modpack.save(Net(), 'net.modpack')\n",
    }.items():
        (tmp_path / "pkg" / f"{name}.py").write_text(content)
    assert execute(tmp_path, "-m", "pkg.train").returncode == 0
    use = "import modpack\nprint(modpack.load(path).f())"
    assert clean_python(use, path=tmp_path / "net.modpack").stdout == "(5, 5)\n"


def test_computed_values_are_included_and_stay_shared(story):
    script = """
        DEVICE = torch.device("cpu")
        weights = torch.ones(2)
        seen = []
        settings = {"scale": 2}
        settings["bias"] = 3
        count = 0
        for count in range(4): pass
        class Net(torch.nn.Module):
            def __init__(self, w):
                super().__init__()
                self.w = w
            def forward(self, x):
                seen.append(count)
                return x.to(DEVICE) * weights * settings["scale"] + settings["bias"]
        def hook(*args): seen.append("hook")
        model = Net(weights)
        model.register_forward_hook(hook)
        model.seen = seen
        model(torch.ones(2))
        saved = [model, seen]
        """
    use = """
        model, seen = loaded
        print(model(torch.ones(2)).tolist(), seen, model.seen is seen is module().seen)
        print(module().weights is model.w, module().settings)
        """
    assert story(script, use).splitlines() == [
        "[5.0, 5.0] [3, 'hook', 3, 'hook'] True",
        "True {'scale': 2, 'bias': 3}",
    ]


def test_values_needed_at_import_are_available(story):
    script = """
        import json
        config = json.loads('{"width": 3, "name": "net"}')
        DEVICE = torch.device("cpu")
        def named(name):
            def decorate(cls):
                cls.label = name + config["name"]
                return cls
            return decorate
        @named("my-")
        class Net:
            width = config["width"] + 1
            def f(self, device=DEVICE, sizes=[config["width"]]): return device, sizes
        saved = Net()
        """
    use = """
        print(loaded.label, loaded.width, loaded.f())
        print(inspect.getsource(type(loaded)).splitlines()[:2])
        fresh = modpack.PackageImporter(package).import_module("train_definitions")
        print(fresh.Net.width)
        """
    assert story(script, use).splitlines() == [
        "my-net 4 (device(type='cpu'), [3])",
        "['@named(\"my-\")', 'class Net:']",
        "4",
    ]


def test_values_may_be_built_from_definitions(story):
    script = """
        class Registry:
            def __init__(self): self.known = {}
            def register(self, cls):
                self.known[cls.__name__] = cls
                return cls
        REGISTRY = Registry()
        class Base:
            kinds = []
            def __init_subclass__(cls): Base.kinds.append(cls)
        @REGISTRY.register
        class Net(Base):
            def other(self): return default, REGISTRY
        @REGISTRY.register
        class Other(Base): pass
        default = Net()
        default.loop = [default]
        saved = [Net(), default]
        """
    use = """
        net, default = loaded
        print(net.other()[0] is default, default.loop[0] is default)
        print(sorted(net.other()[1].known), net.other()[1].known["Net"] is type(net))
        print([kind.__name__ for kind in type(net).kinds], net.other()[1] is module().REGISTRY)
        """
    assert story(script, use).splitlines() == [
        "True True",
        "['Net', 'Other'] True",
        "['Net', 'Other'] True",
    ]


def test_attributes_set_later_are_included(story):
    script = """
        def patched(self): return "patched"
        class Net:
            scale = 2
            count = 0
            def __init__(self): type(self).count += 1
            def f(self): return "original"
            def g(self, more=[]): return more
            @classmethod
            def h(cls, x=torch.ones(1)): return x
        Net.f = patched
        Net.scale = 5
        Net.extra = {"a": 1}
        Net().g().append("kept")
        def counted():
            counted.calls += 1
            return counted.calls
        counted.calls = 3
        saved = [Net(), counted]
        """
    use = """
        net, counted = loaded
        print(net.f(), net.scale, net.extra, net.count, net.g(), net.h().tolist(), counted())
        """
    assert story(script, use) == "patched 5 {'a': 1} 2 ['kept'] [1.0] 4\n"


def test_several_objects_of_one_exporter_share_one_module(story):
    script = """
        DEVICE = torch.device("cpu")
        log = []
        class First:
            def f(self): return log
        class Second(First):
            def __init__(self, device=DEVICE): self.device = device
        with modpack.PackageExporter("o.modpack") as exporter:
            exporter.use_preset("pinned")
            exporter.save_pickle("m", "o.pkl", First())
            log.append(1)
            exporter.save_pickle("m", "second.pkl", [First(), Second()])
        """
    use = """
        first, second = importer.load_pickle("m", "second.pkl")
        print(type(first) is type(loaded), loaded.f() is second.f(), second.f(), second.device)
        """
    assert story(script, use) == "True True [1] cpu\n"


def test_loaded_model_is_saved_again_with_its_definitions_and_values(story):
    script = """
        DEVICE = torch.device("cpu")
        seen = [0]
        class Net:
            def __init__(self, device=DEVICE): self.seen = seen
            def f(self): return seen, DEVICE
        saved = [Net(), lambda: seen]
        """
    use = """
        both = [importer, modpack.sys_importer]
        with modpack.PackageExporter("again.modpack", importer=both) as exporter:
            exporter.use_preset("pinned")
            exporter.save_pickle("m", "o.pkl", loaded)
        importer.close()
        again = modpack.PackageImporter("again.modpack")
        net, function = again.load_pickle("m", "o.pkl")
        print(net.f(), net.f()[0] is net.seen is function())
        """
    assert story(script, use) == "([0], device(type='cpu')) True\n"


SENTINELS = """
import threading
from parts import ABSENT, GUARD
MISSING = object()
LOCK = threading.Lock()
class Net:
    def __init__(self):
        self.kept = [MISSING, LOCK, ABSENT, GUARD]
    def __call__(self):
        return [a is b for a, b in zip(self.kept, [MISSING, LOCK, ABSENT, GUARD])]
"""
SENTINEL_PARTS = "import threading\nABSENT = object()\nGUARD = threading.Lock()\n"
EXPORT = ("-m", "modpack", "export", "train.py:Net", "-o", "net.modpack")
SAVE_SENTINELS = 'import modpack\nmodel = Net()\nmodpack.save(model, "net.modpack")\n'


@pytest.mark.parametrize("how", ["command line", "script", "notebook"])
def test_plain_objects_of_module_level_stay_shared(how, notebook, clean_python, tmp_path):
    (tmp_path / "parts.py").write_text(SENTINEL_PARTS)
    if how == "notebook":
        assert notebook(SENTINELS, SAVE_SENTINELS) == ""
    else:
        end = SAVE_SENTINELS if how == "script" else ""
        (tmp_path / "train.py").write_text(SENTINELS + end)
        done = execute(tmp_path, *(["train.py"] if how == "script" else EXPORT))
        assert done.returncode == 0, done.stderr
    use = """
        import modpack
        model = modpack.load(path)
        plan = modpack.save(model, "again.modpack")
        interned = [name for name, each in plan.decisions.items() if each.action.value == "intern"]
        names = {name.partition("_")[2] or name for name in interned}
        print(model(), modpack.load("again.modpack")(), sorted(names))
        """
    shared = "[True, True, True, True]"
    expected = f"{shared} {shared} ['definitions', 'parts']\n"
    assert clean_python(use, path=tmp_path / "net.modpack").stdout == expected


def test_script_keeps_definitions_of_earlier_package_apart(tmp_path, clean_python):
    script = """
        import sys, modpack
        class Net:
            def __init__(self, inner=None): self.inner = inner
            def f(self): return VERSION, self.inner and self.inner.f()
        VERSION = int(sys.argv[1])
        if VERSION == 1:
            modpack.save(Net(), "1.modpack")
        else:
            old = modpack.PackageImporter("1.modpack")
            inner = old.load_pickle("__model__", "model.pkl")
            modpack.save(Net(inner), "2.modpack", importer=[old, modpack.sys_importer])
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    for version in ("1", "2"):
        done = execute(tmp_path, "train.py", version)
        assert done.returncode == 0, done.stderr
    use = "import modpack\nprint(modpack.load(path).f())"
    assert clean_python(use, path=tmp_path / "2.modpack").stdout == "(2, (1, None))\n"


def test_examples_may_be_objects_of_the_script_too(tmp_path):
    script = """
        import dataclasses, modpack, torch
        @dataclasses.dataclass
        class Batch:
            x: torch.Tensor
        @dataclasses.dataclass
        class Out:
            y: torch.Tensor
        class Net(torch.nn.Module):
            def forward(self, batch): return Out(batch.x + 1)
        modpack.save(Net(), "net.modpack", preset="hermetic",
                     example_inputs=(Batch(torch.ones(2)),))
        print(modpack.self_test("net.modpack").passed)
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    done = execute(tmp_path, "train.py")
    assert done.stdout == "True\n", done.stderr


def test_problem_in_a_definition_shows_the_line_of_the_script(tmp_path):
    script = """
        import modpack, torch

        if modpack:
            # A comment above is kept.
            class Late(torch.nn.Module):
                def forward(self, x):
                    import nowhere_either
                    return x


        @torch.no_grad()
        def helper():
            import nowhere_at_all

        class Net(Late):
            def call(self): helper()
        try:
            modpack.save(Net(), "net.modpack")
        except modpack.PackagingError as error:
            for problem in error.problems:
                print(problem.subject, problem.location.rpartition("/")[2])
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    done = execute(tmp_path, "train.py")
    assert sorted(done.stdout.splitlines()) == [
        "nowhere_at_all train.py:14",
        "nowhere_either train.py:8",
    ], done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [("return 1", "return 2"), ("def f(self)", "def g(self)"), ("(Base)", "(Other)")],
)
def test_class_with_edited_source_is_rejected(tmp_path, before, after):
    script = f"""
        import linecache, modpack
        class Base: pass
        class Other: pass
        class Net(Base):
            def f(self): return 1
        with open(__file__) as file:
            text = file.read()
        head, mark, tail = text.partition("import linecache")
        with open(__file__, "w") as file:
            file.write(text.replace({before!r}, {after!r}, 1))
        linecache.clearcache()
        try:
            modpack.save([Net()], "net.modpack")
        except modpack.PackagingError as error:
            (problem,) = error.problems
            print(problem.subject, problem.code, problem.location.rpartition("/")[2])
            print("changed since it was executed" in str(error), "Run the script" in str(error))
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    done = execute(tmp_path, "train.py")
    assert done.stdout.splitlines() == [
        "__main__.Net defined-in-script train.py:5",
        "True True",
    ], done.stderr
    assert not (tmp_path / "net.modpack").exists()


def test_live_values_override_the_edited_file(story):
    script = """
        import linecache
        SIZE = 3
        class Net:
            scale = 2
            def f(self, x=5): return SIZE, self.scale, x
        with open(__file__) as file:
            text = file.read()
        edited = text.replace("SIZE = 3", "SIZE = 4").replace("scale = 2", "scale = 9")
        with open(__file__, "w") as file:
            file.write("# A line more.\\n" + edited)
        linecache.clearcache()
        saved = Net()
        """
    assert story(script, "print(loaded.f())") == "(3, 2, 5)\n"


def test_all_uncapturable_definitions_are_reported(tmp_path):
    script = """
        import modpack
        exec("class One: pass")
        exec("class Two: pass")
        class Net:
            def f(self): return Two
        try:
            modpack.save([One(), Net()], "net.modpack")
        except modpack.PackagingError as error:
            print(sorted(problem.subject for problem in error.problems))
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    assert execute(tmp_path, "train.py").stdout == "['__main__.One', '__main__.Two']\n"


def test_unpicklable_global_is_reported_by_name(tmp_path):
    script = """
        import modpack
        running = {"jobs": [(i for i in "abc")]}
        class Net:
            def f(self): return running
        try:
            modpack.save(Net(), "net.modpack")
        except modpack.PicklingError as error:
            print(error)
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    assert "(at global running['jobs'][0])" in execute(tmp_path, "train.py").stdout


def test_explicit_rule_for_main_externs_it(tmp_path):
    script = """
        import modpack
        class Net: pass
        with modpack.PackageExporter("net.modpack") as exporter:
            exporter.extern("__main__")
            exporter.save_pickle("m", "o.pkl", Net())
        loaded = modpack.PackageImporter("net.modpack").load_pickle("m", "o.pkl")
        print(type(loaded) is Net)
        """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    assert execute(tmp_path, "train.py").stdout == "True\n"


NOTEBOOK = '''
import linecache, zlib
import __main__
names = vars(__main__)
del names["__file__"]
{history}

def cell(source):
    """Run a cell as IPython's kernel does."""
    name = f"/tmp/ipykernel_7/{{zlib.crc32(source.encode())}}.py"
    lines = [line + "\\n" for line in source.splitlines()]
    linecache.cache[name] = (len(source), None, lines, name)
    if "_ih" in names:
        names["_ih"].append(source)
    exec(compile(source, name, "exec", dont_inherit=True), names)

cells = {cells!r}
for source in cells:
    try:
        cell(source)
    except Exception as failure:
        print(f"{{type(failure).__name__}}: {{failure}}")
'''
IMPORTS = "import modpack, torch\nfrom torch import nn\nWIDTH = 3"
BLOCK = "class Block(nn.Module):\n    def forward(self, x): return x + {number}"
NET = """
class Net(nn.Module):
    width = WIDTH
    def __init__(self):
        super().__init__()
        self.block = Block()
    def forward(self, x): return self.block(x) * scale
"""
SAVE_IT = "modpack.save(model, 'net.modpack')"


@pytest.fixture(params=["_ih = ['']", ""], ids=["with history", "without history"])
def notebook(request, tmp_path):
    """Run cells one after the other; returns what was printed."""

    def run(*cells: str) -> str:
        script = NOTEBOOK.format(history=request.param, cells=list(cells))
        (tmp_path / "kernel.py").write_text(script)
        done = execute(tmp_path, "kernel.py")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


# IPython compiles magics to a call with the cell's text, which executes that text.
MAGICS = """
class Shell:
    def run_cell_magic(self, name, line, body):
        if name == "capture":
            cell(body)
        elif name == "time":
            exec(compile(body, "<timed exec>", "exec", dont_inherit=True), names)
    def run_line_magic(self, name, line):
        exec(compile(line, "<timed exec>", "exec", dont_inherit=True), names)
    def system(self, line): pass
def get_ipython(): return Shell()
"""
MAGIC_NET = """
class Net(nn.Module):
    def forward(self, x): return Block()(x) * scale
"""


def magic(name: str, body: str) -> str:
    return f"get_ipython().run_cell_magic({name!r}, '', {body!r})"


@pytest.mark.parametrize("name", ["time", "capture"])
def test_cell_run_by_magic_gives_its_definitions(name, notebook, clean_python, tmp_path):
    block = "get_ipython().system('pip list')\n" + BLOCK.format(number=1)
    cells = [
        *(MAGICS, IMPORTS, magic(name, BLOCK.format(number=7)), magic(name, MAGIC_NET)),
        *(magic(name, block), "get_ipython().run_line_magic('time', 'scale = 2')"),
        *("get_ipython().run_line_magic('time', 'model = Net()')", SAVE_IT),
    ]
    assert notebook(*cells) == ""
    assert used(clean_python, tmp_path)[0] == "4 notebook_definitions"


def test_cell_of_other_language_gives_no_definitions(notebook, clean_python, tmp_path):
    other = magic("writefile", BLOCK.format(number=9))
    cells = [MAGICS, IMPORTS, BLOCK.format(number=1), other, MAGIC_NET, "scale = 2\nmodel = Net()"]
    assert notebook(*cells, SAVE_IT) == ""
    assert used(clean_python, tmp_path)[0] == "4 notebook_definitions"


@pytest.mark.parametrize("kind", ["run_cell_magic('time', '', {})", "run_line_magic('time', {})"])
def test_lambda_hook_in_magic_is_saved_by_source(kind, notebook, clean_python, tmp_path):
    hook = "h = model.register_forward_hook(lambda m, args, out: out * 10)"
    cells = [
        *(MAGICS, IMPORTS, BLOCK.format(number=1), MAGIC_NET, "scale = 2\nmodel = Net()"),
        *("get_ipython()." + kind.format(repr(hook)), SAVE_IT),
    ]
    assert notebook(*cells) == ""
    assert used(clean_python, tmp_path)[0] == "40 notebook_definitions"


def used(clean_python, tmp_path: Path) -> list[str]:
    code = """
        import inspect, sys, modpack
        model = modpack.load(path)
        print(model(1), type(model).__module__.split(".", 3)[3])
        print(inspect.getsource(sys.modules[type(model).__module__]))
        """
    return clean_python(code, path=tmp_path / "net.modpack").stdout.splitlines()


def test_notebook_model_includes_cell_definitions(notebook, clean_python, tmp_path):
    cells = [IMPORTS, BLOCK.format(number=1), NET, "scale = 2\nmodel = Net()", SAVE_IT]
    assert notebook(*cells) == ""
    first, *lines = used(clean_python, tmp_path)
    assert first == "4 notebook_definitions"
    assert "Definitions from a notebook " in lines[0]
    assert [line for line in lines if line[:1].isalpha()] == [
        "from torch import nn",
        "WIDTH = 3",
        "class Block(nn.Module):",
        "class Net(nn.Module):",
        "scale = 2",
    ]


def test_later_definition_of_rerun_cell_is_used(notebook, clean_python, tmp_path):
    cells = [
        *(IMPORTS, BLOCK.format(number=1), NET, "scale = 2\nmodel = Net()"),
        *(BLOCK.format(number=5), "scale = 10\nmodel = Net()", IMPORTS, SAVE_IT),
    ]
    assert notebook(*cells) == ""
    assert used(clean_python, tmp_path)[0] == "60 notebook_definitions"


def test_object_of_redefined_class_is_rejected(notebook):
    cells = [
        *(IMPORTS, BLOCK.format(number=1), NET, "scale = 2\nmodel = Net()"),
        *(BLOCK.format(number=5), SAVE_IT),
    ]
    printed = notebook(*cells)
    assert "at model.block" in printed and "was redefined" in printed
    assert "Re-create the object" in printed


def test_class_using_redefined_name_is_rejected(notebook):
    decorator = "def marked(cls):\n    cls.mark = {number}\n    return cls"
    cells = [
        *(IMPORTS, decorator.format(number=1), "@marked\nclass Net(nn.Module): pass"),
        *("model = Net()", decorator.format(number=2), SAVE_IT),
    ]
    printed = notebook(*cells)
    assert "__main__.Net" in printed and "it uses marked, which was redefined" in printed


APP = """
import torch
with open("weights.txt") as file:
    weight = int(file.read())
print("the app runs")
class Net(torch.nn.Module):
    def forward(self, x): return x + weight
model = Net()
"""


def test_command_line_treats_working_file_as_script(tmp_path, clean_python):
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "weights.txt").write_text("5")
    done = execute(tmp_path, "-m", "modpack", "export", "app.py:model", "-o", "net.modpack")
    assert done.returncode == 0, done.stderr
    use = "import modpack\nprint(modpack.load(path)(1))"
    assert clean_python(use, path=tmp_path / "net.modpack").stdout == "6\n"


def test_treat_as_script_accepts_any_module(project, tmp_path, monkeypatch, capsys):
    import modpack

    folder = project({"workingapp.py": APP, "weights.txt": "5"})
    monkeypatch.chdir(folder)
    import workingapp

    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.treat_as_script("workingapp")
        exporter.save_pickle("m", "o.pkl", workingapp.model)
        assert exporter.interned_modules() == ["workingapp_definitions"]
    capsys.readouterr()
    importer = modpack.PackageImporter(tmp_path / "net.modpack")
    assert importer.load_pickle("m", "o.pkl")(1) == 6
    assert capsys.readouterr().out == ""


def test_code_added_to_classes_later_is_included(story):
    script = """
        import functools
        from parts import Block, Derived
        K = 7
        def add_to(cls):
            return lambda function: setattr(cls, function.__name__, function)
        class Net(torch.nn.Module):
            act = torch.relu
            def helper(self):
                extra = 1  # binds the name of what is added
                return extra
        @add_to(Net)
        def forward(self, x): return x + K
        def extra(self): return K
        Net.extra = extra
        Net.act = torch.tanh
        Net.prop = property(lambda self: K + 1)
        Net.static = staticmethod(lambda: K + 2)
        Net.kind = classmethod(lambda cls: cls.__name__)
        Net.__len__ = lambda self: K + 3
        Net.part = functools.partialmethod(lambda self, n: n, 4)
        class Config: size = 5
        Net.Config = Config
        def maker(n):
            return lambda self: n
        Net.made = maker(6)
        @functools.total_ordering
        class Ordered:
            def __lt__(self, other): return True
        Ordered.__call__ = lambda self: K + 4
        @add_to(Block)
        def added(self): return K + 5
        Block.forward = lambda self, x: x * K
        Block.prop = property(lambda self: K + 6)
        saved = [Net(), Ordered(), Derived()]
        """
    files = {
        "parts.py": """
        class Block:
            def forward(self, x): return x
        class Derived(Block): pass
        """
    }
    use = """
        again = "again.modpack"
        with modpack.PackageExporter(again, importer=[importer, modpack.sys_importer]) as exporter:
            exporter.use_preset("pinned")
            exporter.save_pickle("m", "o.pkl", loaded)
        for net, ordered, block in loaded, modpack.PackageImporter(again).load_pickle("m", "o.pkl"):
            print(net(1), net.extra(), net.act is torch.tanh, net.prop, net.static(), net.kind(),
                  len(net), net.part(), net.Config.size, net.made(), ordered(), ordered > ordered,
                  block.added(), block.forward(2), block.prop)
        """
    printed = "8 7 True 8 9 Net 10 4 5 6 11 False 12 14 13\n"
    assert story(script, use, files) == 2 * printed


def test_code_that_decorators_and_bases_add_is_not_saved_again(story):
    script = """
        import dataclasses, typing
        @dataclasses.dataclass
        class Point:
            x: int = 1
        class Pair(typing.NamedTuple):
            a: int = 2
        class Likes(typing.Protocol):
            def f(self): ...
        class Real(Likes):
            def f(self): return 3
        saved = [Point(), Pair(), Real()]
        """
    use = "print(loaded[0].x, loaded[1].a, loaded[2].f(), hasattr(module(), '__modpack_filled__'))"
    assert story(script, use) == "1 2 3 False\n"


def test_class_with_the_name_of_its_imported_base_is_included(story):
    script = """
        from torch.nn import Linear, ReLU
        class Linear(Linear):
            def forward(self, x): return super().forward(x) * 0 + 5
        class Net:
            Linear = Linear
        saved = [Linear(1, 1), Net().Linear(1, 1)]
        """
    use = "print([each(torch.ones(1)).item() for each in loaded])"
    assert story(script, use) == "[5.0, 5.0]\n"


def test_class_with_the_name_of_its_base_in_the_script_says_so(tmp_path):
    script = """
        class Net: pass
        class Net(Net): pass
        saved = Net()
        """
    (tmp_path / "train.py").write_text(_script(script))
    failed = execute(tmp_path, "train.py").stderr
    assert "Net: it uses the former Net (" in failed
    assert "Give one of the two another name." in failed
