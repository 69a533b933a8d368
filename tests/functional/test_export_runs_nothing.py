"""An export reads code and never executes or imports it."""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from modpack import Action, PackageExporter, PackagingError, PackagingErrorReason

ROOTS_OF_OUR_OWN = ("modpack", "torch", "importlib_metadata", "packaging", "zipp")


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file that exists only if a module with :func:`sings` was executed."""
    return tmp_path / "canary.txt"


def sings(canary: Path) -> str:
    return f"open({str(canary)!r}, 'a').write(__name__ + '\\n')\n"


def export(saved: str, rules: Callable[[PackageExporter], object]) -> PackageExporter:
    """Save a module named ``main_code`` with this source, under these rules."""
    with PackageExporter(io.BytesIO()) as exporter:
        rules(exporter)
        exporter.save_source_string("main_code", saved)
    return exporter


@pytest.mark.parametrize("action", [Action.INTERN, Action.EXTERN, Action.MOCK])
def test_code_of_a_matched_module_is_never_run(project, canary, action):
    project({"singer/__init__.py": sings(canary), "singer/deep/voice.py": sings(canary)})
    exporter = export(
        "import singer.deep.voice\nfrom singer import deep",
        lambda e: getattr(e, action.value)("singer.**"),
    )
    assert exporter.plan().decisions["singer.deep.voice"].action is action
    assert exporter.plan().decisions["singer"].action is action
    assert not canary.exists()
    assert not [name for name in sys.modules if name.startswith("singer")]


def test_denied_module_is_never_run(project, canary):
    project({"singer/__init__.py": sings(canary), "singer/voice.py": sings(canary)})
    with pytest.raises(PackagingError) as failure:
        export("import singer.voice", lambda e: e.deny("singer.voice"))
    assert failure.value.problems[0].code == PackagingErrorReason.DENIED
    assert not canary.exists()


RAISES = "raise RuntimeError('this module must not be imported')\n"


def test_denied_module_that_raises_on_import_is_still_denied(project):
    project({"broken.py": RAISES})
    with pytest.raises(PackagingError) as failure:
        export("import broken", lambda e: (e.deny("broken"), e.intern("**")))
    assert [(p.subject, p.code) for p in failure.value.problems] == [
        ("broken", PackagingErrorReason.DENIED)
    ]


@pytest.mark.parametrize("action", [Action.INTERN, Action.EXTERN, Action.MOCK])
def test_module_raising_on_import_is_decided_normally(project, action):
    project({"broken/__init__.py": RAISES, "broken/part.py": RAISES})
    exporter = export("import broken.part", lambda e: getattr(e, action.value)("broken.**"))
    assert exporter.plan().modules(action) == sorted(
        ["broken", "broken.part"] + (["main_code"] if action is Action.INTERN else [])
    )


def test_saving_a_module_by_name_runs_neither_it_nor_its_parents(project, canary):
    project({"singer/__init__.py": sings(canary), "singer/voice.py": sings(canary)})
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("singer.**")
        exporter.save_module("singer.voice")
    assert exporter.interned_modules() == ["singer", "singer.voice"]
    assert not canary.exists()


def test_from_import_loads_neither_package_nor_submodule(project, canary):
    project(
        {
            "singer/__init__.py": "from .alto import low\n" + sings(canary),
            "singer/alto.py": "low = 1\n" + sings(canary),
            "singer/tenor.py": sings(canary),
        }
    )
    exporter = export("from singer import tenor, low", lambda e: e.intern("singer.**"))
    assert exporter.interned_modules() == ["main_code", "singer", "singer.alto", "singer.tenor"]
    assert not canary.exists()


@pytest.mark.filterwarnings("ignore:.*is computed at run time:modpack.errors.ModpackWarning")
def test_loaded_modules_getattr_is_not_triggered(project, canary):
    project(
        {
            "lazyhouse/__init__.py": f"""
                def __getattr__(name):
                    if name.startswith("__"):
                        raise AttributeError(name)
                    open({str(canary)!r}, "a").write(name)
                    import importlib
                    return importlib.import_module("." + name, __name__)
            """,
            "lazyhouse/attic.py": sings(canary),
        }
    )
    importlib.import_module("lazyhouse")
    exporter = export("from lazyhouse import attic, cellar", lambda e: e.intern("lazyhouse.**"))
    assert "lazyhouse.attic" in exporter.interned_modules()
    assert not canary.exists()
    assert "lazyhouse.attic" not in sys.modules


def test_module_that_importlib_loads_lazily_stays_unloaded(project, canary):
    root = project({"sleeper.py": "from_inside = 1\n" + sings(canary)})
    spec = importlib.util.spec_from_file_location("sleeper", root / "sleeper.py")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sleeper = importlib.util.module_from_spec(spec)
    sys.modules["sleeper"] = sleeper
    spec.loader.exec_module(sleeper)

    exporter = export("from sleeper import from_inside", lambda e: e.intern("sleeper"))
    assert exporter.interned_modules() == ["main_code", "sleeper"]
    assert not canary.exists()
    assert sleeper.from_inside == 1 and canary.exists()


def test_object_in_sys_modules_is_not_evaluated(project, monkeypatch):
    project({"houseproxy.py": "x = 1"})

    class Proxy:
        __slots__ = ()

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(f"asked for {name}")

    monkeypatch.setitem(sys.modules, "houseproxy", Proxy())
    exporter = export("from houseproxy import x", lambda e: e.intern("houseproxy"))
    assert exporter.interned_modules() == ["houseproxy", "main_code"]


def test_meta_path_finders_are_used_without_loaders(monkeypatch):
    class Loader:
        def create_module(self, spec: ModuleSpec) -> None:
            raise RuntimeError("a module was made")

        def exec_module(self, module: object) -> None:
            raise RuntimeError("a module was run")

        def get_source(self, name: str) -> str:
            return "import conjured_too\n"

    class Finder:
        def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
            return ModuleSpec(name, Loader()) if name.startswith("conjured") else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    exporter = export("import conjured", lambda e: e.intern("conjured*"))
    assert exporter.interned_modules() == ["conjured", "conjured_too", "main_code"]


def test_finder_that_rejects_import_makes_module_missing(project, monkeypatch):
    class Forbids:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "forbidden_fruit":
                raise ModuleNotFoundError("not in this house", name=name)

    project({"forbidden_fruit.py": ""})
    monkeypatch.setattr(sys, "meta_path", [Forbids(), *sys.meta_path])
    code = "try:\n    import forbidden_fruit\nexcept ImportError:\n    pass\n"
    plan = export(code, lambda e: e.intern("**")).plan()
    assert "forbidden_fruit" not in plan.decisions and plan.notes


def test_module_blocked_in_sys_modules_is_missing(project, monkeypatch):
    project({"blocked_road.py": ""})
    monkeypatch.setitem(sys.modules, "blocked_road", None)  # a blocked import
    code = "try:\n    import blocked_road\nexcept ImportError:\n    pass\n"
    assert "blocked_road" not in export(code, lambda e: e.intern("**")).plan().decisions


def test_export_loads_no_module_but_modpacks_own(project, clean_python, tmp_path):
    root = project(
        {
            "mylib/__init__.py": "from mylib.net import make\nimport colorsys, mylib.extra",
            "mylib/net.py": """
                import xml.dom.minidom, wave
                def make(): return {"a": 1}
            """,
            "mylib/extra/__init__.py": "import sympy, networkx.drawing",
            "mylib/unused.py": "",
        }
    )
    done = clean_python(
        """
        import sys
        sys.path.insert(0, root)
        import torch, importlib_metadata, packaging.requirements
        import modpack.saving.pickler, modpack.exporter
        before = set(sys.modules)
        with modpack.PackageExporter(target) as exporter:
            exporter.extern(["sympy.**", "networkx.**"])
            exporter.mock("mylib.extra.**")
            exporter.intern("mylib.**")
            exporter.save_module("mylib.net")
            exporter.save_pickle("m", "m.pkl", {"t": torch.ones(2)})
        print(sorted(set(sys.modules) - before))
        """,
        root=str(root),
        target=tmp_path / "out.pt",
    )
    loaded = done.stdout.strip("[]\n").replace("'", "").split(", ")
    strangers = [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    assert [n for n in strangers if n and n.partition(".")[0] not in ROOTS_OF_OUR_OWN] == []
    assert not {"colorsys", "wave", "xml.dom.minidom"} & set(loaded)


def test_repr_of_saved_class_is_not_called(project):
    asks = "class Asked(type):\n    def __repr__(cls): raise RuntimeError('asked')\n"
    project({"singer.py": f"{asks}class Voice(metaclass=Asked): pass\n"})
    import singer

    with PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("singer")
        exporter.save_pickle("main", "voice.pkl", singer.Voice())
    assert exporter.plan().decisions["singer"].action is Action.INTERN
