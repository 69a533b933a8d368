"""Scans of small sources, rule by rule."""

from __future__ import annotations

import ast
import gc
import json
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import TypeVar

import pytest

from modpack.core.scan import (
    DynamicImport,
    ImportKind,
    ImportStatement,
    ModuleScan,
)
from modpack.discovery.import_scanner import scan_source

REQUIRED = ImportKind.REQUIRED
FUNCTION = ImportKind.FUNCTION
GUARDED = ImportKind.GUARDED
NEVER = ImportKind.TYPE_CHECKING
DYNAMIC = ImportKind.DYNAMIC

T = TypeVar("T")


def scan(source: str, module: str = "pkg.sub.mod", is_package: bool = False) -> ModuleScan:
    result = scan_source(dedent(source), module, is_package)
    assert result.failure is None
    return result


def kinds(source: str, **place: object) -> dict[str, ImportKind]:
    """Return the kinds of imports by module."""
    return {item.module: item.kind for item in scan(source, **place).imports}  # type: ignore[arg-type]


def modules(source: str) -> list[str]:
    return [item.module for item in scan(source).imports]


def on_an_empty_stack(function: Callable[[], T]) -> T:
    """Call in a fresh thread, so that the test runner's own depth does not count."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize(
    ("source", "module", "names"),
    [
        ("import a", "a", ()),
        ("import a.b.c", "a.b.c", ()),
        ("import a.b.c as d", "a.b.c", ()),
        ("from a import b, c", "a", ("b", "c")),
        ("from a import b as x", "a", ("b",)),
        ("from a import *", "a", ("*",)),
        ("from a.b import (c,\n d)", "a.b", ("c", "d")),
        ("from . import x", "pkg.sub", ("x",)),
        ("from .near import x", "pkg.sub.near", ("x",)),
        ("from .. import x", "pkg", ("x",)),
        ("from ..far.away import x", "pkg.far.away", ("x",)),
    ],
)
def test_scan_reads_module_and_names(source: str, module: str, names: tuple[str, ...]) -> None:
    assert scan(source).imports == (ImportStatement(module, names, REQUIRED, 1),)


def test_scan_reads_several_modules_of_one_statement() -> None:
    assert modules("import a, b.c as d, e") == ["a", "b.c", "e"]


def test_scan_resolves_relative_import_in_package() -> None:
    source = "from . import x\nfrom .y import z\nfrom .. import w"
    found = scan(source, "pkg.sub", is_package=True).imports
    assert [item.module for item in found] == ["pkg.sub", "pkg.sub.y", "pkg"]


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("from . import x", "top", False),
        ("from .. import x", "pkg", True),
        ("from ... import x", "pkg.mod", False),
    ],
)
def test_scan_omits_relative_import_beyond_top(source: str, module: str, is_package: bool) -> None:
    result = scan(source, module, is_package)
    assert result.imports == result.unreadable == ()


def test_scan_keeps_source_order_and_lines() -> None:
    source = """\
        import a
        if x:
            import b
        else:
            import c
        def f():
            import d
        importlib.import_module("e")
        import f
    """
    found = [(item.module, item.line) for item in scan(source).imports]
    assert found == [("a", 1), ("b", 3), ("c", 5), ("d", 7), ("e", 8), ("f", 9)]


def test_import_at_module_level_is_required() -> None:
    source = """
        import a
        class C:
            import b
            class D:
                import c
        for _ in x: import d
        while x: import e
        with open(x): import f
        if x: import g
        else: import h
        match x:
            case 1: import i
    """
    assert set(kinds(source).values()) == {REQUIRED}
    assert modules(source) == list("abcdefghi")


def test_import_in_function_is_function_local() -> None:
    source = """
        def f():
            import a
            class C:
                import b
        async def g():
            async with x:
                import c
        class D:
            def method(self):
                import d
    """
    assert kinds(source) == dict.fromkeys("abcd", FUNCTION)


@pytest.mark.parametrize(
    "caught",
    [
        "except ImportError",
        "except ModuleNotFoundError as error",
        "except Exception",
        "except BaseException",
        "except builtins.ImportError",
        "except (AttributeError, ImportError)",
        "except",
        *(["except* ImportError"] if sys.version_info >= (3, 11) else []),  # new syntax
    ],
)
def test_try_with_import_error_guards_body_and_handler(caught: str) -> None:
    source = f"try:\n import a\n{caught}:\n import b\nelse:\n import c\nfinally:\n import d"
    assert kinds(source) == {"a": GUARDED, "b": GUARDED, "c": REQUIRED, "d": REQUIRED}


def test_try_with_other_handler_guards_nothing() -> None:
    source = """
        try:
            import a
        except (ValueError, OSError):
            import b
        try:
            import c
        except ValueError:
            import d
        except ImportError:
            import e
    """
    assert kinds(source) == {
        **{"a": REQUIRED, "b": REQUIRED},
        **{"c": GUARDED, "d": REQUIRED, "e": GUARDED},
    }


def test_try_guards_nested_statements() -> None:
    source = """
        try:
            try:
                import a
            except ValueError:
                import b
            finally:
                import c
            if x:
                def f():
                    import d
        except ImportError:
            pass
    """
    assert kinds(source) == dict.fromkeys("abcd", GUARDED)


@pytest.mark.parametrize(
    ("setup", "manager", "kind"),
    [
        ("import contextlib", "contextlib.suppress(ImportError)", GUARDED),
        ("import contextlib as c", "c.suppress(KeyError, ModuleNotFoundError)", GUARDED),
        ("from contextlib import suppress", "suppress(ImportError)", GUARDED),
        ("from contextlib import suppress as quiet", "open(x), quiet(Exception)", GUARDED),
        ("import contextlib", "contextlib.suppress(KeyError)", REQUIRED),
        ("import contextlib", "contextlib.closing(ImportError)", REQUIRED),
    ],
)
def test_suppress_guards_like_try(setup: str, manager: str, kind: ImportKind) -> None:
    assert kinds(f"{setup}\nwith {manager}:\n import a")["a"] is kind


@pytest.mark.parametrize(
    ("setup", "test"),
    [
        ("import importlib.util", "importlib.util.find_spec('x')"),
        ("import importlib.util as iu", "iu.find_spec('x') is not None"),
        ("from importlib.util import find_spec as look", "not look('x')"),
        ("import pkgutil", "y and pkgutil.find_loader('x')"),
        ("import importlib.util", "all(map(importlib.util.find_spec, names))"),
        ("import sys", "sys.version_info >= (3, 11)"),
        ("import sys as s", "s.version_info.major > 2 and y"),
        ("from sys import version_info as v", "v[0] == 3"),
        ("import sys", "sys.platform.startswith('win')"),
        ("import sys", "sys.implementation.name == 'cpython'"),
        ("import os", "os.name == 'nt'"),
        ("import platform", "platform.system() == 'Darwin'"),
        ("import sys\nWINDOWS = sys.platform == 'win32'", "WINDOWS"),
        ("import importlib.util\nHAS = importlib.util.find_spec('x') is not None", "HAS"),
        ("from importlib.util import find_spec\nA = find_spec('x')\nB: bool = A and z", "not B"),
        ("try:\n HAS = importlib.util.find_spec('x')\nexcept ValueError:\n HAS = None", "HAS"),
    ],
)
def test_presence_test_guards_both_branches(setup: str, test: str) -> None:
    source = f"{setup}\nif {test}:\n import a\nelif y:\n import b\nelse:\n import c"
    assert {name: kinds(source)[name] for name in "abc"} == dict.fromkeys("abc", GUARDED)


def test_presence_test_defined_below_function_guards() -> None:
    source = """
        def f():
            if HAS:
                import a
        HAS = importlib.util.find_spec("a")
    """
    assert kinds(source) == {"a": GUARDED}


def test_match_on_platform_guards_cases() -> None:
    source = """
        import sys
        match sys.platform:
            case "win32":
                import a
    """
    assert kinds(source)["a"] is GUARDED


@pytest.mark.parametrize("test", ["x", "os.environ.get('A')", "sys.argv", "find('x')", "HAS"])
def test_other_test_guards_nothing(test: str) -> None:
    assert kinds(f"HAS = compute()\nif {test}:\n import a") == {"a": REQUIRED}


def test_presence_test_is_not_a_dependency() -> None:
    source = "import importlib.util\nok = importlib.util.find_spec('x')"
    assert modules(source) == ["importlib.util"]
    assert scan(source).unreadable == ()


@pytest.mark.parametrize(
    ("setup", "test", "body", "other"),
    [
        ("from typing import TYPE_CHECKING", "TYPE_CHECKING", NEVER, REQUIRED),
        ("from typing import TYPE_CHECKING as TC", "TC", NEVER, REQUIRED),
        ("import typing", "typing.TYPE_CHECKING", NEVER, REQUIRED),
        ("import typing as t", "t.TYPE_CHECKING", NEVER, REQUIRED),
        ("import typing_extensions as t", "t.TYPE_CHECKING", NEVER, REQUIRED),
        ("TYPE_CHECKING = False", "TYPE_CHECKING", NEVER, REQUIRED),
        ("import typing\nTC = typing.TYPE_CHECKING", "TC", NEVER, REQUIRED),
        ("", "False", NEVER, REQUIRED),
        ("", "0", NEVER, REQUIRED),
        ("", "True", REQUIRED, NEVER),
        ("import typing", "not typing.TYPE_CHECKING", REQUIRED, NEVER),
        ("import typing", "not not typing.TYPE_CHECKING", NEVER, REQUIRED),
        ("import typing", "typing.TYPE_CHECKING and x", NEVER, REQUIRED),
        ("import typing", "x and typing.TYPE_CHECKING", NEVER, REQUIRED),
        ("import typing", "x or typing.TYPE_CHECKING", REQUIRED, REQUIRED),
        ("import typing", "not typing.TYPE_CHECKING or x", REQUIRED, NEVER),
        ("import typing", "not (typing.TYPE_CHECKING and x)", REQUIRED, NEVER),
        ("import typing", "typing.TYPE_CHECKING or False", NEVER, REQUIRED),
        ("import sys", "TYPE_CHECKING or sys.version_info > (3,)", GUARDED, GUARDED),
    ],
)
def test_type_checking_block_never_runs(
    setup: str, test: str, body: ImportKind, other: ImportKind
) -> None:
    found = kinds(f"{setup}\nif {test}:\n import a\nelse:\n import b")
    assert (found["a"], found["b"]) == (body, other)


def test_type_checking_elif_never_runs() -> None:
    source = "if x:\n import a\nelif TYPE_CHECKING:\n import b\nelse:\n import c"
    assert kinds(source) == {"a": REQUIRED, "b": NEVER, "c": REQUIRED}


def test_strongest_enclosing_block_wins() -> None:
    source = """
        if TYPE_CHECKING:
            try:
                def f():
                    import a
            except ImportError:
                pass
        def g():
            try:
                import b
                if TYPE_CHECKING:
                    import c
            except ImportError:
                pass
    """
    assert kinds(source) == {"a": NEVER, "b": GUARDED, "c": NEVER}


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import importlib\nimportlib.import_module('a.b')", "a.b"),
        ("import importlib as il\nx = il.import_module(name='a.b')", "a.b"),
        ("from importlib import import_module\nimport_module('a.b')", "a.b"),
        ("from importlib import import_module as im\nim('a.b')", "a.b"),
        ("from importlib import import_module\nim = import_module\nim('a.b')", "a.b"),
        ("import importlib\nim = importlib.import_module\nim('a.b')", "a.b"),
        ("__import__('a.b')", "a.b"),
        ("import builtins\nbuiltins.__import__('a.b')", "a.b"),
        ("import importlib\nimportlib.__import__('a.b')", "a.b"),
        ("__import__('x', globals(), locals(), [], 1)", "pkg.sub.x"),
        ("__import__('x', level=2)", "pkg.x"),
        ("importlib.import_module('.x', 'a.b')", "a.b.x"),
        ("importlib.import_module('..x', package='a.b')", "a.x"),
        ("importlib.import_module('.x', __package__)", "pkg.sub.x"),
        ("importlib.import_module('.x', __name__)", "pkg.sub.mod.x"),
        ("importlib.import_module('a.b', whatever)", "a.b"),
        ("importlib.import_module(__name__ + '.x')", "pkg.sub.mod.x"),
        ("importlib.import_module(f'{__name__}.x')", "pkg.sub.mod.x"),
        ("importlib.import_module(f'{__package__}.x')", "pkg.sub.x"),
        ("importlib.import_module(f'{__package__!s}' '.x')", "pkg.sub.x"),
        ("importlib.import_module('a' '.b')", "a.b"),
        ("importlib.import_module('a' + '.' + 'b')", "a.b"),
        ("NAME = 'a.b'\nimportlib.import_module(NAME)", "a.b"),
        ("NAME: str = 'a.b'\ndef f(): return importlib.import_module(NAME)", "a.b"),
        ("N = 'a.b'\nclass C:\n N = 1\n def f(self): importlib.import_module(N)", "a.b"),
        ("HOME = __name__ + '.'\nimportlib.import_module(HOME + 'x')", "pkg.sub.mod.x"),
        ("x = [y for y in (importlib.import_module('a.b').z,) if y]", "a.b"),
        ("@importlib.import_module('a.b').mark\ndef f(): pass", "a.b"),
        ("def f(x=importlib.import_module('a.b')): pass", "a.b"),
        ("class C(importlib.import_module('a.b').Base): pass", "a.b"),
        ("with importlib.import_module('a.b').lock: pass", "a.b"),
        ("f = lambda: importlib.import_module('a.b')", "a.b"),
        ("def f():\n x = 1\n return g(\n  importlib.\\\n  import_module(\n  'a.b'))", "a.b"),
        ("def f(): return im('a.b')\nfrom importlib import import_module as im", "a.b"),
        ("def f():\n im = __import__\n def g():\n  return [im('a.b') for _ in x]", "a.b"),
        ("def f(): return g('a.b')\nim = __import__\ng = im", "a.b"),
        ("if (im := __import__):\n pass\ndef f():\n class C:\n  x = im('a.b')", "a.b"),
    ],
)
def test_scan_reads_dynamic_import_of_constant(source: str, module: str) -> None:
    result = scan(source)
    assert [i.module for i in result.imports if i.kind is DYNAMIC] == [module]
    assert result.unreadable == ()


@pytest.mark.parametrize(
    "line",
    [
        ">>> import a",
        "    >>> from a import b",
        ">>> __all__ = ['a']",
        ">>> importlib.import_module('a')",
        "import a",
    ],
)
def test_scan_ignores_examples_in_docstrings(line: str) -> None:
    source = f'def f():\n    """Shows.\n\n    {line}\n    """\nclass C:\n    """\n{line}\n    """\n'
    assert scan(source) == ModuleScan(bound=frozenset({"f", "C"}))


@pytest.mark.parametrize(
    "end", ['"""; import a', '"""\n    import a', '""" ; x = lambda: __import__("a")']
)
def test_scan_finds_import_after_docstring_example(end: str) -> None:
    source = f'def f():\n    """Shows.\n\n    >>> f(){end}\n'
    assert [found.module for found in scan(source).imports] == ["a"]


