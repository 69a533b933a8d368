"""Imports that wait: semantics of modules whose imports are executed at the first use of a name."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import sys
import threading
import traceback
import typing
from types import ModuleType
from unittest import mock

import pytest

from modpack import PackageImporter
from modpack.core.selftest import WaitingImports
from modpack.errors import ModpackWarning
from modpack.loading.lazy import plan_of

SHOP = {
    "shop/__init__.py": """
        from .till import Till, total
        from . import stock
    """,
    "shop/till.py": "total = 3\nclass Till: ...\nclass Drawer(Exception): ...\n",
    "shop/stock.py": "items = ['pen']\n",
}
USER = "from shop.till import {name}\n"


@pytest.fixture(params=["private", "process"])
def lazy(packaged, request):
    """Package sources whose imports wait; return a function that imports one of its modules."""

    def package(files, **options):
        importer = packaged(files, lazy=True, namespace=request.param, **options)
        return importer.import_module

    return package


_of_other_tests: set[str] = set()


@pytest.fixture(autouse=True)
def _modules_of_other_tests():
    """Know the modules that earlier tests in this process have left, under other prefixes."""
    _of_other_tests.clear()
    _of_other_tests.update(sys.modules)


def is_loaded(name: str) -> bool:
    new = (each for each in list(sys.modules) if each not in _of_other_tests)
    return any(each == name or each.endswith(f".{name}") for each in new)


def test_import_waits_until_function_reads_the_name(lazy):
    user = lazy({**SHOP, "user.py": "from shop import total\ndef read(): return total\n"})("user")
    assert not is_loaded("shop")
    assert (user.read(), is_loaded("shop.till"), is_loaded("shop.stock")) == (3, True, False)


def test_name_is_the_object_itself(lazy):
    load = lazy(
        {
            **SHOP,
            "user.py": "from shop import Till\nimport shop.till as t\n\nx = 1\n"
            "def use(): return Till, t\n",
        }
    )
    kind, till = load("user").use()
    assert kind is load("shop.till").Till is load("shop").Till
    assert till is load("shop.till") and type(till) is ModuleType


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("class Sub(Till): ...\nresult = Sub.__mro__[1].__name__", "Till"),
        ("try:\n    raise Drawer\nexcept Drawer:\n    result = 1", 1),
        ("result = isinstance(Till(), Till)", True),
        ("result = eval('total + 1')", 4),
        ("exec('result = total')", 3),
        ("class A:\n    value = total\nresult = A.value", 3),
        ("result = [total for _ in 'ab']", [3, 3]),
        ("def f(x=total): return x\nresult = f()", 3),
        ("total += 1\nresult = total", 4),
        ("total = 9\nresult = total", 9),
        ("result = (lambda: total)()", 3),
    ],
)  # fmt: skip
def test_code_sees_the_object(lazy, code, expected):
    head = "from shop.till import Drawer, Till, total\n"
    assert lazy({**SHOP, "user.py": head + code})("user").result == expected


def test_attribute_and_from_import_from_outside_import_the_name(lazy):
    load = lazy(
        {**SHOP, "user.py": "from shop import total as t\n", "star.py": "from shop import *\n"}
    )
    shop = load("shop")
    assert not is_loaded("shop.till")
    assert load("user").t == 3
    assert shop.stock.items == ["pen"]
    assert load("star").total == 3


def test_module_becomes_ordinary_when_nothing_waits(lazy):
    user = lazy({**SHOP, "user.py": "from shop.till import total\ndef f(): return total\n"})("user")
    assert type(user) is not ModuleType
    assert repr(type(user)) == "<class 'module'>"
    user.f()
    assert type(user) is ModuleType
    assert type(user.__builtins__) is dict


@pytest.mark.parametrize("read", [vars, dir, lambda m: m.__dict__, inspect.getmembers])
def test_listing_a_module_includes_waiting_names(lazy, read):
    assert "total" in dict.fromkeys(
        each if isinstance(each, str) else each[0] for each in read(lazy(SHOP)("shop"))
    )


def test_unknown_name_raises_the_errors_of_python(lazy):
    user = lazy({"user.py": "from json.tool import main\ndef f(): return missing, main\n"})("user")
    with pytest.raises(NameError, match="name 'missing' is not defined"):
        user.f()
    with pytest.raises(AttributeError, match=r"module '.*user' has no attribute 'missing'"):
        _ = user.missing
    assert not hasattr(user, "missing")


def test_set_and_deleted_attributes_stay(lazy):
    shop = lazy(SHOP)("shop")
    shop.total = 5
    assert shop.total == 5 == vars(shop)["total"]
    del shop.total
    assert not hasattr(shop, "total")
    del shop.Till
    assert not hasattr(shop, "Till")
    with mock.patch.object(shop, "stock", "patched"):
        assert shop.stock == "patched"
    assert shop.stock.items == ["pen"]


@pytest.mark.parametrize(
    "statement",
    [
        "try:\n    import colorsys\n    is_there = True\nexcept ImportError:\n    print()",
        "try:\n    import colorsys\nexcept ImportError:\n    pass",
        "try:\n    import colorsys\nexcept Exception:\n    colorsys = None",
        "try:\n    import colorsys\n    n = colorsys.rgb_to_hsv\nexcept ImportError:\n    n = None",
        "try:\n    import colorsys\nexcept ImportError:\n    colorsys = None\nfinally:\n    n = 1",
        "colorsys = 0\ntry:\n    import colorsys\nexcept ImportError:\n    colorsys = None",
        "with open(__file__):\n    import colorsys",
        "for _ in 'a':\n    import colorsys",
        "import colorsys  # for its side effects",
        "class A:\n    import colorsys",
        "import colorsys\ndel colorsys",
        "import colorsys\ndef f():\n    global colorsys\n    colorsys = 1",
        "import colorsys\nassert globals()['colorsys']",
        "import colorsys\nassert 'colorsys' in dir()",
    ],
)
def test_import_runs_where_it_stands(packaged, statement, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    packaged({"user.py": f"{statement}\n"}, lazy=True).import_module("user")
    assert "colorsys" in sys.modules


PROBE = """
try:
    from shop.till import {name} as found
    import shop.stock as stock
    is_there = True
