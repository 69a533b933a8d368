"""Import statements and functions in packaged code."""

from __future__ import annotations

import gc
import importlib
import sys
import threading

import pytest

TREE = {
    "a/__init__.py": "level = 'a'",
    "a/b/__init__.py": "level = 'a.b'\nfrom . import c",
    "a/b/c.py": "level = 'a.b.c'",
    "a/b/d.py": "level = 'a.b.d'",
}


def results_of(packaged, source, extra=None, **options):
    """Return the names that a module ``user`` with this source binds."""
    files = {**TREE, **(extra or {}), "user.py": source}
    return vars(packaged(files, **options).import_module("user"))


@pytest.mark.parametrize(
    ("statement", "expression", "value"),
    [
        ("import a", "a.level", "a"),
        ("import a.b", "a.b.level", "a.b"),
        ("import a.b.c", "a.b.c.level", "a.b.c"),
        ("import a.b.d as d", "d.level", "a.b.d"),
        ("import a.b.d, a.b.c as c", "(a.b.d.level, c.level)", ("a.b.d", "a.b.c")),
        ("from a import b", "b.level", "a.b"),
        ("from a import b as x, level", "(x.level, level)", ("a.b", "a")),
        ("from a.b import d", "d.level", "a.b.d"),
        ("from a.b.d import level", "level", "a.b.d"),
        ("import a.b.d, json", "(a.b.d.level, json.dumps(1))", ("a.b.d", "1")),
        ("import os.path, a", "(os.path.sep, a.level)", ("/", "a")),
    ],
)
def test_import_statement_binds_same_value_as_python(packaged, statement, expression, value):
    source = (
        f"{statement}\nhere = {expression}\n"
        f"def local():\n    {statement}\n    return {expression}\n"
        f"def local_generator():\n    {statement}\n    yield {expression}\n"
        f"class Body:\n    {statement}\n    here = {expression}\n"
    )
    user = results_of(packaged, source)
    assert user["here"] == value
    assert user["local"]() == value
    assert next(user["local_generator"]()) == value
    assert user["Body"].here == value


@pytest.mark.parametrize(
    ("call", "level"),
    [
        ("__import__('a.b.d')", "a"),
        ("__import__('a.b.d', fromlist=['level'])", "a.b.d"),
        ("__import__('a.b', globals(), locals(), ['d'], 0).d", "a.b.d"),
        ("importlib.__import__('a.b')", "a"),
        ("importlib.import_module('a.b.d')", "a.b.d"),
        ("importlib.import_module('.d', 'a.b')", "a.b.d"),
        ("importlib.import_module('..b.d', package='a.b')", "a.b.d"),
        ("import_module('a.b.d')", "a.b.d"),
        ("sys.modules[importlib.import_module('a.b').__name__]", "a.b"),
        ("importlib.util.module_from_spec(importlib.util.find_spec('a'))", None),
    ],
)
def test_import_function_finds_packaged_modules(packaged, call, level):
    source = f"""
    import importlib, importlib.util, sys
    from importlib import import_module
    def local():
        return {call}
    found = {call}
    """
    user = results_of(packaged, source)
    assert getattr(user["found"], "level", None) == level
    assert getattr(user["local"](), "level", None) == level
    assert user["found"].__name__.split(".", 3)[3] in ("a", "a.b", "a.b.d")


def test_relative_import_works_by_statement_and_function(packaged):
    importer = packaged(
        {
            **TREE,
            "a/b/relative.py": """
            import importlib
            from . import c
            from .d import level as d
            from .. import level as a
            from ..b import level as b
            by_package = importlib.import_module(".d", __package__).level
            by_name = importlib.import_module("..d", __name__).level
            by_statement_call = __import__("d", globals(), locals(), ["level"], 1).level
            """,
        }
    )
    module = importer.import_module("a.b.relative")
    assert (module.c.level, module.d, module.a, module.b) == ("a.b.c", "a.b.d", "a", "a.b")
    assert {module.by_package, module.by_name, module.by_statement_call} == {"a.b.d"}


def test_full_private_name_from_dunder_name_can_be_imported(packaged):
    importer = packaged(
        {
            "a/__init__.py": """
            import importlib, importlib.util, sys
            by_function = importlib.import_module(__name__ + ".b").level
            spec = importlib.util.find_spec(__name__ + ".b")
            absent = importlib.util.find_spec(__name__ + ".absent")
            __import__(__name__ + ".c")
            by_call = sys.modules[__name__ + ".c"].level
            """,
            "a/b.py": "level = 'a.b'",
            "a/c.py": "level = 'a.c'",
        }
    )
    a = importer.import_module("a")
    assert (a.by_function, a.by_call) == ("a.b", "a.c")
    assert a.spec.origin.endswith("b.py")
    assert a.absent is None