def test_scan_of_function_is_independent_of_other_code() -> None:
    function = """
        def f():
            new = sys.version_info >= (3, 12)
            if new:
                import a
    """
    alone = {i.module: i.kind for i in scan(function).imports}
    beside = {i.module: i.kind for i in scan(function + "\n        __import__('b')").imports}
    assert alone["a"] is beside["a"]


def test_scan_resolves_relative_dynamic_import() -> None:
    source = "import importlib\nimportlib.import_module('.x', __name__)"
    assert kinds(source, module="pkg.sub", is_package=True)["pkg.sub.x"] is DYNAMIC


@pytest.mark.parametrize(
    ("fromlist", "names"),
    [("['x', 'y']", ("x", "y")), ("('*',)", ("*",)), ("['']", ()), ("None", ()), ("()", ())],
)
def test_scan_reads_literal_fromlist(fromlist: str, names: tuple[str, ...]) -> None:
    source = f"__import__('a.b', fromlist={fromlist})"
    assert scan(source).imports == (ImportStatement("a.b", names, DYNAMIC, 1),)


def test_scan_reads_module_with_dynamic_fromlist() -> None:
    result = scan("__import__('a.b', fromlist=names)")
    assert [item.module for item in result.imports] == ["a.b"]
    assert [item.call for item in result.unreadable] == ["__import__('a.b', fromlist=names)"]


