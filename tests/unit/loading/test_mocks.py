"""Operations on mocks in packaged code.

Most tests write a tiny package of this form and import it the way modpack's loader does::

    <private prefix>/
        _modpack_mock.py        the runtime
        lib/__init__.py         mocked by mock('lib.**')
        lib/sub.py              mocked by the same rule
        net.py                  imports lib; its source is the test's
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import copy
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import inspect
import itertools
import math
import operator
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import types
import typing
import warnings
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.package import PackageExporter, PackageImporter  # type: ignore[attr-defined]

from modpack.archive.layout import RUNTIME_MODULE
from modpack.exporting.mock_source import mock_source, runtime_source

RULE = "mock('lib.**')"
FACTS = (
    "but the module 'lib' is mocked in this package (rule: mock('lib.**'); imported through: net "
    "-> mylib.model -> lib). Intern or extern 'lib' when you export the package, or replace it "
    "with a module of your own: save_source_string('lib', ...)."
)
MOCKS = {
    f"{RUNTIME_MODULE}.py": runtime_source(),
    "lib/__init__.py": mock_source("lib", RULE, ("net", "mylib.model", "lib")),
    "lib/sub.py": mock_source("lib.sub", RULE, ("net", "lib.sub")),
}

_numbers = itertools.count()


class PackagedLoader(importlib.machinery.SourceFileLoader):
    """Marks modules as packaged and lets their absolute imports find each other."""

    def __init__(self, prefix: str, root: Path, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self.prefix = prefix
        self.root = root

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__modpack__"] = True
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self.redirect}
        super().exec_module(module)

    def redirect(
        self,
        name: str,
        globals: dict[str, object] | None = None,
        locals: dict[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        top = name.partition(".")[0]
        here = (self.root / top).is_dir() or (self.root / f"{top}.py").is_file()
        if level or not here:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        names = fromlist or ("__name__",)
        module = builtins.__import__(f"{self.prefix}.{name}", globals, locals, names, 0)
        return module if fromlist else sys.modules[f"{self.prefix}.{top}"]


class PackageFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of one tree of files under a private prefix."""

    def __init__(self, prefix: str, root: Path) -> None:
        self.prefix = prefix
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == self.prefix:
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(self.root)]
            return spec
        if not fullname.startswith(self.prefix + "."):
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is not None and found.origin is not None:
            found.loader = PackagedLoader(self.prefix, self.root, fullname, found.origin)
        return found


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return root


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., types.ModuleType]]:
    """Return ``load(source, more_files)``, which imports `net` of a fresh package."""
    finders: list[PackageFinder] = []

    def load(source: str, more: dict[str, str] | None = None) -> types.ModuleType:
        prefix = f"modpack_test{next(_numbers)}"
        root = write(tmp_path / prefix, {**MOCKS, **(more or {}), "net.py": source})
        finders.append(PackageFinder(prefix, root))
        sys.meta_path.insert(0, finders[-1])
        return importlib.import_module(f"{prefix}.net")

    yield load
    for finder in finders:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(finder.prefix)]:
            del sys.modules[name]


Load = Callable[..., types.ModuleType]


def refused(message: str) -> typing.Any:
    """Expect the error of a used mock whose text starts with a location and ``message``."""
    return pytest.raises(NotImplementedError, match=rf"^([\w.]+:\d+: )?{message}")


# --- the message ---------------------------------------------------------------------------


def test_error_shows_module_rule_chain_location_and_fix(load: Load) -> None:
    net = load("import lib\ndef f(): return lib.linalg.norm([1])")
    with pytest.raises(NotImplementedError) as caught:
        net.f()
    assert str(caught.value) == f"net:2: lib.linalg.norm was called, {FACTS}"


def test_error_outside_packaged_code_has_no_location(load: Load) -> None:
    net = load("import lib")
    with pytest.raises(NotImplementedError) as caught:
        net.lib.norm([1])
    assert str(caught.value) == f"lib.norm was called, {FACTS}"


