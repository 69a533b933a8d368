"""Presets: exports without rules, loaded without the libraries."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import pytest

import modpack
from modpack import PackageExporter
from modpack.core.plan import PackagingError, Plan
from modpack.core.rules import Action


def planned(source: str, preset: str = "hermetic", **rules: str) -> Plan:
    """Return the plan for the user's own module with this source."""
    with PackageExporter(None) as exporter:
        for action, pattern in rules.items():
            getattr(exporter, action)(pattern)
        exporter.use_preset(preset)
        exporter.save_source_string("mine", source)
        return exporter.plan()


def actions(plan: Plan) -> dict[str, str]:
    return {module: decision.action.value for module, decision in plan.decisions.items()}


def notes(plan: Plan, code: str) -> dict[str, str]:
    return {note.subject: note.message for note in plan.notes if note.code == code}


LAYERS = """
    import torch
    from layers_base import Base

    class Scale(Base):
        def forward(self, x):
            return x * self.factor
"""
BASE = """
    import torch

    class Base(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor([3.0]))
"""


def test_hermetic_package_loads_without_its_libraries(installed, clean_python, tmp_path):
    installed("layers", {"layers/__init__.py": LAYERS}, requires=["layers-base"])
    installed("layers-base", {"layers_base.py": BASE})
    model: Any = importlib.import_module("layers").Scale()
    plan = modpack.save(model, tmp_path / "net.modpack", preset="hermetic")
    assert {m: a for m, a in actions(plan).items() if m.startswith("layers")} == {
        "layers": "intern",
        "layers_base": "intern",
    }
    clean_python(
        """
        import importlib.util, modpack, torch
        assert importlib.util.find_spec("layers") is None
        assert modpack.load(path)(torch.ones(2)).tolist() == [3.0, 3.0]
        """,
        path=tmp_path / "net.modpack",
    )


def test_pinned_externs_installed_distributions(installed):
    installed("layers", {"layers/__init__.py": "import layers_base"}, requires=["layers-base"])
    installed("layers-base", {"layers_base.py": ""})
    assert actions(planned("import layers", "pinned")) == {"layers": "extern", "mine": "intern"}


def test_hermetic_externs_native_distributions_and_requirements(installed):
    installed("fast", {"fast/__init__.py": "", "fast/_speed.so": ""}, requires=["helper"])
    installed("helper", {"helper.py": ""}, requires=["deeper"])
    installed("deeper", {"deeper.py": ""})
    installed("free", {"free.py": "import deeper"})
    plan = planned("import free, helper, fast")
    assert actions(plan) == {
        "mine": "intern",
        "free": "intern",
        "helper": "extern",
        "deeper": "extern",
        "fast": "extern",
    }
    assert plan.decisions["fast"].why.endswith("fast contains native code, so it is extern")
    assert plan.decisions["helper"].why.endswith("extern distribution fast requires helper")


def test_hermetic_interns_requirements_of_optional_extern(installed):
    installed("fast", {"fast/__init__.py": "", "fast/_speed.so": ""}, requires=["helper"])
    installed("helper", {"helper.py": ""})
    source = "import helper\ntry:\n    import fast\nexcept ImportError:\n    fast = None"
    plan = planned(source)
    assert actions(plan) == {"mine": "intern", "helper": "intern", "fast": "extern"}
    assert plan.warnings() == ()


def test_hermetic_externs_requirements_of_user_extern(installed):
    installed("suite", {"suite.py": ""}, requires=["helper"])
    installed("helper", {"helper.py": ""})
    plan = planned("import suite, helper", extern="suite")
    assert actions(plan) == {"mine": "intern", "suite": "extern", "helper": "extern"}


def test_hermetic_externs_requirements_of_torch():
    assert actions(planned("import sympy"))["sympy"] == "extern"


def test_user_rules_precede_preset(installed):
    installed("layers", {"layers.py": ""})
    assert actions(planned("import layers", mock="layers"))["layers"] == "mock"
    assert actions(planned("import layers", extern="layers"))["layers"] == "extern"


def test_hermetic_excludes_unrequired_unloaded_distribution(installed):
    installed("host", {"host.py": "def plot():\n    import plots\n"})
    installed("plots", {"plots.py": ""})
    importlib.import_module("host")
    plan = planned("import host")
    assert "plots" not in plan.decisions
    assert (
        "host does not require its distribution" in notes(plan, "optional-import-missing")["plots"]
    )


@pytest.mark.parametrize("why", ["required", "loaded", "unknown"])
def test_hermetic_interns_possibly_needed_modules(installed, why):
    requires = ["plots"] if why == "required" else []
    installed("host", {"host.py": "def plot():\n    import plots\n"}, requires=requires)
    installed("plots", {"plots.py": ""})
    if why != "unknown":  # no loaded importer shows that it is optional
        importlib.import_module("host")
    if why == "loaded":
        importlib.import_module("plots")
    assert actions(planned("import host"))["plots"] == "intern"


def test_missing_import_is_problem_only_in_own_code(installed):
    installed("host", {"host.py": "def fast():\n    import no_such_backend\n"})
    plan = planned("import host")
    assert plan.problems == ()
    assert "never imports it" in notes(plan, "optional-import-missing")["no_such_backend"]
    with pytest.raises(PackagingError, match="no_such_backend"):
        planned("import host\ndef f():\n    import no_such_backend")


def test_inspect_shortens_many_notes_of_absent_modules(installed):
    lines = "".join(f"    import no_such_{n}\n" for n in range(9))
    installed("host", {"host.py": f"def fast():\n{lines}"})
    plan = planned("import host")
    assert len(notes(plan, "optional-import-missing")) == 9
    assert "no_such" not in str(plan)
    assert str(plan).endswith("9 more notes of severity info in plan.notes")