def test_cyclic_imports_load(packaged):
    importer = packaged(
        {
            "ring/__init__.py": "from .one import One",
            "ring/one.py": """
            import ring.two as two
            class One:
                other = staticmethod(lambda: two.Two)
            """,
            "ring/two.py": "from ring import one\nimport ring\nclass Two:\n    home = one",
        }
    )
    ring = importer.import_module("ring")
    assert ring.One.other().home is importer.import_module("ring.one")


def test_from_import_prefers_attribute_to_submodule(packaged):
    importer = packaged(
        {
            "pkg/__init__.py": "from ._impl import x",
            "pkg/_impl.py": "x = 'attribute'",
            "pkg/x.py": "raise RuntimeError('the submodule was imported')",
            "user.py": "from pkg import x\ndef local():\n    from pkg import x\n    return x",
        }
    )
    user = importer.import_module("user")
    assert user.x == "attribute"
    assert user.local() == "attribute"


def test_import_as_prefers_submodule_to_attribute(packaged):
    importer = packaged(
        {
            "pkg/__init__.py": "x = 'attribute'",
            "pkg/x.py": "value = 'submodule'",
            "user.py": "def local():\n    import pkg.x as x\n    return x.value",
        }
    )
    assert importer.import_module("user").local() == "submodule"


def test_star_import_imports_submodules_in_dunder_all(packaged):
    user = results_of(
        packaged,
        "from pkg import *",
        {
            "pkg/__init__.py": "__all__ = ['sub', 'value']\nvalue = 1\nhidden = 2",
            "pkg/sub.py": "inner = 3",
        },
    )
    assert (user["value"], user["sub"].inner) == (1, 3)
    assert "hidden" not in user


def test_find_spec_distinguishes_packaged_extern_and_absent(packaged):
    user = results_of(
        packaged,
        """
        import importlib.util
        from importlib.util import find_spec
        packaged = find_spec("a.b.c").name
        absent = find_spec("a.b.absent")
        unknown = find_spec("no_such_module_anywhere")
        undeclared = importlib.util.find_spec("pytest")
        stdlib = find_spec("json").name
        torch = find_spec("torch") is not None
        """,
    )
    assert user["packaged"].endswith(".a.b.c")
    assert user["stdlib"] == "json"
    assert user["torch"]
    assert user["absent"] is user["unknown"] is user["undeclared"] is None


def test_find_spec_below_absent_parent_raises_like_python(packaged):
    source = "from importlib.util import find_spec\ndef local():\n    find_spec('a.absent.child')"
    with pytest.raises(ModuleNotFoundError, match="absent"):
        results_of(packaged, source)["local"]()


def test_guarded_import_of_absent_module_uses_fallback(packaged):
    user = results_of(
        packaged,
        """
        try:
            import no_such_accelerator
        except ImportError:
            no_such_accelerator = None

        try:
            from a.b import fast
        except ImportError:
            fast = "slow"

        try:
            import a.b.fast as module
        except ModuleNotFoundError:
            module = "no module"

        def local():
            try:
                import a.turbo
            except ModuleNotFoundError as failure:
                return failure.name
        """,
    )
    assert user["no_such_accelerator"] is None
    assert (user["fast"], user["module"]) == ("slow", "no module")
    assert user["local"]() == "a.turbo"


def test_missing_submodule_raises_with_fix(packaged):
    importer = packaged(
        {
            **TREE,
            "user.py": """
            def absolute():
                import a.missing
            def from_import():
                from a.missing import x
            def dynamic():
                import importlib
                importlib.import_module("a.missing")
            """,
            "a/inside.py": "def relative():\n    from .missing import x\n",
        },
        dependencies=False,
    )
    user = importer.import_module("user")
    inside = importer.import_module("a.inside")
    for call in (user.absolute, user.from_import, user.dynamic, inside.relative):
        with pytest.raises(ModuleNotFoundError, match=r"'a\.missing'.*Intern or extern") as caught:
            call()
        assert caught.value.name == "a.missing"


def test_from_import_of_missing_name_raises(packaged):
    importer = packaged({**TREE, "user.py": "def local():\n    from a.b.c import nothing\n"})
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        importer.import_module("user").local()


def test_namespace_package_contains_packaged_modules(packaged):
    importer = packaged(
        {
            "space/one/mod.py": "value = 1",
            "space/two.py": "value = 2",
            "user.py": """
            import space.one.mod, space.two
            from space import two
            total = space.one.mod.value + two.value
            path = list(space.__path__)
            """,
        },
        dependencies=False,
    )
    user = importer.import_module("user")
    assert user.total == 3
    assert len(user.path) == 1