def test_dynamic_import_is_guarded_but_not_function_local() -> None:
    source = """
        import importlib
        def f():
            importlib.import_module("a")
        try:
            importlib.import_module("b")
        except ImportError:
            pass
        if TYPE_CHECKING:
            importlib.import_module("c")
        d = importlib.import_module("d") if importlib.util.find_spec("d") else None
        e = importlib.import_module("e") if TYPE_CHECKING else importlib.import_module("f")
        g = importlib.util.find_spec("g") and importlib.import_module("g")
        h = None if not importlib.util.find_spec("h") else importlib.import_module("h")
    """
    found = kinds(source)
    assert {name: found[name] for name in "abcdefgh"} == {
        **{"a": DYNAMIC, "b": GUARDED, "c": NEVER, "d": GUARDED},
        **{"e": NEVER, "f": DYNAMIC, "g": GUARDED, "h": GUARDED},
    }


@pytest.mark.parametrize(
    "loop",
    [
        "for n in ('x', 'y'):\n importlib.import_module(f'pkg.{n}')",
        "n = 'pkg'\nfor n in ('x', 'y'):\n importlib.import_module(n)",
        "NAMES = ('x', 'y')\nfor n in NAMES:\n importlib.import_module(f'pkg.{n}')",
        "n = 'pkg'\n[importlib.import_module(n) for n in ('pkg.x', 'pkg.y')]",
    ],
)
def test_import_of_a_loop_variable_is_unreadable(loop: str) -> None:
    result = scan(f"import importlib\n{loop}")
    assert [i.module for i in result.imports] == ["importlib"]
    assert len(result.unreadable) == 1