except (ImportError, ModuleNotFoundError):
    stock = None
    is_there = False
def read(): return found, stock, is_there
"""
OUTER = "from user import is_there\ndef answer(): return is_there\n"


def test_try_that_only_imports_waits_as_a_whole(lazy):
    user = lazy({**SHOP, "user.py": PROBE.format(name="total")})("user")
    assert not is_loaded("shop")
    found, stock, is_there = user.read()
    assert (found, stock.items, is_there) == (3, ["pen"], True)
    assert type(user) is ModuleType and vars(user)["stock"] is stock


@pytest.mark.parametrize("read", ["is_there", "found", "all"])
def test_try_whose_import_fails_later_binds_what_its_handler_sets(lazy, read):
    load = lazy({**SHOP, "user.py": PROBE.format(name="missing"), "outer.py": OUTER})
    user = load("user")
    assert not is_loaded("shop")
    if read == "is_there":
        assert load("outer").answer() is False
    elif read == "found":
        with pytest.raises(NameError):
            user.read()
        assert not hasattr(user, "found")
    else:
        assert "found" not in vars(user)
    assert (user.stock, user.is_there) == (None, False) and is_loaded("shop.till")


def test_second_try_for_the_same_name_decides_by_the_first(lazy):
    probe = (
        "try:\n    from shop.{0} import {1} as best\n    n = 1\nexcept ImportError:\n    n = {2}\n"
    )
    sources = probe.format("till", "total", 2) + probe.format("stock", "missing", 3)
    user = lazy({**SHOP, "user.py": sources + "def read(): return best, n\n"})("user")
    assert user.read() == (3, 3)


def test_error_that_the_try_does_not_catch_is_raised_at_the_first_use(lazy):
    probe = "try:\n    import broken\nexcept ImportError:\n    broken = None\n"
    user = lazy({"broken.py": "raise OSError('no disk')\n", "user.py": probe})("user")
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            _ = user.broken


def test_import_in_branch_of_if_waits(lazy, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    branches = "if len('a') == 1:\n    import colorsys\nelse:\n    colorsys = None\n"
    user = lazy({"user.py": branches + "def f(): return colorsys\n"})("user")
    assert "colorsys" not in sys.modules
    assert user.f() is sys.modules["colorsys"]


def test_module_getattr_is_asked_for_other_names_only(lazy):
    source = "from shop.till import total\ndef __getattr__(name): return name, total\n"
    user = lazy({**SHOP, "user.py": source})("user")
    assert (user.total, user.other) == (3, ("other", 3))


def test_function_that_lists_its_locals_does_not_matter(lazy):
    source = "from shop.till import total\ndef f(a): return locals(), total\n"
    user = lazy({**SHOP, "user.py": source})("user")
    assert not is_loaded("shop.till")
    assert user.f(1) == ({"a": 1}, 3)


def test_registration_in_a_module_that_no_name_needs_is_kept(lazy):
    files = {
        "reg/__init__.py": "from .table import TABLE\nfrom . import table\n",
        "reg/table.py": "TABLE = {}\nfrom . import entries\n",
        "reg/entries.py": "from .table import TABLE\nTABLE['a'] = 1\n",
    }
    assert lazy(files)("reg").TABLE == {"a": 1}


FAILING = {
    "user.py": "\n\nfrom broken import thing\ndef f():\n    return thing\n",
}


@pytest.mark.parametrize("error", ["ImportError('no')", "KeyError('no')", "AttributeError('no')"])
def test_failing_import_shows_its_statement_each_time(lazy, error):
    user = lazy({**FAILING, "broken.py": f"raise {error}\n"})("user")
    for _ in range(2):
        with pytest.raises(ImportError) as caught:
            user.f()
        trace = "".join(traceback.format_exception(caught.value))
        assert 'user.py", line 3, in <import that waited>' in trace
        assert "from broken import thing" in trace
    with pytest.raises(ImportError):
        hasattr(user, "thing")


def test_failing_import_works_once_its_cause_is_gone(lazy):
    source = "import os\nif 'SHOP_BROKEN' in os.environ: raise OSError('down')\nthing = 1\n"
    user = lazy({**FAILING, "broken.py": source})("user")
    with mock.patch.dict("os.environ", SHOP_BROKEN="1"), pytest.raises(OSError, match="down"):
        user.f()
    assert user.f() == 1


def test_missing_extern_is_reported_at_load(packaged):
    files = {"user.py": "import scales\ndef f(): return scales\n"}
    importer = packaged(files, extern=["scales"], lazy=True)
    with pytest.raises(ModuleNotFoundError, match="scales"):
        importer.import_module("user")


def test_reading_its_own_name_while_importing_raises(lazy):
    load = lazy(
        {"a/__init__.py": "from . import sub\n", "a/sub.py": "import a\nseen = hasattr(a, 'sub')\n"}
    )
    assert load("a").sub.seen is False


def test_circular_imports_work(lazy):
    files = {
        "left.py": "from right import r\ndef l(): return r()\n",
        "right.py": "from left import l\ndef r(): return l.__name__\n",
    }
    assert lazy(files)("left").l() == "l"


def test_threads_that_read_at_once_get_the_same_object(lazy):
    slow = "import time\ntime.sleep(0.05)\nclass Thing: ...\n"
    user = lazy({"user.py": "from slow import Thing\ndef f(): return Thing\n", "slow.py": slow})(
        "user"
    )
    found: list[type] = []
    threads = [threading.Thread(target=lambda: found.append(user.f())) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(found), len(set(found))) == (8, 1)


def test_submodule_is_an_attribute_of_its_package(lazy):
    files = {
        **SHOP,
        "shop/__init__.py": "",
        "user.py": "import shop\ndef f(): return shop.till.total, hasattr(shop, 'no')\n",
    }
    assert lazy(files)("user").f() == (3, False)


def test_function_of_the_name_of_its_module_wins(lazy):
    files = {"a/__init__.py": "from .fuse import fuse\n", "a/fuse.py": "def fuse(): return 1\n"}
    load = lazy(files)
    load("a.fuse")
    assert load("a").fuse() == 1


ANNOTATED = """
from shop.till import Till
def f(a, /, b: Till, *c: 'Till', d: int = 1, **e: Till) -> Till: return b
class A:
    Own = int
    def g(self, x: Till, y: Own) -> None: ...