def test_mock_error_has_fields_and_can_be_pickled(load: Load) -> None:
    net = load("import lib.sub\ndef f(): lib.sub.g()")
    with pytest.raises(NotImplementedError) as caught:
        net.f()
    error = caught.value
    facts = (error.name, error.module, error.rule, error.chain, error.operation)  # type: ignore[attr-defined]
    assert facts == ("lib.sub.g", "lib.sub", RULE, ("net", "lib.sub"), "was called")
    assert type(error).__name__ == "MockedModuleUsed"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_error_does_not_show_private_prefix(load: Load) -> None:
    net = load("import lib\n@lib.dec\ndef f(): pass\nclass A(lib.Base): pass")
    for use in (net.f, net.A, net.lib.g):
        with pytest.raises(NotImplementedError) as caught:
            use()
        assert "modpack_test" not in str(caught.value)


# --- attributes ----------------------------------------------------------------------------


def test_attribute_access_returns_the_same_mock(load: Load) -> None:
    net = load("import lib\nX = lib.X\nE = lib.SomeError")
    assert net.lib.X is net.X
    assert net.lib.SomeError is net.E
    assert net.lib.a.b.c is net.lib.a.b.c
    assert net.lib.a.b is not net.lib.b


def test_all_threads_get_the_same_attribute(load: Load) -> None:
    lib = load("import lib").lib
    barrier = threading.Barrier(8)
    seen: list[object] = []

    def look() -> None:
        barrier.wait()
        seen.extend(getattr(lib, f"X{number}Error") for number in range(50))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 * 50
    assert len(set(map(id, seen))) == 50


def test_attributes_can_be_set(load: Load) -> None:
    net = load("import lib\nlib.a.b = 3\nlib.c = 4\nlib.rc['size'] = 5\ndel lib.rc['size']")
    assert net.lib.a.b == 3
    assert net.lib.c == 4
    with refused("lib.rc was written to, "):
        net.lib.rc["size"] = 6


def test_mocked_module_has_version_but_no_other_dunder(load: Load) -> None:
    net = load("import lib\nfrom lib import __version__")
    assert repr(net.__version__) == "<mocked lib.__version__>"
    for name in ("__wrapped__", "__author__", "__deepcopy__"):
        assert not hasattr(net.lib, name)
        assert not hasattr(net.lib.X, name)
    for name in ("__iter__", "__len__", "__bases__", "__call__"):
        assert not hasattr(net.lib, name)
    assert not hasattr(net.lib.sub, "__path__")
    assert inspect.unwrap(net.lib.X) is net.lib.X


def test_star_import_from_mock_binds_nothing(load: Load) -> None:
    net = load("before = set(globals())\nfrom lib import *\nafter = set(globals())")
    assert net.after - net.before == {"before"}


def test_known_submodule_comes_before_mocked_attribute(load: Load) -> None:
    known = mock_source("known", RULE, ("net", "known"), submodules=["real"])
    net = load(
        "from known import real, other\nimport known\nagain = known.real",
        {"known/__init__.py": known, "known/real.py": "value = 42"},
    )
    assert net.real.value == net.again.value == 42
    assert repr(net.other) == "<mocked known.other>"


def test_mocked_submodule_supports_operations_of_mocks(load: Load) -> None:
    net = load("""
        import functools, typing
        import lib.sub
        from lib import sub
        @sub
        def decorated(): pass
        @sub(1)
        def configured(): pass
        made = sub("x").start()
        class Heir(sub): pass
        class Typed(sub[int]): pass
        class Built(metaclass=sub): pass
        def annotated(x: sub, y: typing.Optional[sub], z: "sub['T']") -> "sub | None": pass
        hints = typing.get_type_hints(annotated)
        with sub: pass
        choose = functools.singledispatch(lambda x: "plain")
        choose.register(sub, lambda x: "mocked")
        def call(): return sub(1)
        def ask(x): return isinstance(x, sub), bool(sub), sub.name, lib.sub is sub
    """)
    assert net.ask(1) == (False, True, net.lib.sub.name, True)
    assert isinstance(net.sub, types.ModuleType)
    assert net.hints["x"] is net.sub
    assert net.choose(1) == "plain"
    for use in (net.call, net.Heir, net.Typed, net.Built):
        with refused(r"lib\.sub.* but the module 'lib\.sub' is mocked"):
            use()
    for use in (net.decorated, net.configured):
        with pytest.raises(NotImplementedError, match=r"lib\.sub(\(\.\.\.\))? decorates"):
            use()
    assert importlib.reload(net.sub) is net.sub