@pytest.mark.parametrize(
    "source",
    [
        "importlib.import_module(name)",
        "importlib.import_module(get())",
        "importlib.import_module('a.%s' % x)",
        "importlib.import_module(f'a.{x}')",
        "importlib.import_module(f'a.{__name__!r}')",
        "importlib.import_module(*args)",
        "importlib.import_module(**options)",
        "importlib.import_module()",
        "importlib.import_module('.x')",
        "importlib.import_module('.x', package)",
        "importlib.import_module('...x', 'a.b')",
        "importlib.import_module('')",
        "importlib.import_module('a..b')",
        "__import__('a', globals(), locals(), [], -1)",
        "__import__('a', level=level)",
        "NAME = 'a'\nNAME = 'b'\nimportlib.import_module(NAME)",
        "NAME = 'a'\nNAME += '.b'\nimportlib.import_module(NAME)",
        "NAME = 'a'\ndef f(NAME): importlib.import_module(NAME)",
        "for n in ('a', 'b'):\n for n in ('c', 'd'):\n  importlib.import_module(n)",
        "for n in ('a', 'b'): pass\nelse: importlib.import_module(n)",
        "[importlib.import_module(n) for n in f()]\nfor n in ('a', 'b'): pass",
        "n = 'a'\n[importlib.import_module(n) for n in f()]",
        "NAME = 'a'\nf = lambda NAME: importlib.import_module(NAME)",
        "NAME = 'a'\ndef f():\n NAME = get()\n importlib.import_module(NAME)",
        "NAME = 'a'\ndef f():\n global NAME\n NAME = 'b'\nimportlib.import_module(NAME)",
        "NAME = 'a'\nclass C:\n NAME = 'b'\n importlib.import_module(NAME)",
        "NAME = 'a'\n[importlib.import_module(NAME) for NAME in names]",
        "for n in names:\n importlib.import_module(n)",
        "for n in ('a', x):\n importlib.import_module(n)",
        "for n in ('a', 'b'):\n n = 'c.' + n\n importlib.import_module(n)",
        "for i, n in enumerate(('a', 'b')):\n importlib.import_module(n)",
        "for n in ('a', 'b'):\n pass\nimportlib.import_module(n)",
        "N = ('a',)\nN += ('b',)\nfor n in N:\n importlib.import_module(n)",
        "N = ('a',)\ndef f(N):\n for n in N: importlib.import_module(n)",
        "list(map(importlib.import_module, names))",
    ],
)
def test_scan_reports_unreadable_import(source: str) -> None:
    result = scan(source)
    assert result.imports == ()
    assert len(result.unreadable) == 1