"""


def test_annotations_are_evaluated_when_they_are_read(lazy):
    load = lazy({**SHOP, "user.py": ANNOTATED})
    user = load("user")
    assert not is_loaded("shop")
    found = user.f.__annotations__
    assert not is_loaded("shop")
    till = load("shop.till").Till
    expected = {"b": till, "c": "Till", "d": int, "e": till, "return": till}
    assert found == expected and list(found) == list(expected) and dict(found) == expected
    assert user.A.g.__annotations__ == {"x": till, "y": int, "return": None}
    assert copy.copy(found) == pickle_free(found) == expected
    assert inspect.signature(user.f).parameters["b"].annotation is till
    assert typing.get_type_hints(user.f)["c"] is till
    assert user.f.__code__.co_firstlineno == 3


def pickle_free(found: dict[str, object]) -> dict[str, object]:
    return {**found}


POSTPONED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from shop.till import Till
from shop.stock import items

@dataclass
class Row:
    till: Till
    kind: ClassVar[Till]

def f(x: Till) -> list[items]: ...
"""


def test_postponed_annotations_import_only_what_they_name(lazy):
    load = lazy({**SHOP, "shop/__init__.py": "", "user.py": POSTPONED})
    user = load("user")
    assert [each for each in user.Row.__dataclass_fields__] == ["till", "kind"]
    assert not is_loaded("shop.till")
    assert typing.get_type_hints(user.Row)["till"] is load("shop.till").Till
    assert not is_loaded("shop.stock")