def test_repr_of_mock_shows_its_name(load: Load) -> None:
    norm = load("import lib").lib.linalg.norm
    assert repr(norm) == str(norm) == f"{norm}" == "<mocked lib.linalg.norm>"


# --- when ----------------------------------------------------------------------------------


def test_functions_called_by_module_level_code_are_import_time(load: Load) -> None:
    net = load("""
        import lib
        def inner(): return lib.get_logger(__name__)
        def outer(): return inner()
        logger = outer()
    """)
    assert repr(net.logger) == "<mocked lib.get_logger(...)>"
    with refused(r"lib.get_logger was called, "):
        net.outer()
    with refused(r"lib.get_logger\(\.\.\.\).info was called, "):
        net.logger.info("x")


def test_import_during_a_call_is_import_time(load: Load) -> None:
    net = load(
        "import lib\ndef run():\n    import late\n    return late.made, lib.use()",
        {"late.py": "import lib\nmade = lib.make()"},
    )
    with refused("lib.use was called, "):
        net.run()


def test_host_module_that_runs_the_model_is_not_import_time(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = load("import lib\ndef f(): return lib.g()")
    write(tmp_path / "host", {"host_of_a_model.py": f"import {net.__name__} as net\nnet.f()"})
    monkeypatch.syspath_prepend(str(tmp_path / "host"))
    with refused("lib.g was called, "):
        importlib.import_module("host_of_a_model")


def test_other_package_that_runs_the_model_is_not_import_time(load: Load) -> None:
    net = load("import lib\ndef f(): return lib.g()")
    with refused("lib.g was called, "):
        load(f"import {net.__name__} as other\nother.f()")


def test_another_thread_is_not_importing(load: Load) -> None:
    net = load("""
        import lib, threading
        seen = []
        def use():
            try:
                lib.g()
            except NotImplementedError as error:
                seen.append(error)
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    """)
    assert len(net.seen) == 1


def test_text_executed_after_import_raises(load: Load) -> None:
    net = load("import lib\ndef f(): exec('lib.g()', globals())")
    with refused("lib.g was called, "):
        net.f()


def test_reloading_a_packaged_module_is_import_time(load: Load) -> None:
    net = load("import lib\nlogger = lib.get_logger()")
    assert repr(importlib.reload(net).logger) == "<mocked lib.get_logger(...)>"


def test_module_level_context_manager_propagates_exceptions(load: Load) -> None:
    net = load("""
        import lib
        with lib.ctx() as entered:
            inside = True
        try:
            with lib.suppress(ValueError):
                raise ValueError
        except ValueError:
            let_through = True
        def f():
            with lib.lock: pass
    """)
    assert net.inside
    assert net.let_through
    assert repr(net.entered) == "<mocked lib.ctx(...).__enter__()>"
    with refused("lib.lock was entered as a context, "):
        net.f()


# --- classes -------------------------------------------------------------------------------


def test_subclass_of_mock_cannot_be_instantiated(load: Load) -> None:
    net = load("""
        import lib
        class A(lib.X):
            "The doc."
            size = 3
            @classmethod
            def twice(cls): return 2 * cls.size
            @staticmethod
            def half(x): return x / 2
            def method(self): return 1
        class B(A): pass
    """)
    assert (net.A.size, net.A.twice(), net.A.half(4), net.A.__doc__) == (3, 6, 2, "The doc.")
    assert net.A.method(None) == 1
    assert net.A.__module__ == net.__name__
    with refused("lib.X is a base class of A, which was instantiated, "):
        net.A()
    with refused("lib.X is a base class of B, which was instantiated, "):
        net.B(1, key=2)


def test_isinstance_and_issubclass_work_with_a_subclass(load: Load) -> None:
    net = load("import lib\nclass A(lib.X): pass\nclass B(A): pass")
    assert issubclass(net.B, net.A)
    assert issubclass(net.B, net.lib.X)
    assert not issubclass(net.B, net.lib.Y)
    assert not issubclass(int, net.A)
    assert not isinstance(3, net.A)


def test_instantiating_subclass_at_import_returns_mock(load: Load) -> None:
    net = load("import lib\nclass A(lib.X):\n    def __init__(self): 1 / 0\na = A()")
    assert repr(net.a) == "<mocked lib.X(...)>"


@pytest.mark.parametrize(
    "statement",
    [
        "class A(lib.X, lib.Y): pass",
        "class A(lib.X, Real): pass",
        "class A(Real, lib.X): pass",
        "class A(dict, lib.X): pass",
        "class A(lib.X, int): pass",
        "class A(lib.X[int]): pass",
        "class A(lib.X[T], Generic[T]): pass",
        "class A(lib.X[T], Generic[T], table=True): pass",
        pytest.param(
            "class A(lib.X, table=True, name='a'): pass",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="ABCMeta rejects 'name'"),
        ),
        "class A(lib.X, ABC): pass",
        "class A(lib.X, metaclass=ABCMeta): pass",
        "class A(lib.X, WithMeta): pass",
        "class A(WithMeta, lib.X, lib.Y): pass",
        "class A(WithMeta, lib.X, WithDerivedMeta): pass",
        "class A(lib.X, Sized): pass",
        "class A(lib.X, SupportsInt): pass",
        "class Between(lib.X): pass\nclass A(Between, ABC): pass",
        "class Between(lib.X, WithMeta): pass\nclass A(Between, lib.X): pass",
        "class Between(lib.X): pass\nclass A(Between, lib.Y, WithMeta): pass",
        "class Between(lib.X[T]): pass\nclass A(Between[int]): pass",
        "class A(lib.make_base()): pass",
        "class A(lib.X):\n    __slots__ = ('a', '__dict__')",
        "class A(lib.X):\n    def __new__(cls): return object.__new__(cls)",
        "@dataclass\nclass A(lib.X):\n    x: int = 0",
        "class A(lib.SomeError): pass",
        "class A(lib.SomeError, ValueError): pass",
        "class A(lib.MeanSquaredError, Real): pass",
        "class A(metaclass=lib.Meta): pass",
        "class A(Real, metaclass=lib.Meta, key=1): pass",
        "class A(ABC, metaclass=lib.Meta): pass",
        "class A(WithMeta, metaclass=lib.Meta): pass",
        "class A(lib.X, metaclass=lib.Meta): pass",
        "class Between(metaclass=lib.Meta): pass\nclass A(Between): pass",
    ],
)
def test_every_form_of_a_class_statement_is_tolerated(load: Load, statement: str) -> None:
    head = """
        import lib
        from abc import ABC, ABCMeta
        from dataclasses import dataclass
        from typing import Generic, Sized, SupportsInt, TypeVar
        T = TypeVar("T")
        class Real:
            def real(self): return 1
        class Meta(type): pass
        class WithMeta(metaclass=Meta): pass
        class DerivedMeta(Meta): pass
        class WithDerivedMeta(metaclass=DerivedMeta): pass
    """
    net = load(textwrap.dedent(head) + statement)
    assert isinstance(net.A, type)
    with refused(r"lib\.\w+(\(\.\.\.\)|\[\.\.\.\])? is (a base class|the metaclass) of A, "):
        net.A()