def test_unreadable_call_is_on_one_line() -> None:
    source = """\
        x = 1
        try:
            y = "é", importlib.import_module(
                prefix
                + name,
            ), 2
        except ImportError:
            pass
    """
    call = "importlib.import_module( prefix + name, )"
    assert scan(source).unreadable == (DynamicImport(call, 3, guarded=True),)


def test_long_unreadable_call_is_shortened() -> None:
    (found,) = scan(f"__import__({' + '.join(['name'] * 100)})").unreadable
    assert len(found.call) == 80
    assert found.call.startswith("__import__(name + name") and found.call.endswith("...")


def test_unreadable_call_that_never_runs_is_ignored() -> None:
    assert scan("if TYPE_CHECKING:\n __import__(name)").unreadable == ()


@pytest.mark.parametrize(
    "source",
    [
        "from somewhere import import_module\nimport_module('a')",
        "def import_module(name): ...\nimport_module('a')",
        "def f(import_module): import_module('a')",
        "loader.import_module('a')",
        "pytest.importorskip('a')",
        "text = \"importlib.import_module('a')\"",
    ],
)
def test_function_of_same_name_imports_nothing(source: str) -> None:
    result = scan(source)
    assert "a" not in {item.module for item in result.imports}
    assert result.unreadable == ()


def test_method_does_not_hide_importing_function() -> None:
    source = """
        from importlib import import_module
        class C:
            def import_module(self, name):
                return import_module("a")
    """
    assert kinds(source)["a"] is DYNAMIC