def test_extended_path_does_not_reach_host(packaged, project):
    extending = "import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)"
    files = {"legacy/__init__.py": extending}
    project({**files, "legacy/host_only.py": "value = 'host'"})
    for namespace in ("private", "process"):
        importer = packaged({**files, "legacy/own.py": "value = 1"}, namespace=namespace)
        assert importer.import_module("legacy.own").value == 1
        with pytest.raises(ModuleNotFoundError):
            importer.import_module("legacy.host_only")
        importer.close()


def test_folder_added_to_path_inside_package_works(packaged):
    importer = packaged(
        {
            "old/__init__.py": """
            import os
            __path__.append(os.path.join(os.path.dirname(__file__), "impl"))
            """,
            "old/impl/__init__.py": "",
            "old/impl/tool.py": "import old.impl\nvalue = old.impl.__name__.rpartition('.')[2]",
        },
        dependencies=False,
    )
    assert importer.import_module("old.tool").value == "impl"


def test_reload_runs_packaged_module_again(packaged):
    reloading = "import importlib, counter\ncounter.n = 5\nimportlib.reload(counter)"
    importer = packaged({"user.py": reloading, "counter.py": "n = 0"})
    assert importer.import_module("user").counter.n == 0


def test_packaged_imports_do_not_change_importlib(packaged):
    before = (importlib.import_module, importlib.util.find_spec, __import__)
    packaged({"user.py": "import importlib.util, importlib.resources"}).import_module("user")
    assert before == (importlib.import_module, importlib.util.find_spec, __import__)
    assert not hasattr(sys.modules["importlib"], "__modpack_real__")


def test_failed_import_can_be_repeated(packaged):
    importer = packaged(
        {
            "flaky.py": """
            import switch
            if not switch.on:
                raise ValueError("not yet")
            value = 1
            """,
            "switch.py": "on = False",
        }
    )
    with pytest.raises(ValueError, match="not yet"):
        importer.import_module("flaky")
    importer.import_module("switch").on = True
    assert importer.import_module("flaky").value == 1


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_long_import_chains_load_nearly_as_deep_as_in_python(packaged, namespace):
    length = 100  # Python itself ends near 160 at its usual recursion limit
    files = {f"link{n}.py": f"import link{n + 1}" for n in range(length)}
    importer = packaged({**files, f"link{length}.py": "value = 1"}, namespace=namespace)
    found = []
    thread = threading.Thread(target=lambda: found.append(importer.import_module("link0")))
    thread.start()  # without frames of the test runner on the stack
    thread.join()
    assert found and importer.import_module(f"link{length}").value == 1


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_module_loaded_by_file_imports_like_packaged_code(packaged, project, tmp_path, namespace):
    project({"plug/__init__.py": "name = 'host'"})
    (tmp_path / "outside.py").write_text("import json\nname = 'outside'")
    importer = packaged(
        {
            "plug/__init__.py": "name = 'packaged'",
            "plug/plugin.py": """
            import plug
            name = plug.name
            def f():
                from plug import name
                return name
            """,
            "user.py": """
            import importlib.util, os, plug
            def load(file):
                spec = importlib.util.spec_from_file_location("plugin_by_file", file)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
            plugin = load(os.path.join(os.path.dirname(plug.__file__), "plugin.py"))
            """,
        },
        namespace=namespace,
    )
    user = importer.import_module("user")
    assert user.plugin.name == user.plugin.f() == "packaged"
    outside = user.load(tmp_path / "outside.py")
    assert outside.name == "outside" and not hasattr(outside, "__modpack__")


def test_local_import_binds_only_its_name(packaged):
    user = results_of(packaged, "def f():\n    import a.b, json\n    return locals()")
    assert sorted(user["f"]()) == ["a", "json"]


def test_local_import_can_bind_global_or_nonlocal_name(packaged):
    user = results_of(
        packaged,
        """
        def bind():
            global a
            import a.b.d
        def outer():
            d = None
            def inner():
                nonlocal d
                import a.b.d as d
            inner()
            return d.level
        bind()
        """,
    )
    assert user["a"].b.d.level == user["outer"]() == "a.b.d"


def test_invalid_module_name_raises_pythons_error(packaged):
    call = results_of(packaged, "def f(name):\n    return __import__(name)")["f"]
    with pytest.raises(TypeError):
        call(3)
    with pytest.raises(ValueError, match="Empty"):
        call("")


def test_gc_threshold_is_raised_during_imports(packaged):
    importer = packaged(
        {
            "seen.py": "import gc\nwhile_importing = gc.get_threshold()",
            "broken.py": "import seen\nraise ValueError('broken')",
        },
        dependencies=False,
    )
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"):
        importer.import_module("broken")
    assert gc.get_threshold() == before
    assert importer.import_module("seen").while_importing == (before[0] * 10, *before[1:])