def test_class_with_mocked_metaclass_keeps_its_body(load: Load) -> None:
    net = load("import lib\nclass A(metaclass=lib.Meta):\n    x = 1\n    def f(self): return 2")
    assert (net.A.x, net.A.f(None), net.A.__qualname__) == (1, 2, "A")
    with refused("lib.Meta is the metaclass of A, which was instantiated, "):
        net.A()


def test_inherited_attribute_of_subclass_is_mock(load: Load) -> None:
    net = load("""
        import lib
        class A(lib.Registrable): pass
        @A.register("b")
        class B(A): pass
        def f(): return A.from_file("x")
    """)
    assert net.A.register is net.lib.Registrable.register
    assert not hasattr(net.A, "_private")
    with refused("lib.Registrable.from_file was called, "):
        net.f()


def test_unpickling_an_instance_of_subclass_raises(load: Load) -> None:
    net = load("import lib\nclass A(dict, lib.X): pass")
    with refused("lib.X is a base class of A, which was instantiated, "):
        net.A.__new__(net.A)


def test_mocked_exception_in_except_clause_matches_nothing(load: Load) -> None:
    net = load("""
        import lib
        class Own(lib.OtherError): pass
        def f(error):
            try:
                raise error
            except lib.SomeError:
                return "mocked"
            except (Own, lib.a.SomeException):
                return "own"
            except ValueError:
                return "real"
        at_import = f(ValueError())
        def fail(): raise lib.SomeError("no")
    """)
    assert net.at_import == net.f(ValueError()) == "real"
    with refused("lib.SomeError was called, "):
        net.fail()
    assert repr(net.lib.SomeError.code) == "<mocked lib.SomeError.code>"


