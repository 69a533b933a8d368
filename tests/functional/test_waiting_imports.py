"""Imports that wait in saved packages: the trial run of a save, and loading what it recorded."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from click.testing import CliRunner

import modpack
from modpack.archive import layout
from modpack.archive.reader import open_archive
from modpack.cli import cli

ONE = torch.ones(1, 3)
COUNT = 32
NET = """
import torch
from torch import nn
from market.tools import scale
{imports}

def unused(): return {names}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
    def forward(self, x):
        return scale(self.layer(x))
"""


def library(more=None):
    """A library of a model and of many modules that its forward does not use."""
    names = [f"m{number}" for number in range(COUNT)]
    imports = "\n".join(f"from market.{name} import value as {name}" for name in names)
    return {
        "market/__init__.py": "",
        "market/tools.py": "def scale(x): return x * 2\n",
        "market/tables.py": "TABLE, NAMES = {}, []\n",
        "market/net.py": NET.format(imports=imports, names=", ".join(names)),
        **{f"market/{name}.py": "value = 1\n" for name in names},
        **(more or {}),
    }


@pytest.fixture
def save(project, tmp_path):
    """Write a project, save its model, and return the package and the live output."""

    def package(files, **options):
        project(files)
        from market.net import Net

        torch.manual_seed(0)
        model = Net().eval()
        path = tmp_path / "net.modpack"
        modpack.save(model, path, intern="market.**", example_inputs=(ONE,), **options)
        return path, model(ONE)

    return package


def recorded(path):
    with open_archive(path) as archive:
        if not archive.has(layout.WAITING):
            return None
        return json.loads(archive.read(layout.WAITING))


def loaded_modules(model):
    prefix = modpack.importer_of(model).id() + "."
    return {name.removeprefix(prefix) for name in sys.modules if name.startswith(prefix)}


def test_save_records_names_that_can_wait(save):
    path, output = save(library())
    record = recorded(path)
    assert record["modules"]["market.net"] == sorted(f"m{number}" for number in range(COUNT))
    assert record["modules"]["market.tools"] == [] == record["companions"]
    model = modpack.load(path)
    assert torch.equal(model(ONE), output)
    assert loaded_modules(model) == {"market", "market.net", "market.tools"}
    assert modpack.self_test(path).passed


def test_reports_say_what_waits(save):
    entry = "from market.tables import TABLE\nvalue = 1\nclass Entry: ...\nTABLE['e'] = Entry\n"
    path, _ = save(library({"market/m7.py": entry}))
    run = CliRunner().invoke
    for command in ("inspect", "audit"):
        shown = " ".join(run(cli, [command, str(path)]).output.split())
        assert "imports wait" in shown and f"{COUNT} names in 3 modules, until they are" in shown
    for module, expected in [
        ("market.m3", "once a name of it is looked up"),
        ("market.tools", "at load, because loading or the examples need it"),
        ("market.m7", "together with market.tables, which it changes"),
    ]:
        assert expected in " ".join(run(cli, ["why", str(path), module]).output.split())


def test_load_executes_all_imports_on_request(save):
    path, output = save(library())
    model = modpack.load(path, lazy=False)
    assert torch.equal(model(ONE), output)
    assert len(loaded_modules(model)) == COUNT + 3


def test_module_that_registers_a_class_is_loaded_with_the_table(save):
    entry = "from market.tables import TABLE\nvalue = 1\nclass Entry: ...\nTABLE['entry'] = Entry\n"
    inner = "from market.entry import value\n"
    path, output = save(library({"market/m7.py": inner, "market/entry.py": entry}))
    assert recorded(path)["companions"] == [["market.tables", "market.entry"]]
    model = modpack.load(path)
    assert torch.equal(model(ONE), output)
    assert loaded_modules(model) == {"market", "market.net", "market.tools"}
    tables = modpack.importer_of(model).import_module("market.tables")
    assert tables.TABLE["entry"].__name__ == "Entry"
    assert "market.m8" not in loaded_modules(model)


def test_module_that_is_registered_under_its_own_class_may_wait(save):
    tables = """
        TABLE = {}
        class Node:
            def __init__(self, kind, make): self.parts = [kind, make]
        """
    entry = """
        from market.tables import TABLE, Node
        value = 1
        class Entry: ...
        def make(): return Entry()
        TABLE[Entry] = Node(Entry, make)
        TABLE["market.m7.Entry"] = Entry
        """
    used = "import market.tables\ndef scale(x): return x * 2 + len(market.tables.__name__) * 0\n"
    path, output = save(
        library({"market/m7.py": entry, "market/tables.py": tables, "market/tools.py": used})
    )
    assert recorded(path)["companions"] == []
    model = modpack.load(path)
    assert torch.equal(model(ONE), output)
    assert "market.m7" not in loaded_modules(model)


@pytest.mark.parametrize(
    "path", ["xml.dom.minidom", "torch.utils.model_zoo"], ids=["plain", "torch has a hook"]
)
def test_submodule_of_a_library_is_imported_when_it_is_read(save, clean_python, path):
    root, name = path.partition(".")[0], path.rpartition(".")[2]
    files = library({"market/m7.py": f"import {path} as {name}\nvalue = 1\ndef f(): {name}\n"})
    read = f"{root}.__name__\ndef find(): return {path}.__name__\n"
    files["market/tools.py"] += f"import {root}\n{read}"
    file, _ = save(files)
    code = """
        import sys, torch, modpack
        model = modpack.load(file)
        tools = modpack.importer_of(model).import_module("market.tools")
        print(path in sys.modules, bool(tools.find()), path in sys.modules)
        parent = sys.modules[path.partition(".")[0]]
        for name in path.split(".")[1:-1]:
            parent = getattr(parent, name)
            print(hasattr(parent, "__getattr__"), hasattr(parent, "missing"))
        """
    lines = clean_python(code, file=file, path=path).stdout.splitlines()
    assert lines == ["False True True", *["False False"] * (path.count(".") - 1)]


def test_submodule_of_a_library_is_an_attribute_before_its_parent_is_imported(save, clean_python):
    files = library({"market/m7.py": "from xml.dom.minidom import parseString\nvalue = 1\n"})
    read = "def parse(text): return xml.dom.minidom.parseString(text).documentElement.tagName\n"
    files["market/tools.py"] += f"import xml\n{read}"
    path, _ = save(files)
    code = """
        import modpack
        model = modpack.load(path)
        print(modpack.importer_of(model).import_module("market.tools").parse("<pen/>"))
        """
    assert clean_python(code, path=path).stdout == "pen\n"


def test_import_that_fills_a_memo_of_another_module_may_wait(save):
    memo = """
        _ratio = None
        def ratio():
            global _ratio
            if _ratio is None:
                _ratio = 2
            return _ratio
        def scale(x): return x * 2
        """
    files = library({"market/m7.py": "from market.tools import ratio\nvalue = ratio()\n"})
    record = recorded(save({**files, "market/tools.py": memo})[0])
    assert "m7" in record["modules"]["market.net"]


def test_module_that_adds_plain_data_to_a_container_is_loaded_with_it(save):
    files = library(
        {"market/m7.py": "from market.tables import NAMES\nNAMES.append('m7')\nvalue = 1\n"}
    )
    files["market/tools.py"] = (
        "from market.tables import NAMES\ndef scale(x): return x if NAMES is None else x * 2\n"
    )
    path, output = save(files)
    bound = ("market.tables", "market.tools")
    assert recorded(path)["companions"] == [[module, "market.m7"] for module in bound]
    model = modpack.load(path)
    assert torch.equal(model(ONE), output)
    needed = {"market", "market.net", "market.tools", "market.tables", "market.m7"}
    assert loaded_modules(model) == needed


def test_module_that_adds_data_through_a_function_is_loaded_with_the_container(save):
    tools = """
        NAMES = []
        def register(name): NAMES.append(name)
        def scale(x): return x * 2
        """
    entry = "from market.tools import register\nvalue = 1\nregister('m7')\n"
    path, output = save(library({"market/tools.py": tools, "market/m7.py": entry}))
    assert recorded(path)["companions"] == [["market.tools", "market.m7"]]
    model = modpack.load(path)
    assert torch.equal(model(ONE), output)
    assert modpack.importer_of(model).import_module("market.tools").NAMES == ["m7"]
    assert loaded_modules(model) == {"market", "market.net", "market.tools", "market.m7"}


def test_object_that_notes_a_computed_answer_lets_its_users_wait(save):
    tools = """
        class Found:
            def __bool__(self):
                self.answer = True
                return self.answer
        FOUND = Found()
        def scale(x): return x * 2
        """
    user = "from market.tools import FOUND\nvalue = bool(FOUND)\n"
    record = recorded(save(library({"market/tools.py": tools, "market/m7.py": user}))[0])
    assert "m7" in record["modules"]["market.net"]
    assert not record["companions"]


def test_circle_that_only_the_original_order_avoids_does_not_wait(save):
    # market.early has no `mark` yet if it is imported first, and imports market.use.
    files = library(
        {
            "market/early.py": """
                from market.use import same
                ONE = same(1)
                def mark(function): return function
                """,
            "market/use.py": """
                def same(x): return x
                from market.early import mark
                @mark
                def double(x): return x * 2
                """,
            "market/tools.py": """
                from market.use import double
                from market.early import ONE
                def scale(x): return ONE * double(x)
                """,
        }
    )
    path, output = save(files)
    modules = recorded(path)["modules"]
    assert modules["market.tools"] == modules["market.early"] == modules["market.use"] == []
    assert len(modules["market.net"]) == COUNT
    assert torch.equal(modpack.load(path)(ONE), output)


def test_imports_wait_in_a_module_whose_objects_change_their_class(save):
    other = "\nclass Other:\n    def become(self, kind):\n        self.__class__ = kind\n"
    files = library()
    files["market/net.py"] += other
    assert len(recorded(save(files)[0])["modules"]["market.net"]) == COUNT


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("import market.tables as t\nt.NAMES.append('m7')\nvalue = len(t.NAMES)\n", "net.NAMES"),
        ("import market.tools\nvalue = 1\nmarket.tools.level = 1\n", "tools.level"),
        ("import market.tools\nvalue = 1\nmarket.tools.choose(7)\n", "tools.chosen"),
    ],
)
def test_import_that_changes_plain_data_lets_none_wait(save, change, name):
    files = library({"market/m7.py": change})
    files["market/net.py"] = "from market.tables import NAMES\n" + files["market/net.py"]
    files["market/net.py"] = files["market/net.py"].replace(
        "return scale", "NAMES\n        return scale"
    )
    files["market/tools.py"] += "level = 0\nchosen = None\n"
    files["market/tools.py"] += "def choose(x):\n    global chosen\n    chosen = x\n"
    path, _ = save(files)
    assert recorded(path) is None
    for command in (["inspect", str(path)], ["why", str(path), "market.m3"]):
        shown = " ".join(CliRunner().invoke(cli, command).output.split())
        assert f"importing what waits changes market.{name}" in shown


@pytest.mark.parametrize(("count", "options"), [(COUNT, {"lazy": False}), (2, {})])
def test_save_records_nothing_if_it_is_off_or_saves_nothing(save, count, options, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "COUNT", count)
    assert recorded(save(library(), **options)[0]) is None


def test_compiled_model_sees_all_names(save):
    path, output = save(library())
    model = modpack.load(path)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(ONE), output)
    assert len(loaded_modules(model)) == COUNT + 3
    assert type(sys.modules[type(model).__module__]) is type(sys)


MARKED = """
import torch

