"""Introspection of packaged modules: sources, tracebacks, resources, and listings."""

from __future__ import annotations

import importlib.resources
import inspect
import linecache
import pkgutil
import traceback
from pathlib import Path

import pytest

from modpack.loading import finder

TREE = {
    "lib/__init__.py": "version = '1'",
    "lib/core.py": '''
    """The core."""

    import os


    class Thing:
        """A thing."""

        def method(self):
            return 1  # the one line


    def outer(value):
        def inner():
            raise ValueError(value)

        return inner()
    ''',
    "lib/sub/__init__.py": "",
    "lib/sub/leaf.py": "value = 'leaf'",
    "lib/data/words.txt": "alpha\nbeta\n",
    "lib/conf.yaml": "key: größe\n",
}


def test_inspect_finds_source_of_packaged_objects(packaged):
    core = packaged(TREE).import_module("lib.core")
    assert inspect.getsource(core.Thing).startswith("class Thing:")
    assert inspect.getsource(core.Thing.method).strip().endswith("# the one line")
    assert inspect.getsource(core.outer).splitlines()[0] == "def outer(value):"
    assert inspect.getsource(core) == Path(core.__file__).read_text()
    assert inspect.getdoc(core.Thing) == "A thing."
    assert inspect.getmodule(core.Thing) is core
    assert inspect.getsourcefile(core.outer) == core.__file__
    assert inspect.getcomments(core.outer) is None


def test_get_source_does_not_import(packaged):
    files = {"bad/__init__.py": "raise RuntimeError('imported')", "bad/x.py": "y = 1\n"}
    importer = packaged(files)
    assert importer.get_source("bad") == "raise RuntimeError('imported')"
    assert importer.get_source("bad.x") == "y = 1\n"
    assert importer.get_source(f"{importer.id()}.bad.x") == "y = 1\n"
    for absent in ("bad.absent", "nothing", "torch"):
        with pytest.raises(ModuleNotFoundError, match=absent):
            importer.get_source(absent)


def test_tracebacks_show_packaged_source_lines(packaged):
    core = packaged(TREE).import_module("lib.core")
    with pytest.raises(ValueError, match="wrong") as caught:
        core.outer("wrong")
    text = "".join(traceback.format_exception(caught.value))
    assert "raise ValueError(value)" in text
    assert "return inner()" in text
    assert f'File "{core.__file__}"' in text
    assert linecache.getline(core.__file__, 2).strip() == '"""The core."""'


def test_line_numbers_below_local_imports_are_correct(packaged):
    importer = packaged(
        {
            "deep.py": """
            def run():
                import other, json
                from other import value
                import other.nothing if False else other
            """.replace("import other.nothing if False else other", "raise KeyError(value)"),
            "other.py": "value = 7",
        }
    )
    with pytest.raises(KeyError) as caught:
        importer.import_module("deep").run()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.lineno, last.line) == (5, "raise KeyError(value)")


def test_location_attributes_name_real_files(packaged):
    importer = packaged(TREE)
    lib, leaf = importer.import_module("lib"), importer.import_module("lib.sub.leaf")
    assert Path(lib.__file__).name == "__init__.py"
    assert lib.__path__ == [str(Path(lib.__file__).parent)]
    assert leaf.__spec__.origin == leaf.__file__
    assert leaf.__package__ == leaf.__name__.rpartition(".")[0]
    assert leaf.__name__ == f"{importer.id()}.lib.sub.leaf"
    assert all(part.isidentifier() for part in importer.id().split("."))
    assert (Path(lib.__file__).parent / "conf.yaml").read_text(encoding="utf-8") == "key: größe\n"


