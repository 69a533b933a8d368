"""Namespaces and ``sys.modules``."""

from __future__ import annotations

import colorsys
import sys
from pathlib import Path

import pytest

from modpack.archive.module_index import ModuleIndex

SHOP = {
    "shop/__init__.py": "",
    "shop/till.py": "import sys\nsys.modules['shop_by_another_name'] = sys.modules[__name__]\n",
}


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_close_removes_all_names_of_packaged_modules(packaged, namespace):
    before = dict(sys.modules)
    importer = packaged(SHOP, namespace=namespace)
    till = importer.import_module("shop.till")
    assert sys.modules["shop_by_another_name"] is till is sys.modules[till.__name__]
    importer.close()
    assert {name for name in sys.modules if sys.modules[name] is till} == set()
    assert [name for name in sys.modules.keys() - before.keys() if "shop" in name] == []
    assert before.items() <= sys.modules.items()


def test_ready_returns_the_imported_module(packaged):
    importer = packaged(SHOP)
    namespace = importer._namespace
    assert namespace.ready("shop.till") is None
    till = namespace.import_module("shop.till")
    assert namespace.ready("shop.till") is till is namespace.ready(till.__name__)


def test_import_targets_are_recomputed_after_use(packaged):
    importer = packaged({"shop.py": "def dump():\n    import colorsys\n    return colorsys\n"})
    shop = importer.import_module("shop")
    assert shop.dump() is shop.dump() is colorsys
    index = ModuleIndex.build(["shop.py", "colorsys.py"], {})
    importer._namespace.use(index)
    (Path(shop.__file__).parent / "colorsys.py").write_text("ours = True\n")
    assert shop.__builtins__["__import__"]("colorsys").ours