def test_mocked_warning_can_be_filtered(load: Load) -> None:
    with warnings.catch_warnings():
        net = load("""
            import lib, warnings
            warnings.filterwarnings("ignore", category=lib.RankWarning)
        """)
    assert issubclass(net.lib.RankWarning, Warning)


# --- decorators ----------------------------------------------------------------------------


@pytest.mark.parametrize("decorator", ["lib.dec", "lib.dec(x=1)", "lib.dec()", "lib.app.on('/')"])
def test_decorated_function_is_mock_that_names_its_decorator(load: Load, decorator: str) -> None:
    net = load(f"import lib\n@{decorator}\ndef train(x: int):\n    'Docs.'\n    return x")
    assert (net.train.__name__, net.train.__doc__) == ("train", "Docs.")
    assert net.train.__module__ == net.__name__
    assert net.train.__wrapped__(7) == 7
    assert str(inspect.signature(net.train)) == "(x: int)"
    assert "return x" in inspect.getsource(net.train)
    with refused(r"lib\.\S+ decorates train, which was called, but the module .lib. is mocked"):
        net.train(3)


def test_decorators_can_be_stacked(load: Load) -> None:
    net = load("""
        import lib, functools
        def real(f):
            @functools.wraps(f)
            def wrapper(*args): return f(*args)
            return wrapper
        @real
        @lib.outer
        @lib.inner(1)
        @real
        def f(): return 1
    """)
    assert net.f.__name__ == "f"
    with refused("lib.outer decorates f, which was called, "):
        net.f()


@pytest.mark.parametrize("decorator", ["lib.dec", "lib.dec(x=1)"])
def test_mock_decorated_class_can_only_be_subclassed(load: Load, decorator: str) -> None:
    net = load(f"import lib\n@{decorator}\nclass A:\n    x = 1\nclass B(A):\n    y = 2")
    assert net.A.__name__ == "A"
    assert net.A.__wrapped__.x == 1
    assert net.B.y == 2
    assert issubclass(net.B, net.A)
    assert not isinstance(3, net.A)
    with refused(r"lib\.\S+ decorates A, which was called, "):
        net.A()
    with refused(r"lib\.\S+ decorates A, which is a base class of B, which was instantiated, "):
        net.B()


def test_only_decorated_methods_are_mocks(load: Load) -> None:
    net = load("""
        import lib
        class A:
            @lib.jit
            def fast(self): return 1
            @property
            @lib.cached
            def size(self): return 2
            @lib.dec
            @staticmethod
            def static(): return 3
            @classmethod
            @lib.dec
            def build(cls): return 4
            def slow(self): return 5
        def fast(a): return a.fast()
    """)
    a = net.A()
    assert a.slow() == 5
    assert a.fast is net.A.fast
    with refused(r"lib.jit decorates A.fast, which was called, "):
        net.fast(a)
    with refused(r"lib.cached decorates A.size, which was called, "):
        _ = a.size
    with refused(r"lib.dec decorates A.static, which was called, "):
        a.static()
    with refused(r"lib.dec decorates A.build, which was called, "):
        net.A.build()


# --- annotations ---------------------------------------------------------------------------

ANNOTATIONS = [
    "lib.T",
    "lib.T[int]",
    "lib.T[int, 'b c']",
    "lib.Float['b c']",
    "lib.T[[int], str]",
    "Optional[lib.T]",
    "Union[int, lib.T]",
    "lib.T | None",
    "None | lib.T",
    "int | lib.T",
    "lib.T | int",
    "lib.T | lib.U",
    "lib.T[int] | None",
    "list[int] | lib.T",
    "list[lib.T]",
    "Dict[str, lib.T]",
    "Callable[[lib.T], int]",
    "Type[lib.T]",
    "lib.SomeError | None",
    "Annotated[lib.T, 'x']",
]