RESOURCES = """
import importlib.resources
import importlib.resources as renamed
from importlib import resources
from importlib.resources import files, open_text
import lib, lib.sub, pkgutil

found = {
    "package object": resources.files(lib).joinpath("conf.yaml").read_text("utf-8"),
    "literal name": resources.files("lib").joinpath("conf.yaml").read_text("utf-8"),
    "dunder package": files(lib.__package__).joinpath("conf.yaml").read_text("utf-8"),
    "from import": files("lib").joinpath("conf.yaml").read_text("utf-8"),
    "renamed": renamed.files("lib").joinpath("conf.yaml").read_text("utf-8"),
    "full path": importlib.resources.files("lib").joinpath("conf.yaml").read_text("utf-8"),
    "open_text": open_text("lib", "conf.yaml", encoding="utf-8").read(),
    "read_text": resources.read_text("lib", "conf.yaml", encoding="utf-8"),
    "read_text of object": resources.read_text(lib, "conf.yaml", encoding="utf-8"),
    "read_binary": resources.read_binary("lib", "conf.yaml").decode("utf-8"),
    "get_data": pkgutil.get_data("lib", "conf.yaml").decode("utf-8"),
    "get_data of dunder": pkgutil.get_data(lib.__name__, "conf.yaml").decode("utf-8"),
    "loader": lib.__loader__.get_data(lib.__path__[0] + "/conf.yaml").decode("utf-8"),
}
with resources.path("lib", "conf.yaml") as path:
    found["path"] = path.read_text("utf-8")
with resources.as_file(files("lib") / "conf.yaml") as path:
    found["as_file"] = path.read_text("utf-8")
in_folder = files("lib.data").joinpath("words.txt").read_text()
is_there = [resources.is_resource("lib", name) for name in ("conf.yaml", "absent", "sub")]
names = sorted(resources.contents("lib"))
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", ["reader.py", "lib/reader.py"])
def test_resources_are_read_by_object_and_by_name(packaged, module):
    importer = packaged({**TREE, module: RESOURCES}, dependencies=False)
    reader = importer.import_module(module.removesuffix(".py").replace("/", "."))
    assert set(reader.found.values()) == {"key: größe\n"}
    assert reader.in_folder == "alpha\nbeta\n"
    assert reader.is_there == [True, False, False]
    assert {"__init__.py", "conf.yaml", "core.py", "data", "sub"} <= set(reader.names)


def test_host_reads_resources_of_loaded_packages(packaged):
    importer = packaged(TREE)
    lib = importer.import_module("lib")
    assert importlib.resources.files(lib).joinpath("conf.yaml").is_file()
    reader = importer.get_resource_reader("lib")
    assert reader.open_resource("conf.yaml").read().decode("utf-8") == "key: größe\n"
    assert reader.is_resource("conf.yaml") and not reader.is_resource("sub")
    assert "data" in set(reader.contents())
    assert Path(reader.resource_path("conf.yaml")).read_text("utf-8") == "key: größe\n"
    with pytest.raises(FileNotFoundError):
        reader.resource_path("absent")
    assert importer.get_resource_reader(lib.__name__).files() == reader.files()
    assert importer.get_resource_reader("absent") is None


def test_packaged_modules_can_be_listed_and_walked(packaged):
    importer = packaged(
        {
            **TREE,
            "lister.py": """
            import importlib, pkgutil
            import lib

            listed = sorted(module.name for module in pkgutil.iter_modules(lib.__path__))
            full = [m.name for m in pkgutil.walk_packages(lib.__path__, lib.__name__ + ".")]
            literal = [m.name for m in pkgutil.walk_packages(lib.__path__, "lib.")]
            loaded = {importlib.import_module(name) for name in full + literal}
            """,
        },
    )
    lister = importer.import_module("lister")
    assert lister.listed == ["core", "sub"]
    assert lister.literal == ["lib.core", "lib.sub", "lib.sub.leaf"]
    assert lister.full == [f"{importer.id()}.{name}" for name in lister.literal]
    assert len(lister.loaded) == 3
    assert [m.name for m in pkgutil.iter_modules(lister.lib.__path__)] == lister.listed


def test_doctests_of_packaged_modules_run(packaged):
    import doctest

    importer = packaged(
        {
            "documented.py": '''
            """
            >>> import helper
            >>> helper.value
            3
            """
            ''',
            "helper.py": "value = 3",
        },
        dependencies=False,
    )
    failed, tried = doctest.testmod(importer.import_module("documented"))
    assert (failed, tried) == (0, 2)


def test_bytecode_is_cached_per_namespace(packaged, monkeypatch):
    compiled = []
    source_to_code = finder._PackagedLoader.source_to_code

    def note(loader, *source):
        compiled.append(loader.name)
        return source_to_code(loader, *source)

    monkeypatch.setattr(finder._PackagedLoader, "source_to_code", note)
    source = "def f():\n    import other\n    return other.value"
    files = {"twice.py": source, "other.py": "value = 1"}
    for namespace in ("private", "process", "private", "process"):
        importer = packaged(files, namespace=namespace)
        module = importer.import_module("twice")
        assert module.f() == 1
        importer.close()
    twice = [name for name in compiled if name.endswith("twice")]
    assert len(twice) == len(set(twice)) == 2
    kept = Path(module.__file__).parents[1].glob("code/*/*.code")
    assert len({file.parent for file in kept}) == 2