def test_lazy_export_is_followed_to_its_module(installed):
    lazy = "import importlib\ndef __getattr__(name):\n"
    lazy += "    value = getattr(importlib.import_module('zoo.' + name.lower()), name)\n"
    lazy += "    globals()[name] = value\n    return value\n"
    installed("zoo", {"zoo/__init__.py": lazy, "zoo/cat.py": "class Cat: pass", "zoo/dog.py": ""})
    assert importlib.import_module("zoo").Cat.__name__ == "Cat"
    plan = planned("from zoo import Cat")
    assert actions(plan) == {"mine": "intern", "zoo": "intern", "zoo.cat": "intern"} | {
        "importlib": "extern"
    }


def test_hermetic_interns_loaded_modules_of_dynamic_library(installed):
    loader = "import importlib\ndef load(name):\n    return importlib.import_module(name)\n"
    installed("zoo", {"zoo/__init__.py": loader, "zoo/cat.py": "", "zoo/dog.py": ""})
    importlib.import_module("zoo").load("zoo.cat")
    plan = planned("import zoo")
    assert [m for m in plan.modules(Action.INTERN) if m.startswith("zoo")] == ["zoo", "zoo.cat"]
    assert list(notes(plan, "dynamic-import-library")) == ["zoo"]
    assert notes(plan, "dynamic-import") == {}, "one remark a library is enough"


def test_module_created_by_library_needs_no_file(installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "made.moves", None)  # restored after the test
    del sys.modules["made.moves"]
    maker = "import sys, types\nsys.modules['made.moves'] = types.ModuleType('made.moves')\n"
    installed("made", {"made/__init__.py": maker, "made/user.py": "import made.moves"})
    importlib.import_module("made.user")
    plan = planned("import made.user")
    assert plan.problems == ()
    assert "code creates it at run time" in notes(plan, "optional-import-missing")["made.moves"]


@pytest.mark.parametrize("preset", ["hermetic", "pinned"])
def test_loaded_module_with_deleted_file_is_a_problem(project, preset):
    root = project({"users.py": "import lost", "lost.py": ""})
    importlib.import_module("users")
    (root / "lost.py").rename(root / "renamed.py")
    with pytest.raises(PackagingError, match=r"'lost' is .*, not a readable source file\n"):
        planned("import users", preset)


def test_module_finds_itself_in_sys_modules_by_literal_name(installed, packaged):
    source = "import sys\nKEPT = 7\ndef me():\n    return sys.modules['shelf.me']\n"
    importer = packaged({"shelf/__init__.py": "", "shelf/me.py": source})
    me = importer.import_module("shelf.me")
    assert me.me() is me
    assert "shelf.me" not in sys.modules


def test_python_package_that_loads_itself_by_file_is_itself(packaged):
    source = (
        "import importlib.util, sys, pathlib\n"
        "def again():\n"
        "    spec = importlib.util.spec_from_file_location('shelf', __file__)\n"
        "    module = importlib.util.module_from_spec(spec)\n"
        "    spec.loader.exec_module(module)\n"
        "    return module.__name__, sys.modules['shelf']\n"
        "from . import part\n"
    )
    importer = packaged({"shelf/__init__.py": source, "shelf/part.py": ""})
    shelf = importer.import_module("shelf")
    assert shelf.again() == (shelf.__name__, shelf)


def test_reexport_keeps_modules_from_live_evidence(installed, clean_python, tmp_path):
    installed(
        "zoo",
        {
            "zoo/__init__.py": "import importlib, torch\n"
            "class Net(torch.nn.Module):\n"
            "    def forward(self, x):\n"
            "        return importlib.import_module('zoo.' + 'cat').sound(x)\n",
            "zoo/cat.py": "def sound(x):\n    return x + 1\n",
        },
    )
    model: Any = importlib.import_module("zoo").Net()
    model(1)
    modpack.save(model, tmp_path / "first.modpack", preset="hermetic")
    clean_python(
        """
        import modpack
        loaded = modpack.load(path)
        importers = [modpack.importer_of(loaded), modpack.sys_importer]
        modpack.save(loaded, "second.modpack", preset="hermetic", importer=importers)
        assert modpack.load("second.modpack")(1) == 2
        """,
        path=tmp_path / "first.modpack",
    )


def test_reexport_keeps_modules_excluded(installed, tmp_path):
    source = (
        "import torch\nclass Net(torch.nn.Module):\n    def plot(self):\n        import plots\n"
    )
    installed("zoo", {"zoo.py": source})
    installed("plots", {"plots.py": ""})
    model: Any = importlib.import_module("zoo").Net()
    modpack.save(model, tmp_path / "first.modpack", preset="hermetic")
    loaded = modpack.load(tmp_path / "first.modpack")
    importers = [modpack.importer_of(loaded), modpack.sys_importer]
    with PackageExporter(None, importers) as exporter:
        exporter.use_preset("hermetic")
        exporter.save_model("m", "m.pkl", loaded)
        plan = exporter.plan()
    assert "plots" not in plan.decisions
    assert "was exported without plots" in notes(plan, "optional-import-missing")["plots"]


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="not installed")
@pytest.mark.parametrize("preset", ["hermetic", "pinned"])
def test_python_test_modules_are_extern(preset):
    found = actions(
        planned("def tidy():\n    from test import support\n    import _testcapi", preset)
    )
    assert found["test.support"] == "extern"
    assert found["_testcapi"] == "extern"
    assert not [
        module for module, action in found.items() if action == "intern" and module != "mine"
    ]


def test_own_package_named_like_python_tests_is_interned(project):
    project({"test/__init__.py": "", "test/support.py": ""})
    assert actions(planned("import test.support"))["test.support"] == "intern"