@pytest.mark.parametrize("annotation", ANNOTATIONS)
@pytest.mark.parametrize("postponed", [False, True])
def test_annotations_are_tolerated_and_can_be_resolved(
    load: Load, annotation: str, postponed: bool
) -> None:
    future = "from __future__ import annotations\n" if postponed else ""
    net = load(f"""{future}
import lib
from dataclasses import dataclass
from typing import Annotated, Callable, Dict, Optional, Type, Union
@dataclass
class Config:
    x: {annotation}
    y: {annotation} = None
def f(x: {annotation}) -> {annotation}: return x
""")
    assert set(typing.get_type_hints(net.f)) == {"x", "return"}
    assert set(typing.get_type_hints(net.Config)) == {"x", "y"}
    assert [field.name for field in dataclasses.fields(net.Config)] == ["x", "y"]
    assert net.Config(1).x == 1
    assert net.f(3) == 3


def test_union_with_mock_is_real_union(load: Load) -> None:
    net = load("import lib\nA = int | lib.T\nB = lib.T | None")
    assert typing.get_args(net.A) == (int, net.lib.T)
    assert typing.get_args(net.B) == (net.lib.T, type(None))
    assert isinstance(3, net.A)
    assert not isinstance("3", net.A)


def test_typing_helpers_accept_mocks(load: Load) -> None:
    net = load("""
        import lib
        from typing import ClassVar, Generic, NewType, TypeVar, cast
        T = TypeVar("T", bound=lib.X)
        S = TypeVar("S", lib.X, lib.Y)
        UserId = NewType("UserId", lib.X)
        class Box(Generic[T]):
            shared: ClassVar[lib.X]
            def get(self) -> T: return cast(lib.T[int], 3)
        IntBox = Box[lib.X]
    """)
    assert net.T.__bound__ is net.lib.X
    assert net.S.__constraints__ == (net.lib.X, net.lib.Y)
    assert net.UserId(5) == 5
    assert net.IntBox().get() == 3


def test_single_dispatch_on_a_mocked_class_never_matches(load: Load) -> None:
    net = load("""
        import lib
        from functools import singledispatch
        @singledispatch
        def kind(x): return "other"
        @kind.register(lib.ndarray)
        def _(x): return "mocked"
        @kind.register
        def _(x: lib.Tensor): return "mocked too"
        @kind.register(int)
        def _(x): return "int"
    """)
    assert [net.kind(x) for x in (1, "1")] == ["int", "other"]
    assert not inspect.isclass(net.lib.ndarray)


def test_indexing_with_data_after_import_raises(load: Load) -> None:
    net = load("import lib\nat_import = lib.TABLE[3]\ndef f(): return lib.TABLE[3]")
    assert repr(net.at_import) == "<mocked lib.TABLE[...]>"
    with refused("lib.TABLE was indexed, "):
        net.f()


# --- questions -----------------------------------------------------------------------------


def test_isinstance_of_mocked_class_is_false(load: Load) -> None:
    net = load("import lib\nat_import = isinstance(3, lib.X)")
    lib = net.lib
    assert not net.at_import
    assert not isinstance(3, lib.X)
    assert not isinstance(lib.X, lib.X)
    assert isinstance(3, (lib.X, int))
    assert not issubclass(int, lib.X)
    assert not issubclass(lib.X, int)
    assert not issubclass(lib.X, lib.Y)


def test_mock_is_callable_and_equals_only_itself(load: Load) -> None:
    lib = load("import lib").lib
    assert callable(lib.X)
    assert lib.X == lib.X
    assert lib.X != lib.Y
    assert {lib.X: 1}[lib.X] == 1


