from __future__ import annotations

import collections
import json
import sys
from types import ModuleType

import pytest

from modpack import Importer, ObjMismatchError, ObjNotFoundError, OrderedImporter, sys_importer


class Local(Importer):
    """An importer for given modules."""

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


def test_sys_importer_names_classes_and_functions():
    assert sys_importer.get_name(collections.OrderedDict) == ("collections", "OrderedDict")
    assert sys_importer.get_name(json.dumps) == ("json", "dumps")
    assert sys_importer.get_name(Outer.Inner) == (__name__, "Outer.Inner")
    assert sys_importer.get_name(len) == ("builtins", "len")


def test_get_name_accepts_name():
    assert sys_importer.get_name(json.JSONDecodeError, "JSONDecodeError") == (
        "json.decoder",
        "JSONDecodeError",
    )


def test_get_name_of_missing_object_raises():
    gone = type("Gone", (), {"__module__": __name__})
    for obj in (gone, lambda: None, type("X", (), {"__module__": "never_loaded"})):
        with pytest.raises(ObjNotFoundError):
            sys_importer.get_name(obj)


def test_get_name_of_unnamed_object_raises():
    with pytest.raises(ObjNotFoundError, match="neither __qualname__ nor __name__"):
        sys_importer.get_name(object())


def test_get_name_mismatch_names_both_files():
    twin = type("Outer", (), {"__module__": __name__})
    with pytest.raises(
        ObjMismatchError, match="Re-create the object from the current Outer"
    ) as failure:
        sys_importer.get_name(twin)
    assert str(failure.value).count(__file__) == 2


def test_get_name_imports_nothing():
    stranger = type("X", (), {"__module__": "antigravity"})
    with pytest.raises(ObjNotFoundError):
        sys_importer.get_name(stranger)
    assert "antigravity" not in sys.modules


def test_whichmodule_searches_loaded_modules(monkeypatch):
    class Constant:
        __module__ = None  # type: ignore[assignment]

    constant = Constant()
    monkeypatch.setitem(sys.modules, "keeps_it", module_with("keeps_it", CONSTANT=constant))
    assert sys_importer.get_name(constant, "CONSTANT") == ("keeps_it", "CONSTANT")


def test_custom_importer_names_objects():
    thing = type("Thing", (), {"__module__": "shop"})
    importer = Local(shop=module_with("shop", Thing=thing))
    module, name = importer.get_name(thing)
    assert getattr(importer.import_module(module), name) is thing


def test_ordered_importer_selects_importer_with_same_object():
    first, second = (type("Thing", (), {"__module__": "shop"}) for _ in range(2))
    both = OrderedImporter(
        Local(shop=module_with("shop", Thing=first)), Local(shop=module_with("shop", Thing=second))
    )
    assert both.get_name(second) == ("shop", "Thing")
    assert both.resolve(second)[0] is both.importers[1]
    assert both.resolve(first)[0] is both.importers[0]
    with pytest.raises(ObjMismatchError):
        both.get_name(type("Thing", (), {"__module__": "shop"}))


def test_ordered_importer_imports_from_first_that_has_module():
    shop = module_with("shop")
    both = OrderedImporter(Local(shop=shop), sys_importer)
    assert both.import_module("shop") is shop
    assert both.import_module("json") is json
    with pytest.raises(ModuleNotFoundError, match="no importer has 'nowhere_here'"):
        both.import_module("nowhere_here")


def test_ordered_importer_propagates_import_errors():
    class Breaks(Local):
        def import_module(self, module_name: str) -> ModuleType:
            raise ImportError("it is there, but it breaks")

    with pytest.raises(ImportError, match="it breaks"):
        OrderedImporter(Breaks(), sys_importer).import_module("json")


@pytest.mark.parametrize("stranger", [None, "sys", json, object()])
def test_ordered_importer_rejects_other_types(stranger):
    with pytest.raises(TypeError, match="importer must be a modpack importer"):
        OrderedImporter(sys_importer, stranger)


class Answers(Local):
    """An importer that reports one module for all objects."""

    def __init__(self, path: str, **modules: ModuleType) -> None:
        super().__init__(**modules)
        self.path = path

    def whichmodule(self, obj: object, name: str) -> str:
        return self.path


def test_ordered_whichmodule_tries_importers_in_order():
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


def test_whichmodule_searches_modules_of_custom_importer():
    class Constant:
        __module__ = None  # type: ignore[assignment]

    constant = Constant()
    importer = Local(shop=module_with("shop", CONSTANT=constant))
    assert importer.whichmodule(constant, "CONSTANT") == "shop"
    assert importer.whichmodule(constant, "OTHER") == "__main__"
    assert importer.get_name(constant, "CONSTANT") == ("shop", "CONSTANT")


def test_get_name_uses_reduced_name(monkeypatch):
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
