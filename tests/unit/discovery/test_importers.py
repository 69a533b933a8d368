from __future__ import annotations

import collections
import json
import sys
from types import ModuleType

import pytest

from modpack import Importer, ObjMismatchError, ObjNotFoundError, OrderedImporter, sys_importer


class Local(Importer):
    """Knows the modules that it is given."""

    def __init__(self, **modules: ModuleType) -> None:
        self.modules = modules

    def import_module(self, module_name: str) -> ModuleType:
        if module_name not in self.modules:
            raise ModuleNotFoundError(module_name, name=module_name)
        return self.modules[module_name]


def module_with(name: str, **contents: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    return module


class Outer:
    class Inner:
        pass


def test_python_itself_names_classes_functions_and_nested_ones():
    assert sys_importer.get_name(collections.OrderedDict) == ("collections", "OrderedDict")
    assert sys_importer.get_name(json.dumps) == ("json", "dumps")
    assert sys_importer.get_name(Outer.Inner) == (__name__, "Outer.Inner")
    assert sys_importer.get_name(len) == ("builtins", "len")


def test_a_name_may_be_given():
    assert sys_importer.get_name(json.JSONDecodeError, "JSONDecodeError") == (
        "json.decoder",
        "JSONDecodeError",
    )


def test_what_is_not_there_is_not_found():
    gone = type("Gone", (), {"__module__": __name__})
    for obj in (gone, lambda: None, type("X", (), {"__module__": "never_loaded"})):
        with pytest.raises(ObjNotFoundError):
            sys_importer.get_name(obj)


def test_what_has_no_name_is_not_found():
    with pytest.raises(ObjNotFoundError, match="neither __qualname__ nor __name__"):
        sys_importer.get_name(object())


def test_another_object_under_the_name_is_a_mismatch_that_says_where_both_are_from():
    twin = type("Outer", (), {"__module__": __name__})
    with pytest.raises(ObjMismatchError, match="importer=") as failure:
        sys_importer.get_name(twin)
    assert str(failure.value).count(__file__) == 2


def test_naming_imports_nothing():
    stranger = type("X", (), {"__module__": "antigravity"})
    with pytest.raises(ObjNotFoundError):
        sys_importer.get_name(stranger)
    assert "antigravity" not in sys.modules


def test_something_without_a_module_is_looked_for_in_the_loaded_ones(monkeypatch):
    class Constant:
        __module__ = None  # type: ignore[assignment]

    constant = Constant()
    monkeypatch.setitem(sys.modules, "keeps_it", module_with("keeps_it", CONSTANT=constant))
    assert sys_importer.get_name(constant, "CONSTANT") == ("keeps_it", "CONSTANT")


def test_the_contract_holds_for_a_users_importer():
    thing = type("Thing", (), {"__module__": "shop"})
    importer = Local(shop=module_with("shop", Thing=thing))
    module, name = importer.get_name(thing)
    assert getattr(importer.import_module(module), name) is thing


def test_ordered_importers_take_the_first_that_has_the_very_object():
    first, second = (type("Thing", (), {"__module__": "shop"}) for _ in range(2))
    both = OrderedImporter(
        Local(shop=module_with("shop", Thing=first)), Local(shop=module_with("shop", Thing=second))
    )
    assert both.get_name(second) == ("shop", "Thing")
    assert both.resolve(second)[0] is both.importers[1]
    assert both.resolve(first)[0] is both.importers[0]
    with pytest.raises(ObjMismatchError):
        both.get_name(type("Thing", (), {"__module__": "shop"}))


def test_ordered_importers_import_from_the_first_that_can():
    shop = module_with("shop")
    both = OrderedImporter(Local(shop=shop), sys_importer)
    assert both.import_module("shop") is shop
    assert both.import_module("json") is json
    with pytest.raises(ModuleNotFoundError, match="no importer has 'nowhere_here'"):
        both.import_module("nowhere_here")


def test_an_error_while_importing_is_not_taken_for_absence():
    class Breaks(Local):
        def import_module(self, module_name: str) -> ModuleType:
            raise ImportError("it is there, but it breaks")

    with pytest.raises(ImportError, match="it breaks"):
        OrderedImporter(Breaks(), sys_importer).import_module("json")


@pytest.mark.parametrize("stranger", [None, "sys", json, object()])
def test_only_importers_can_be_ordered(stranger):
    with pytest.raises(TypeError, match="OrderedImporter takes modpack importers"):
        OrderedImporter(sys_importer, stranger)


class Answers(Local):
    """Says that everything lives in one module."""

    def __init__(self, path: str, **modules: ModuleType) -> None:
        super().__init__(**modules)
        self.path = path

    def whichmodule(self, obj: object, name: str) -> str:
        return self.path


def test_ordered_whichmodule_asks_importers_in_order():
    paths = ["__main__", "shop", "till"]
    ordered = OrderedImporter(*map(Answers, paths))
    assert ordered.whichmodule(object(), "Thing") == "shop"
    assert OrderedImporter(Answers("__main__")).whichmodule(object(), "Thing") == "__main__"
    assert OrderedImporter(OrderedImporter(), ordered).whichmodule(object(), "Thing") == "shop"


def test_ordered_importer_without_importers_finds_nothing():
    with pytest.raises(ObjNotFoundError, match=r"OrderedImporter\(\)"):
        OrderedImporter().get_name(Outer)
    with pytest.raises(ModuleNotFoundError, match=r"OrderedImporter\(\)"):
        OrderedImporter().import_module("json")


def test_ordered_resolve_returns_innermost_importer():
    thing = type("Thing", (), {"__module__": "shop"})
    inner = Local(shop=module_with("shop", Thing=thing))
    assert OrderedImporter(OrderedImporter(inner)).resolve(thing)[0] is inner


def test_whichmodule_searches_the_modules_of_a_users_importer():
    class Constant:
        __module__ = None  # type: ignore[assignment]

    constant = Constant()
    importer = Local(shop=module_with("shop", CONSTANT=constant))
    assert importer.whichmodule(constant, "CONSTANT") == "shop"
    assert importer.whichmodule(constant, "OTHER") == "__main__"
    assert importer.get_name(constant, "CONSTANT") == ("shop", "CONSTANT")


def test_get_name_uses_the_name_that_an_object_reduces_to(monkeypatch):
    class Constant:
        __module__ = "keeps_it"

        def __reduce__(self) -> str:
            return "CONSTANT"

    class Broken:
        def __reduce__(self) -> str:
            raise ValueError("not now")

    constant = Constant()
    monkeypatch.setitem(sys.modules, "keeps_it", module_with("keeps_it", CONSTANT=constant))
    assert sys_importer.get_name(constant) == ("keeps_it", "CONSTANT")
    with pytest.raises(ObjNotFoundError, match="neither __qualname__ nor __name__") as failure:
        sys_importer.get_name(Broken())
    assert isinstance(failure.value.__cause__, ValueError)