NEEDS_A_VALUE: dict[str, Callable[[typing.Any], object]] = {
    "bool": bool,
    "not": operator.not_,
    "len": len,
    "iter": iter,
    "reversed": reversed,
    "next": next,
    "unpack": lambda x: [*x],
    "in": lambda x: 1 in x,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "slice": lambda x: [1, 2][x],
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "neg": operator.neg,
    "invert": operator.invert,
    "abs": abs,
    "bytes": bytes,
    "fspath": os.fspath,
    "format": lambda x: f"{x:.3f}",
    "add": lambda x: x + 1,
    "radd": lambda x: 1 + x,
    "iadd": lambda x: sum([x]),
    "mul": lambda x: x * 2,
    "rsub": lambda x: 2 - x,
    "matmul": lambda x: x @ x,
    "div": lambda x: x / 2,
    "rpow": lambda x: 2**x,
    "mod": lambda x: x % 2,
    "divmod": lambda x: divmod(x, 2),
    "shift": lambda x: x << 1,
    "and": lambda x: x & int,
    "xor": lambda x: x ^ 1,
    "or with data": lambda x: x | 1,
    "ror with data": lambda x: {} | x,
    "lt": lambda x: x < 1,
    "gt": lambda x: operator.gt(1, x),
    "le": lambda x: x <= x,
    "sorted": lambda x: sorted([x, x]),
    "array": lambda x: torch.tensor([1.0]).numpy() @ x,
    "asarray": numpy.asarray,
    "array of its own": numpy.array,
    "tensor": torch.tensor,
    "pickle": pickle.dumps,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("operation", NEEDS_A_VALUE.values(), ids=NEEDS_A_VALUE)
def test_operations_on_values_always_raise(
    load: Load, operation: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = load("import lib\nx = lib.f(1)")
    with refused(r"lib\.f\(\.\.\.\) was .*, but the module 'lib' is mocked"):
        operation(net.x)
    host = types.SimpleNamespace(operation=operation)
    monkeypatch.setitem(sys.modules, "host_operation", typing.cast(types.ModuleType, host))
    with refused(r"lib\.pi was .*, but the module 'lib' is mocked"):
        load("import lib, host_operation\nhost_operation.operation(lib.pi)")


def test_data_use_at_module_level_stops_the_import(load: Load) -> None:
    for line in ("lib.pi * 2", "bool(lib.flag)", "[x for x in lib.names]", "lib.a < 3"):
        with refused(r"lib\.\w+ was "):
            load(f"import lib\n{line}")


def test_await_and_its_relatives_raise(load: Load) -> None:
    net = load("""
        import lib
        async def wait(): await lib.future
        async def loop():
            async for _ in lib.stream: pass
        async def enter():
            async with lib.session: pass
    """)
    for coroutine, message in (
        (net.wait, "lib.future was awaited, "),
        (net.loop, "lib.stream was iterated over, "),
        (net.enter, "lib.session was entered as a context, "),
    ):
        with refused(message):
            asyncio.run(coroutine())


# --- the sources ---------------------------------------------------------------------------


def test_mock_runtime_needs_only_stdlib_and_python_3_8() -> None:
    tree = ast.parse(runtime_source(), feature_version=(3, 8))
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names | {"__future__"}


def test_mock_source_describes_the_mock() -> None:
    source = mock_source("numpy.linalg", "mock('numpy.**')", ("net", "mylib", "numpy.linalg"))
    doc = ast.get_docstring(ast.parse(source, feature_version=(3, 8)))
    assert doc is not None
    assert doc.startswith("Mock of the module numpy.linalg, which is not included in this package.")
    assert "Rule: mock('numpy.**')\n" in doc
    assert "Imported through: net -> mylib -> numpy.linalg\n" in doc


@given(
    module=st.text(),
    rule=st.text(),
    chain=st.lists(st.text(), min_size=1).map(tuple),
    submodules=st.sets(st.text()),
)
def test_no_text_in_a_mock_can_become_code(
    module: str, rule: str, chain: tuple[str, ...], submodules: set[str]
) -> None:
    source = mock_source(module, rule, chain, submodules)
    tree = ast.parse(source)
    plain = ast.parse(mock_source("m", "r", ("m",), submodules and {"s"}))
    kinds = [type(statement) for statement in tree.body]
    assert kinds == [type(statement) for statement in plain.body]
    assert f"Mock of the module {module}," in str(ast.literal_eval(tree.body[0].value))  # type: ignore[attr-defined]
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call))
    facts = [ast.literal_eval(keyword.value) for keyword in call.keywords]
    assert facts == [module, rule, chain]


# --- elsewhere -----------------------------------------------------------------------------

NET = """
    import lib, lib.sub
    from abc import ABC

    logger = lib.get_logger(__name__)

    class Layer(lib.Module, ABC):
        @lib.jit
        def fast(self, x: "lib.T | None" = None): return x

    @lib.sub.dec(level=2)
    def decorated(): return 1

    def model(x): return lib.norm(x)
"""


