"""Language features and typing in packaged code."""

from __future__ import annotations

import contextvars
import copy
import pickle
import typing


def test_dataclass_with_postponed_annotations_works(packaged):
    importer = packaged(
        {
            "till.py": """
            from __future__ import annotations
            import dataclasses
            from typing import ClassVar

            @dataclasses.dataclass(order=True)
            class Till:
                unit: ClassVar[str] = "EUR"
                total: int = 0
                inner: Till | None = None
                seed: dataclasses.InitVar[int] = 0

                def __post_init__(self, seed):
                    self.total += seed
            """
        }
    )
    till = importer.import_module("till").Till(2, seed=3)
    assert till.total == 5
    assert till.unit == "EUR"
    assert [field.name for field in till.__dataclass_fields__.values()][1] == "total"


def test_type_hints_resolve_in_packaged_module(packaged):
    importer = packaged(
        {
            "shop/__init__.py": "",
            "shop/coin.py": "class Coin: pass",
            "shop/till.py": """
            from __future__ import annotations
            import typing
            import shop.coin
            from shop.coin import Coin

            class Till:
                first: Coin
                def pay(self, coins: list[Coin]) -> shop.coin.Coin: ...

            hints = typing.get_type_hints(Till)
            """,
        }
    )
    till = importer.import_module("shop.till")
    coin = importer.import_module("shop.coin").Coin
    assert till.hints == {"first": coin}
    assert typing.get_type_hints(till.Till.pay) == {"coins": list[coin], "return": coin}


def test_module_finds_itself_in_sys_modules(packaged):
    importer = packaged(
        {
            "solo.py": """
            import sys
            this = sys.modules[__name__]
            setattr(this, "answer", 42)
            """
        }
    )
    module = importer.import_module("solo")
    assert module.this is module
    assert module.answer == 42


def test_module_can_replace_itself_in_sys_modules(packaged):
    importer = packaged(
        {
            "lazy/__init__.py": """
            import sys
            class Lazy:
                __file__ = __file__
                __path__ = __path__
                __spec__ = __spec__
                __name__ = __name__
                def __getattr__(self, name):
                    if name.startswith("__"):
                        raise AttributeError(name)
                    return f"lazy {name}"
            sys.modules[__name__] = Lazy()
            """,
            "lazy/part.py": "value = 1",
            "user.py": """
            import lazy
            import lazy as renamed
            import lazy.part
            from lazy import thing
            answers = (lazy.other, renamed.other, thing, lazy.part.value)
            """,
        }
    )
    assert importer.import_module("user").answers == ("lazy other", "lazy other", "lazy thing", 1)
    assert importer.import_module("lazy").anything == "lazy anything"


def test_module_getattr_provides_attributes_and_lazy_submodules(packaged):
    importer = packaged(
        {
            "pkg/__init__.py": """
            import importlib
            def __getattr__(name):
                if name == "heavy":
                    return importlib.import_module(".heavy", __name__)
                if name == "light":
                    return importlib.import_module("pkg.lamp").value
                raise AttributeError(name)
            def __dir__():
                return ["heavy", "light"]
            """,
            "pkg/heavy.py": "value = 'heavy'",
            "pkg/lamp.py": "value = 'light'",
            "user.py": """
            import pkg
            from pkg import light
            heavy = pkg.heavy.value
            try:
                pkg.absent
            except AttributeError as failure:
                absent = str(failure)
            names = dir(pkg)
            """,
        }
    )
    user = importer.import_module("user")
    assert (user.light, user.heavy, user.absent) == ("light", "heavy", "absent")
    assert user.names == ["heavy", "light"]