def test_get_annotations_evaluates_names_that_wait(lazy):
    load = lazy({**SHOP, "user.py": POSTPONED})
    found = inspect.get_annotations(load("user").Row, eval_str=True)
    assert found["till"] is load("shop.till").Till


def test_pickle_by_name_finds_objects_that_wait(lazy):
    shop = lazy(SHOP)("shop")
    name = shop.__name__
    data = b"c" + f"{name}\nTill\n.".encode()
    assert pickle.loads(data) is shop.till.Till


def test_reload_binds_new_objects(lazy):
    user = lazy({**SHOP, "user.py": "from shop.till import Till\ndef f(): return Till\n"})("user")
    first = user.f()
    importlib.reload(sys.modules[first.__module__])
    assert importlib.reload(user).f() is not first


def test_source_and_lines_are_those_of_the_file(lazy):
    load = lazy({**SHOP, "user.py": ANNOTATED + "\ndef fail(): raise ValueError(Till)\n"})
    user = load("user")
    assert inspect.getsource(user.f).startswith("def f(a, /")
    with pytest.raises(ValueError, match="Till") as caught:
        user.fail()
    assert caught.traceback[-1].lineno + 1 == inspect.getsourcelines(user.fail)[1]


def test_close_executes_imports_that_wait(packaged):
    importer = packaged(
        {**SHOP, "user.py": "from shop import total\ndef f(): return total\n"}, lazy=True
    )
    user = importer.import_module("user")
    importer.close()
    assert user.f() == 3


def test_variable_turns_waiting_off(packaged, monkeypatch):
    files = {"user.py": "import colorsys\ndef f(): return colorsys\n"}
    path = packaged(files).filename
    for setting, is_waiting in (("0", False), ("1", True), ("", False)):
        monkeypatch.delitem(sys.modules, "colorsys", raising=False)
        monkeypatch.setenv("MODPACK_LAZY", setting)
        with PackageImporter(path) as importer:
            importer.import_module("user")
            assert ("colorsys" not in sys.modules) is is_waiting


def test_policy_that_restricts_imports_lets_none_wait(packaged, monkeypatch):
    from modpack import TrustPolicy

    path = packaged({"user.py": "import colorsys\ndef f(): return colorsys\n"}).filename
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.warns(ModpackWarning, match="without a signature"):
        policy = TrustPolicy(allow_code=True, allow_stdlib=("colorsys",))
    with PackageImporter(path, lazy=True, policy=policy) as importer:
        importer.import_module("user")
        assert "colorsys" in sys.modules


@pytest.mark.parametrize("kind", ["private", "process"])
def test_only_the_recorded_names_of_a_loaded_module_wait(packaged, monkeypatch, kind):
    source = "import colorsys\nimport filecmp\ndef f(): return colorsys, filecmp\n"
    path = packaged({"user.py": source}).filename
    # Each in the same cache, in which the others have stored their code.
    for names in (("colorsys",), ("filecmp",), (), ("colorsys", "filecmp"), ("colorsys",)):
        for module in ("colorsys", "filecmp"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        with PackageImporter(path, namespace=kind) as importer:
            record = WaitingImports({"user": names}, ("user",), ())
            importer._namespace.defer_imports(plan_of(record))
            user = importer.import_module("user")
            bound = ModuleType.__getattribute__(user, "f").__globals__
            assert {"colorsys", "filecmp"} - bound.keys() == set(names)
            assert user.f() == (sys.modules["colorsys"], sys.modules["filecmp"])


def test_error_of_an_import_is_not_replaced_by_that_of_a_companion(packaged):
    files = {
        "table.py": "rows = []\n",
        "entry.py": "raise RuntimeError('of the companion')\n",
        "broken.py": "import table\nraise ValueError('of the import')\n",
    }
    importer = packaged(files)
    record = WaitingImports({}, ("user", "table", "entry"), (("table", "entry"),))
    importer._namespace.defer_imports(plan_of(record))
    with pytest.raises(ValueError, match="of the import"):
        importer.import_module("broken")
    with pytest.raises(RuntimeError, match="of the companion"):
        importer.import_module("table")