@torch.compiler.disable
def outside(x): return x + 1

@torch.compiler.disable(recursive=False)
def shallow(x): return x + 1

class Steps:
    @torch.compiler.disable
    def step(self, x): return x * 2

def call(x): return outside(x) * 2
"""


MARKERS = """
try:
    from torch._dynamo import allow_in_graph as maybe_allow_in_graph
except ImportError:
    def maybe_allow_in_graph(kind): return kind
"""
ALLOWED = """
from markers import maybe_allow_in_graph

@maybe_allow_in_graph
def outside(x): return x + len(str(x.shape)) * 0

@maybe_allow_in_graph
class Kind: ...

def call(x): return outside(x) * 2
"""


def test_markers_of_the_compiler_itself_do_not_import_it(packaged, clean_python):
    path = packaged({"markers.py": MARKERS, "allowed.py": ALLOWED}).filename
    run = clean_python(
        """
        import sys, torch, modpack
        importer = modpack.PackageImporter(path, lazy=True)
        allowed = importer.import_module("allowed")
        print("torch._dynamo" in sys.modules, allowed.call(torch.ones(1)).item())
        print(allowed.Kind.__name__, allowed.outside.__name__)
        targets = []
        def backend(graph, inputs):
            targets.extend(n.target for n in graph.graph.nodes if n.op == "call_function")
            return graph
        print(torch.compile(allowed.call, backend=backend)(torch.ones(1)).item())
        print(targets[0] is allowed.outside, len(targets))
        """,
        path=path,
    )
    assert run.stdout.splitlines() == ["False 2.0", "Kind outside", "2.0", "True 2"]


def test_compiler_decorators_are_noted_until_the_compiler_is_imported(packaged, clean_python):
    path = packaged({"marked.py": MARKED}).filename
    run = clean_python(
        """
        import sys, torch, modpack
        importer = modpack.PackageImporter(path, lazy=True)
        marked = importer.import_module("marked")
        print("torch._dynamo" in sys.modules, marked.call(1), marked.Steps().step(2))
        print(marked.outside.__name__, marked.shallow(1))
        graphs = []
        def backend(graph, inputs):
            graphs.append([node.op for node in graph.graph.nodes].count("call_function"))
            return graph
        print(torch.compile(marked.call, backend=backend)(torch.ones(1)).item(), graphs)
        """,
        path=path,
    )
    assert run.stdout.splitlines() == ["False 4 4", "outside 2", "4.0 [1]"]