def test_fallback_does_not_hide_importing_function() -> None:
    source = """
        try:
            from importlib import import_module
        except ImportError:
            def import_module(name): ...
        import_module("a")
    """
    assert kinds(source)["a"] is DYNAMIC


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = 1", "a"),
        ("a = b = 1", "ab"),
        ("a, (b, *c) = x", "abc"),
        ("[a, b] = x", "ab"),
        ("a.b = x; c[d] = x", ""),
        ("a += 1", "a"),
        ("a: int = 1\nb: int", "a"),
        ("def a(p):\n l = 1\nasync def b(): pass\nclass c:\n m = 1", "abc"),
        ("for a, b in x:\n c = 1\nelse:\n d = 1", "abcd"),
        ("with x as a, y as (b, c): d = 1", "abcd"),
        ("import a.b\nimport a.b as c\nfrom x import y as z, w\nfrom v import *", "aczw"),
        ("try:\n a = 1\nexcept E as e:\n b = 1\nelse:\n c = 1\nfinally:\n d = 1", "abcd"),
        ("if x:\n a = 1\nelif y:\n b = 1\nelse:\n c = 1", "abc"),
        ("while x:\n a = 1", "a"),
        (
            "match x:\n case [a, *b]: pass\n case {'k': c, **d}: pass\n case E(e) as f: pass",
            "abcdef",
        ),
        ("if (a := 1): pass", "a"),
        ("x1[(a := 1)] = [b := 1 for _ in y]", "ab"),
        ("f(lambda: (a := 1))", ""),
        ("def g(p=(a := 1)): (b := 1)", "ga"),
        ("def f():\n global a\n a = 1\n b = 1", "fa"),
        ("def f():\n global a, b\n for a in x: import b", "fab"),
        ("def f():\n global a\n return (a := 1)", "fa"),
        ("class f:\n global a\n def a(): pass", "fa"),
        ("def f():\n global a\n def g():\n  a = 1", "f"),
        ("a = b = 1\ndel a", "b"),
        ("if TYPE_CHECKING:\n a = 1\nelse:\n b = 1", "b"),
        ("[a for a in x]", ""),
    ],
)
def test_bound_contains_module_level_names(source: str, names: str) -> None:
    assert scan(source).bound == set(names)


@pytest.mark.parametrize("source", ["from . import x", "from pkg import x", "import pkg.x as x"])
def test_bound_excludes_own_submodule(source: str) -> None:
    assert scan(source, "pkg", is_package=True).bound == frozenset()
    assert scan(source, "pkg.mod").bound == {"x"}


def test_bound_includes_alias_of_own_submodule() -> None:
    source = "from . import x as y\nfrom .z import z"
    assert scan(source, "pkg", is_package=True).bound == {"y", "z"}


@pytest.mark.parametrize(
    ("source", "exported"),
    [
        ("x = 1", None),
        ("__all__ = ['a', 'b']", ("a", "b")),
        ("__all__ = ('a',)", ("a",)),
        ("__all__ = []", ()),
        ("__all__: list[str] = ['a']", ("a",)),
        ("__all__ = ['a'] + ['b'] + ['c']", ("a", "b", "c")),
        ("__all__ = ['a']\n__all__ += ['b']\n__all__ += ('c',)", ("a", "b", "c")),
        ("__all__ = ['a']\n__all__ = __all__ + ['b']", ("a", "b")),
        ("__all__ = ['a']\n__all__.extend(['b', 'c'])", None),
        ("__all__ = ['a']\nif x:\n __all__ += ['b']", ("a", "b")),
        ("if x:\n __all__ = ['a']\nelse:\n __all__ = ['b']", ("a", "b")),
        ("if TYPE_CHECKING:\n __all__ = f()\nelse:\n __all__ = ['b']", ("b",)),
        ("__all__ = f()\n__all__ = ['a']", None),
        ("__all__ = ['a']\ndef __dir__(): return sorted(__all__)", ("a",)),
        ("__all__ = [n for n in dir()]", None),
        ("__all__ = ['a', *other.__all__]", None),
        ("__all__ = ['a'] + other.__all__", None),
        ("__all__ = ['a']\n__all__ += other.__all__", None),
        ("__all__ = ['a']\n__all__.append(name)", None),
        ("__all__ = ['a']\n__all__.remove('a')", None),
        ("__all__ = ['a']\n__all__[0] = 'b'", None),
        ("__all__ = ['a']\ndel __all__", None),
        ("__all__, x = ['a'], 1", None),
        ("from .other import __all__", None),
        ("__all__ = []\ndef export(f):\n __all__.append(f.__name__)\n return f", None),
        ("__all__ = []\ndef f():\n global __all__\n __all__ = ['a']", None),
    ],
)
def test_exported_is_literal_all(source: str, exported: tuple[str, ...] | None) -> None:
    assert scan(source).exported == exported