def test_subclass_registries_abc_protocols_generics_and_enums_work(packaged):
    importer = packaged(
        {
            "kinds.py": """
            from __future__ import annotations
            import abc, enum, functools, typing
            from collections import namedtuple

            class Registered:
                table: dict = {}
                def __init_subclass__(cls, key=None, **kw):
                    super().__init_subclass__(**kw)
                    Registered.table[key] = cls

            class One(Registered, key="one"): pass

            def labeled(cls):
                cls.label = cls.__qualname__
                return cls

            @labeled
            class Labelled: pass

            class Shape(abc.ABC):
                @abc.abstractmethod
                def area(self) -> float: ...

            class Square(Shape):
                def area(self): return 4.0

            @typing.runtime_checkable
            class HasArea(typing.Protocol):
                def area(self) -> float: ...

            T = typing.TypeVar("T")
            class Box(typing.Generic[T]):
                def __init__(self, value: T): self.value = value

            class Options(typing.TypedDict, total=False):
                width: int

            class Row(typing.NamedTuple):
                x: int
                y: int = 2

            Point = namedtuple("Point", "x y")

            class Color(enum.Enum):
                RED = enum.auto()
                BLUE = enum.auto()
                @property
                def pretty(self): return self.name.lower()

            class Flags(enum.IntFlag):
                A = 1
                B = 2

            @functools.singledispatch
            def show(value): return "anything"

            @show.register
            def _(value: int): return "int"

            @show.register(Square)
            def _(value): return "square"
            """
        }
    )
    kinds = importer.import_module("kinds")
    assert kinds.Registered.table == {"one": kinds.One}
    assert kinds.Labelled.label == "Labelled"
    assert isinstance(kinds.Square(), kinds.HasArea)
    assert kinds.Box[int](3).value == 3
    assert typing.get_type_hints(kinds.Options) == {"width": int}
    assert kinds.Row(1) == (1, 2)
    assert kinds.Color.RED.pretty == "red"
    shown = [kinds.show(value) for value in ("a", 1, kinds.Square())]
    assert shown == ["anything", "int", "square"]
    for value in (kinds.Color.BLUE, kinds.Flags.A | kinds.Flags.B, kinds.Point(1, 2)):
        assert pickle.loads(pickle.dumps(value)) == value
        assert type(copy.deepcopy(value)) is type(value)


def test_context_variables_and_logging_work(packaged, caplog):
    importer = packaged(
        {
            "traced/__init__.py": "",
            "traced/core.py": """
            import contextvars, logging
            log = logging.getLogger(__name__)
            level = contextvars.ContextVar("level", default=0)

            def raised(by):
                token = level.set(level.get() + by)
                try:
                    log.warning("level %d", level.get())
                    return level.get()
                finally:
                    level.reset(token)
            """,
        }
    )
    core = importer.import_module("traced.core")
    assert contextvars.copy_context().run(core.raised, 3) == 3
    assert core.level.get() == 0
    [record] = caplog.records
    assert record.getMessage() == "level 3"
    assert record.name.endswith(".traced.core")
    assert record.pathname == core.__file__


def test_pickle_inside_packaged_code_finds_packaged_classes(packaged):
    importer = packaged(
        {
            "store.py": """
            import copy, io, pickle

            class Item:
                def __init__(self, n): self.n = n
                def __eq__(self, other): return type(self) is type(other) and self.n == other.n
                __hash__ = None
                class Nested: pass

            def twice(item):
                return pickle.loads(pickle.dumps(item)), copy.deepcopy(item)
            """
        }
    )
    store = importer.import_module("store")
    item = store.Item(3)
    assert store.twice(item) == (item, item)
    assert pickle.loads(pickle.dumps(item)) == item
    assert type(pickle.loads(pickle.dumps(store.Item.Nested()))) is store.Item.Nested


def test_code_created_at_run_time_imports_packaged_modules(packaged):
    importer = packaged(
        {
            "made.py": """
            import types

            def by_exec():
                names = {}
                exec("import helper; value = helper.value", names)
                return names["value"]

            def by_exec_here():
                exec("import helper as found", globals())
                return found.value

            def by_eval():
                return eval("__import__('helper').value")

            def by_compile():
                code = compile("from helper import value as made", "<made>", "exec")
                module = types.ModuleType("made_module")
                exec(code, vars(module))
                return module.made
            """,
            "helper.py": "value = 'packaged'",
        }
    )
    importer.import_module("helper")
    made = importer.import_module("made")
    found = {made.by_exec(), made.by_exec_here(), made.by_eval(), made.by_compile()}
    assert found == {"packaged"}


def test_async_code_generators_and_closures_import_packaged_modules(packaged):
    importer = packaged(
        {
            "lazily.py": """
            import asyncio

            async def coroutine():
                import helper
                await asyncio.sleep(0)
                from helper import value
                return helper.value + value

            def generator():
                import helper as found
                yield found.value

            def closure():
                import helper
                def inner():
                    return helper.value
                return inner

            class Body:
                import helper
                value = helper.value

            by_lambda = lambda: __import__("helper").value
            """,
            "helper.py": "value = 1",
        }
    )
    lazily = importer.import_module("lazily")
    import asyncio

    assert asyncio.run(lazily.coroutine()) == 2
    assert next(lazily.generator()) == 1
    assert lazily.closure()() == 1
    assert lazily.Body.value == 1
    assert lazily.by_lambda() == 1


def test_names_added_to_builtins_are_visible_to_later_modules(packaged, monkeypatch):
    importer = packaged({"first.py": "", "second.py": "def greet(): return translated('hello')"})
    importer.import_module("first")
    monkeypatch.setattr("builtins.translated", str.upper, raising=False)
    assert importer.import_module("second").greet() == "HELLO"
