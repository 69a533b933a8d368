"""Extern modules: imports of packaged code from the loading environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import modpack
from modpack.errors import DisallowedModuleError, ExternNotFoundError, UnpicklingError


def test_extern_parent_is_the_real_module(packaged):
    user = packaged(
        {
            "user.py": """
            import concurrent.futures.thread
            from concurrent.futures import Future as by_from
            import torch.nn.functional
            import os.path as path, xml.dom.minidom
            by_attribute = concurrent.futures.Future
            ones = torch.ones(2)
            relu = torch.nn.functional.relu
            dom = xml.dom.Node
            """
        }
    ).import_module("user")
    import concurrent.futures

    assert user.by_attribute is user.by_from is concurrent.futures.Future
    assert user.concurrent is concurrent
    assert user.torch is torch
    assert user.relu is torch.nn.functional.relu


def test_interned_module_below_extern_package_loads(packaged, project):
    project(
        {
            "outer/__init__.py": "name = 'host outer'",
            "outer/tool.py": "name = 'host tool'",
            "outer/late.py": "name = 'host late'",
        }
    )
    importer = packaged(
        {
            "outer/mine/__init__.py": "from outer import tool\nfrom outer import name",
            "outer/mine/part.py": "import outer.tool, outer\nname = outer.tool.name + outer.name",
            "user.py": """
            import outer.mine.part
            import outer.tool
            from outer import mine, tool
            values = (outer.name, outer.tool.name, tool.name, mine.name, outer.mine.part.name)
            def local():
                import outer.tool, outer.mine
                from outer import name
                return outer.tool.name, outer.mine.name, name
            """,
        },
        extern=["outer", "outer.tool", "outer.late"],
    )
    user = importer.import_module("user")
    expected = ("host outer", "host tool", "host tool", "host outer", "host toolhost outer")
    assert user.values == expected
    assert user.local() == ("host tool", "host outer", "host outer")
    import outer

    assert not hasattr(outer, "mine")
    assert user.outer.tool is sys.modules["outer.tool"]


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_extern_module_below_interned_package_loads(project, tmp_path, clean_python, namespace):
    host = {
        "half/__init__.py": "side = 'host'",
        "half/native.py": "name = 'host native'",
        "half/pure.py": "side = 'host'",
    }
    folder = project(host)
    with modpack.PackageExporter(tmp_path / "half.pt") as exporter:
        exporter.extern("half.native")
        exporter.save_source_string("half", "side = 'packaged'\nfrom . import native", True)
        exporter.save_source_string(
            "half.pure", "import half.native as native\nfrom half import side\nname = native.name"
        )
    clean_python(
        """
        import sys, modpack
        sys.path.insert(0, str(host))
        importer = modpack.PackageImporter(path, namespace=namespace)
        pure = importer.import_module("half.pure")
        assert (pure.side, pure.name) == ("packaged", "host native"), vars(pure)
        assert importer.import_module("half.native").name == "host native"
        assert importer.import_module("half").native is pure.native
        assert pure.native is sys.modules["half.native"]
        assert (sys.modules["half"].side == "host") == (namespace == "private")
        """,
        host=folder,
        path=tmp_path / "half.pt",
        namespace=namespace,
    )


def test_mixed_namespace_package_works_under_real_names(project, tmp_path, clean_python):
    folder = project({"cloud/storage.py": "name = 'host storage'"})
    with modpack.PackageExporter(tmp_path / "cloud.pt") as exporter:
        exporter.extern("cloud.storage")
        exporter.save_source_string(
            "cloud.mine", "import cloud.storage\nname = cloud.storage.name", dependencies=False
        )
        exporter.save_source_string("user", "import cloud.storage", dependencies=True)
    for namespace in ("private", "process"):
        clean_python(
            """
            import sys, modpack
            sys.path.insert(0, str(host))
            importer = modpack.PackageImporter(path, namespace=namespace)
            assert importer.import_module("cloud.mine").name == "host storage"
            assert importer.import_module("user").cloud.storage.name == "host storage"
            """,
            host=folder,
            path=tmp_path / "cloud.pt",
            namespace=namespace,
        )


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_packaged_code_imports_its_own_version(packaged, project, namespace):
    project(
        {
            "versioned/__init__.py": "version = 'host'",
            "versioned/only_host.py": "version = 'host'",
            "undeclared.py": "version = 'host'",
        }
    )
    importer = packaged(
        {
            "versioned/__init__.py": "version = 'packaged'",
            "versioned/util.py": "import versioned\nfrom versioned import version as here",
            "user.py": """
            import versioned
            from versioned.util import here
            def submodule():
                import versioned.only_host
            def by_from():
                from versioned import only_host
            def undeclared():
                import undeclared
            def dynamic():
                import importlib
                importlib.import_module("undeclared")
            def guarded():
                try:
                    import undeclared
                except ImportError:
                    return "fallback"
            def guarded_by_spec():
                from importlib.util import find_spec
                return find_spec("undeclared")
            """,
        },
        namespace=namespace,
        dependencies=False,
    )
    user = importer.import_module("user")
    assert user.versioned.version == user.here == "packaged"
    with pytest.raises(ModuleNotFoundError, match=r"versioned\.only_host.*Intern or extern"):
        user.submodule()
    with pytest.raises(ImportError, match="only_host"):
        user.by_from()
    for call in (user.undeclared, user.dynamic):
        with pytest.raises(ModuleNotFoundError, match="does not intern, extern, or mock"):
            call()
    assert user.guarded() == "fallback"
    assert user.guarded_by_spec() is None
    with pytest.raises(ModuleNotFoundError, match="does not intern"):
        importer.import_module("undeclared")


def test_missing_extern_names_its_requirement(tmp_path, clean_python):
    (tmp_path / "site").mkdir()
    info = tmp_path / "site" / "prettyplots-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: prettyplots\nVersion: 3.1\n")
    (info / "RECORD").write_text("pretty_plots/__init__.py,,\n")
    (info / "top_level.txt").write_text("pretty_plots\n")
    (tmp_path / "site" / "pretty_plots").mkdir()
    (tmp_path / "site" / "pretty_plots" / "__init__.py").write_text("def plot(): return 1\n")
    clean_python(
        """
        import sys, modpack
        sys.path.insert(0, str(site))
        with modpack.PackageExporter(path) as exporter:
            exporter.extern("pretty_plots.**")
            exporter.save_source_string("eager", "import pretty_plots")
            exporter.save_source_string("lazy", "def f():\\n    import pretty_plots.lines\\n")
            exporter.save_source_string(
                "guarded", "try:\\n    import pretty_plots\\nexcept ImportError:\\n    x = 1\\n"
            )
            exporter.save_source_string("kinds", "import pretty_plots\\nclass Kind: pass")
        """,
        site=tmp_path / "site",
        path=tmp_path / "plots.pt",
    )
    with modpack.PackageImporter(tmp_path / "plots.pt") as importer:
        expected = r"'pretty_plots.*pip install 'prettyplots==3\.1'"
        with pytest.raises(ExternNotFoundError, match=expected) as caught:
            importer.import_module("eager")
        assert caught.value.requirement == "prettyplots==3.1"
        assert caught.value.name == "pretty_plots"
        with pytest.raises(ExternNotFoundError, match=expected):
            importer.import_module("lazy").f()
        with pytest.raises(ExternNotFoundError, match=expected):
            importer.import_module("pretty_plots")
        assert importer.import_module("guarded").x == 1


def test_load_with_missing_extern_names_it(tmp_path, project):
    project(
        {
            "vanishing.py": "value = 1",
            "needing.py": "import vanishing\nclass Thing: pass",
        }
    )
    import needing

    with modpack.PackageExporter(tmp_path / "n.pt") as exporter:
        exporter.extern("vanishing")
        exporter.intern("needing")
        exporter.save_pickle("m", "thing.pkl", needing.Thing())
    (tmp_path / "project0" / "vanishing.py").unlink()
    sys.modules.pop("vanishing")
    sys.path_importer_cache.clear()
    importer = modpack.PackageImporter(tmp_path / "n.pt")
    with importer, pytest.raises(ExternNotFoundError, match="'vanishing'"):
        importer.load_pickle("m", "thing.pkl")


def test_missing_module_of_extern_is_not_blamed_on_package(packaged, project):
    project({"broken_extern.py": "import absent_dependency_of_it"})
    importer = packaged({"user.py": "def f():\n    import broken_extern"}, extern=["broken_extern"])
    with pytest.raises(ModuleNotFoundError, match="absent_dependency_of_it") as caught:
        importer.import_module("user").f()
    assert not isinstance(caught.value, ExternNotFoundError)


def test_module_allowed_lists_all_rejected_modules(packaged):
    importer = packaged({"user.py": "import json, csv, torch"})
    asked = []

    def allowed(module):
        asked.append(module)
        return module not in ("json", "csv")

    with pytest.raises(DisallowedModuleError, match=r"'csv', 'json'") as caught:
        modpack.PackageImporter(importer.filename, allowed)
    assert isinstance(caught.value, ImportError)
    assert caught.value.modules == ("csv", "json")
    assert set(asked) >= {"json", "csv", "torch"}
    with modpack.PackageImporter(importer.filename, lambda name: True) as opened:
        assert opened.import_module("user")


def test_resource_folder_does_not_hide_module(packaged):
    importer = packaged(
        {
            "json/words.txt": "resource",
            "user.py": "def f():\n    import json\n    return json.dumps([1])",
        },
        dependencies=False,
    )
    assert importer.import_module("user").f() == "[1]"
    assert importer.load_text("json", "words.txt") == "resource"


def test_extern_that_replaces_itself_in_sys_modules_is_importable(packaged, project):
    project(
        {
            "chameleon.py": """
            import sys
            class Chameleon:
                color = "green"
            sys.modules[__name__] = Chameleon()
            """
        }
    )
    importer = packaged(
        {
            "user.py": """
            import chameleon
            import importlib
            from chameleon import color
            again = importlib.import_module("chameleon").color
            """
        },
        extern=["chameleon"],
    )
    user = importer.import_module("user")
    assert user.chameleon.color == user.color == user.again == "green"


def test_class_is_not_taken_from_main_module_of_host(tmp_path):
    code = (
        "import modpack, io\n"
        "class Thing: pass\n"
        "buffer = io.BytesIO()\n"
        "modpack.save(Thing(), buffer)\n"
        "buffer.seek(0)\n"
        "print(type(modpack.load(buffer)) is Thing)\n"
    )
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"


def test_mocked_module_raises_when_used(packaged):
    importer = packaged(
        {
            "user.py": """
            import heavy
            from heavy.deep import Base, decorate

            class Child(Base):
                @decorate
                def method(self): ...

            def annotated(x: heavy.Array | None) -> "heavy.Other": ...

            def use():
                return heavy.compute(1)
            def use_locally():
                import heavy.deep as deep
                return deep.compute(1)
            """
        },
        mock=["heavy", "heavy.**"],
    )
    user = importer.import_module("user")
    for call in (user.use, user.use_locally, user.Child):
        with pytest.raises(NotImplementedError, match=r"is mocked.*heavy"):
            call()


def test_pickle_with_undeclared_module_is_rejected(packaged):
    importer = packaged({"user.py": ""}, objects={"m/f.pkl": Callable})
    assert importer.load_pickle("m", "f.pkl") is Callable
    with pytest.raises(UnpicklingError, match="undeclared_anywhere"):
        from modpack.pickling.unpickler import unpickle_object

        unpickle_object(
            b"cundeclared_anywhere\nThing\n.",
            resource="m/x.pkl",
            import_module=importer.import_module,
            storages=None,
            package=None,
        )


def test_host_library_with_relative_names_is_not_restricted(packaged, installed):
    installed("plots", {"plots/__init__.py": "", "plots/lines.py": ""})
    source = """\
        import importlib.util
        spec = importlib.util.find_spec(".lines", "plots")
        def load(): return importlib.import_module(".lines", "plots")
    """
    user = packaged({"user.py": source}, dependencies=False).import_module("user")
    assert user.spec is None
    with pytest.raises(ModuleNotFoundError, match=r"Intern or extern 'plots\.lines'"):
        user.load()
    declared = packaged({"user.py": source}, extern=["plots.**"]).import_module("user")
    assert declared.load().__name__ == declared.spec.name == "plots.lines"