DEEP = {
    "a sum": "x = " + " + ".join(["a"] * 2500),
    "parentheses": "x = " + "(" * 90 + "a" + ")" * 90,
    "elifs": "if a: pass\n" + "elif a: pass\n" * 900,
    "attribute calls": "x = a" + ".b()" * 900,
    "attributes": "x = a" + ".b" * 900,
    "negations": "if " + "not " * 900 + "a: pass",
    "conditionals": "x = " + "a if b else " * 900 + "c",
    "lambdas": "x = " + "lambda: " * 900 + "c",
    "joined names": "__import__(" + " + ".join(["'a'"] * 2500) + ")",
    "exported names": "__all__ = " + " + ".join(["['a']"] * 2500),
    "blocks": "\n".join(" " * n + "if a:" for n in range(90)) + "\n" + " " * 90 + "pass",
}


@pytest.mark.parametrize("shape", DEEP)
def test_scan_handles_deep_nesting(shape: str) -> None:
    # The dynamic import by another name makes the scan look into every expression.
    source = f"import first\n{DEEP[shape]}\n__import__('last')\n(w := 1)\nload = __import__\n"
    result = on_an_empty_stack(lambda: scan_source(source, "pkg.mod", False))
    assert result.failure is None
    assert result.imports[0].module == "first"
    assert result.imports[-1].module == "last"


def test_scan_handles_many_elifs() -> None:
    source = "if sys.platform:\n pass\n" + "elif a:\n pass\n" * 900 + "else:\n import b"
    (found,) = on_an_empty_stack(lambda: scan_source(source, "pkg.mod", False)).imports
    assert found.kind is GUARDED


def test_scan_of_too_deep_nesting_fails() -> None:
    source = "x = " + "-" * 100_000 + "1"
    result = on_an_empty_stack(lambda: scan_source(source, "pkg.mod", False))
    assert result.failure is not None
    assert "nested" in result.failure.reason
    assert result.imports == ()


def test_scan_of_long_sum_does_not_raise() -> None:
    source = "import a\nx = " + " + ".join(["a"] * 5000)
    result = on_an_empty_stack(lambda: scan_source(source, "pkg.mod", False))
    assert result.failure is not None or result.imports[0].module == "a"


def test_scan_is_independent_of_stack_depth() -> None:
    source = "import first\n" + DEEP["a sum"]

    def deeper(levels: int) -> ModuleScan:
        return deeper(levels - 1) if levels else scan_source(source, "pkg.mod", False)

    assert on_an_empty_stack(lambda: deeper(700)).failure is None


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("x = 1\ny = = 2\n", 2, "invalid syntax"),
        ("def f(:\n", 1, "invalid syntax"),
        ("x = 1\nprint 'hello'\n", 2, "Missing parentheses"),
        ("x = '\n", 1, "unterminated string"),
        ("if x:\npass\n", 2, "expected an indented block"),
        ("x = (\n", 1, "never closed"),
        ("x = " + "(" * 300, 1, "nested"),
        ("x = 1\ny = '\0'\n", 2, "null bytes"),
        (b"x = 1\ny = '\0'\n", 2, "null bytes"),
        (b"x = 1\n\ny = '\xff'\n", 3, "utf-8"),
        (b"x = '\xff'\n", 1, "utf-8"),
        (b"# coding: ascii\n\n\nx = '\xe9'\n", 4, "ascii"),
        (b"# coding: no-such-thing\nx = 1\n", 1, "unknown encoding"),
        (b"#!/usr/bin/python\n# coding: no-such-thing\n", 2, "unknown encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\n", 1, "encoding problem"),
        (b"# coding: hex\n6162\n", None, "not a text encoding"),
        ("x = 1\ny = '\udc80'\n", 2, "surrogates"),
    ],
)
def test_scan_failure_has_line(source: str | bytes, line: int | None, reason: str) -> None:
    result = scan_source(source, "pkg.mod", False)
    assert result.failure is not None
    assert result == ModuleScan(failure=result.failure)
    assert result.failure.line == line
    assert reason in result.failure.reason
    assert "\n" not in result.failure.reason