SERVE = """
    import importlib.machinery
    import sys

    class Loader(importlib.machinery.SourceFileLoader):
        def exec_module(self, module):
            module.__modpack__ = True
            super().exec_module(module)

    sys.path_hooks.insert(0, importlib.machinery.FileFinder.path_hook((Loader, [".py"])))
    sys.path.insert(0, sys.argv[1])
    sys.path_importer_cache.clear()

    import net

    print("imported")
    net.model(3)
"""


def test_script_that_calls_the_model_raises(tmp_path: Path) -> None:
    write(tmp_path, {**MOCKS, "net.py": NET, "serve.py": SERVE})
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "serve.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "imported\n"
    assert done.stderr.strip().endswith(f"MockedModuleUsed: net:14: lib.norm was called, {FACTS}")


def save_archive(path: Path, sources: dict[str, str]) -> str:
    """Write modules with torch's own exporter, mocks first, and return the path."""
    with PackageExporter(str(path)) as exporter:
        exporter.extern(["host_bridge", "sys"])
        for file, text in {**MOCKS, **sources}.items():
            name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            source = textwrap.dedent(text)
            exporter.save_source_string(name, source, is_package=file.endswith("__init__.py"))
    return str(path)


def test_mocks_work_in_an_archive_that_torch_package_loads(tmp_path: Path) -> None:
    path = save_archive(tmp_path / "net.pt", {"net.py": NET})
    net = PackageImporter(path).import_module("net")

    assert repr(net.logger) == "<mocked lib.get_logger(...)>"
    assert issubclass(net.Layer, ABC)
    assert net.decorated.__wrapped__() == 1
    with refused("lib.Module is a base class of Layer, which was instantiated, "):
        net.Layer()
    with refused("lib.jit decorates Layer.fast, which was called, "):
        net.Layer.fast(1)
    with refused(
        r"lib.sub.dec\(...\) decorates decorated, which was called, but the module 'lib.sub' is "
    ):
        net.decorated()
    with refused("lib.sub was called, but the module 'lib.sub' is "):
        net.lib.sub()
    with pytest.raises(NotImplementedError) as caught:
        net.model(3)
    assert str(caught.value) == f"net:14: lib.norm was called, {FACTS}"


def test_two_archives_of_torch_package_do_not_share_their_import_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = "import host_bridge\nhost_bridge.other.model(3)"
    bridge = types.ModuleType("host_bridge")
    monkeypatch.setitem(sys.modules, "host_bridge", bridge)
    path = save_archive(tmp_path / "net.pt", {"net.py": NET, "runs.py": runs})
    vars(bridge)["other"] = PackageImporter(path).import_module("net")
    with refused("lib.norm was called, "):
        PackageImporter(path).import_module("runs")


# --- what was done --------------------------------------------------------------------------


def touched(net: types.ModuleType) -> list[tuple[str, ...]]:
    """What packaged code did, without files: module, kind, name, operation, line."""
    runtime = sys.modules[f"{net.__name__.rpartition('.')[0]}.{RUNTIME_MODULE}"]
    return [(*each[:4], each[5]) for each in runtime.touches]


SWALLOWS = """
    import lib

    level = lib.level

    def use():
        try:
            lib.log(1)
        except NotImplementedError:
            pass
"""


def test_touches_include_swallowed_errors(
    load: Load,
) -> None:
    net = load(SWALLOWS)
    assert touched(net) == [("lib", "loaded", "", "", 0), ("lib", "named", "lib.level", "", 0)]
    net.use()
    net.use()
    assert touched(net)[2:] == [
        ("lib", "named", "lib.log", "", 0),
        ("lib", "used", "lib.log", "was called", 8),
    ]


def test_touches_contain_file_of_packaged_code(load: Load) -> None:
    net = load(SWALLOWS)
    net.use()
    runtime = sys.modules[f"{net.__name__.rpartition('.')[0]}.{RUNTIME_MODULE}"]
    (file,) = {each[4] for each in runtime.touches if each[1] == "used"}
    assert file == net.__file__


def test_touches_omit_names_accessed_outside_the_package(load: Load) -> None:
    net = load(SWALLOWS)
    assert hasattr(net.lib, "another")
    assert not [each for each in touched(net) if each[2] == "lib.another"]


def test_number_of_touches_is_limited(load: Load) -> None:
    net = load("import lib\n\ndef use():\n    return [getattr(lib, f'x{n}') for n in range(20000)]")
    net.use()
    assert len(touched(net)) == 10000