@pytest.mark.parametrize(
    "source",
    [
        "import ü".encode(),
        b"\xef\xbb\xbf" + "import ü".encode(),
        "# -*- coding: latin-1 -*-\nimport ü".encode("latin-1"),
        "#!/bin/sh\n# vim: set fileencoding=cp1252 :\nimport ü".encode("cp1252"),
        "\ufeffimport ü",
        "# coding: ascii\nimport ü",
    ],
)
def test_scan_decodes_declared_encoding(source: str | bytes) -> None:
    assert [item.module for item in scan_source(source, "pkg.mod", False).imports] == ["ü"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_scan_accepts_all_line_endings(ending: str) -> None:
    source = ending.join(["'''", "'''", "import a", "__import__(x)"])
    for text in (source, source.encode()):
        result = scan_source(text, "pkg.mod", False)
        assert [(item.module, item.line) for item in result.imports] == [("a", 3)]
        assert result.unreadable == (DynamicImport("__import__(x)", 4),)


def test_scan_of_empty_source_is_empty() -> None:
    assert scan_source(b"", "pkg", True) == scan_source("", "pkg", True) == ModuleScan()


def test_scan_suppresses_escape_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan_source("x = '\\d'\nimport a", "pkg.mod", False).failure is None


def test_scan_runs_no_code(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    source = f"open({str(witness)!r}, 'w')\nimport antigravity_of_modpack\n"
    scan_source(source, "pkg.mod", False)
    assert not witness.exists()
    assert "antigravity_of_modpack" not in sys.modules


LIBRARY = Path(json.__file__).parent.parent
SYMPY = find_spec("sympy")  # installed with torch, which requires it


def plain_imports(tree: ast.Module, package: str) -> Counter[tuple[str, int]]:
    """Return the import statements of a source."""
    found: Counter[tuple[str, int]] = Counter()
    parts = package.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            anchor = parts[: len(parts) - node.level + 1] if node.level else []
            found[".".join([*anchor, *filter(None, [node.module])]), node.lineno] += 1
    return found


def assert_scanned_whole(file: Path, root: Path) -> None:
    parts = file.relative_to(root).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    result = scan_source(file.read_bytes(), module, is_package)
    assert result.failure is None, file
    tree = ast.parse(file.read_bytes())
    home = module if is_package else module.rpartition(".")[0]
    calls = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = Counter((item.module, item.line) for item in result.imports if item.line not in calls)
    assert found == plain_imports(tree, home), file


@pytest.mark.parametrize("package", ["json", "email", "asyncio", "concurrent", "importlib"])
def test_scan_handles_standard_library(package: str) -> None:
    for file in sorted((LIBRARY / package).rglob("*.py")):
        assert_scanned_whole(file, LIBRARY)


@pytest.mark.parametrize("pattern", ["core/*.py", "polys/numberfields/*.py"])
def test_scan_handles_sympy(pattern: str) -> None:
    assert SYMPY is not None and SYMPY.origin is not None
    folder = Path(SYMPY.origin).parent
    files = sorted(folder.glob(pattern))
    assert len(files) > 5
    for file in files:
        assert_scanned_whole(file, folder.parent)


def optional(source: str) -> set[str]:
    """Return the optional modules of a source."""
    return {item.module for item in scan(source).imports if item.is_optional}


@pytest.mark.parametrize(
    "source",
    [
        "if {}:\n import a",
        "if y:\n pass\nelif {}:\n import a",
        "if {}:\n pass\nelse:\n import a",
        "while {}:\n import a",
        "match {}:\n case _: import a",
        "x = {} and __import__('a')",
        "x = __import__('a') if {} else None",
        "def f():\n if {}:\n  for x in y:\n   import a",
        "if {}:\n def f(): import a",
    ],
)
@pytest.mark.parametrize("test", ["HAS_X", "utils.is_available()", "y > 1"])
def test_import_under_condition_is_optional(source: str, test: str) -> None:
    assert optional(source.format(test)) == {"a"}


@pytest.mark.parametrize(
    "source",
    [
        "import a",
        "def f(): import a",
        "class C:\n import a",
        "for x in y:\n import a",
        "if True:\n import a",
        "if not TYPE_CHECKING:\n import a",
        "assert 1\nimport a",
    ],
)
def test_unconditional_import_is_not_optional(source: str) -> None:
    assert optional(source) == set()


@pytest.mark.parametrize(
    "leaving",
    [
        "if not HAS: raise ImportError('x')",
        "if not HAS:\n  log()\n  return",
        "assert HAS, 'install x'",
    ],
)
def test_import_after_conditional_exit_is_optional(leaving: str) -> None:
    source = f"""
import b
from importlib.util import find_spec
HAS = find_spec("a")
def f():
 import c
 {leaving}
 import a
 if y:
  import d
import e
"""
    assert optional(source) == {"a", "d"}
    names = {name: kinds(source)[name] for name in "abcde"}
    assert names == {**dict.fromkeys("acd", FUNCTION), **dict.fromkeys("be", REQUIRED)}


def test_import_after_version_check_is_required() -> None:
    source = "import sys\nif sys.version_info < (3, 9): raise RuntimeError\nimport a"
    assert optional(source) == set()
    assert kinds(source)["a"] is REQUIRED


def test_scan_frees_its_tree() -> None:
    source = "import sys\ndef f():\n if sys.path:\n  import a\n" + "x = f(1, 2)\n" * 1000
    scan(source)
    gc.collect()
    gc.disable()
    try:
        scan(source)
        assert gc.collect() < 500  # the tree has ten thousand nodes
    finally:
        gc.enable()
