"""Own modules that code finds by listing a folder."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from modpack import PackageExporter, PackageImporter, save
from modpack.core.rules import Action

FILES = {
    "shop/__init__.py": "",
    "shop/goods/bread.py": "price = 2\n",
    "shop/goods/fruit/__init__.py": "price = 3\n",
    "shop/goods/fruit/apple.py": "price = 4\n",
    "shop/goods/prices.txt": "",
}
HEAD = (
    "import glob, os, pkgutil, sys\nfrom importlib import import_module\nfrom pathlib import Path\n"
)
FLAT = {"shop", "shop.goods", "shop.goods.bread", "shop.goods.fruit"}
DEEP = FLAT | {"shop.goods.fruit.apple"}
HERE = "os.path.dirname(os.path.abspath(__file__))"


def planned(module, preset="pinned"):
    exporter = PackageExporter(None)
    exporter.use_preset(preset)
    if preset == "none":
        exporter.intern("shop.**")
    exporter.save_module(module)
    return exporter.plan()


@pytest.mark.parametrize(
    "source",
    [
        "for m in pkgutil.iter_modules(__path__): import_module(f'{__name__}.{m.name}')",
        f"for m in pkgutil.iter_modules([{HERE}]): import_module('.' + m.name, __name__)",
        f"for f in glob.glob({HERE} + '/[a-z]*.py'):\n"
        "    import_module('shop.goods.' + os.path.basename(f)[:-3])\n"
        "import shop.goods.fruit",
        f"for e in os.scandir({HERE}):\n"
        "    if e.is_dir() and '_' not in e.name: import_module('.' + e.name, __name__)\n"
        "for p in Path(__file__).parent.iterdir():\n"
        "    if p.name == 'bread.py': import_module(f'{__name__}.{p.stem}')",
    ],
)
@pytest.mark.parametrize("preset", ["pinned", "none"])
def test_loaded_modules_of_a_listed_folder_are_interned(project, source, preset):
    project({**FILES, "shop/goods/__init__.py": HEAD + source})
    import_module("shop.goods")
    plan = planned("shop.goods", preset)
    assert set(plan.modules(Action.INTERN)) == FLAT
    assert plan.problems == plan.warnings() == ()


def test_recursive_listing_interns_all_loaded_modules_below(project):
    source = "for m in pkgutil.walk_packages(__path__, __name__ + '.'): import_module(m.name)"
    project({**FILES, "shop/goods/__init__.py": HEAD + source})
    import_module("shop.goods")
    assert set(planned("shop.goods").modules(Action.INTERN)) == DEEP


@pytest.mark.parametrize(
    "source",
    [
        f"for f in glob.glob({HERE} + '/*.txt'): print(f, import_module)",
        f"for f in os.listdir({HERE}): print(f)",
        "for m in pkgutil.iter_modules(): print(import_module, m)",
    ],
)
def test_unrelated_listing_interns_no_module(project, source):
    project({**FILES, "shop/goods/__init__.py": HEAD + source})
    import_module("shop.goods.bread")
    assert set(planned("shop.goods").modules(Action.INTERN)) == {"shop", "shop.goods"}


def test_listing_of_a_module_that_is_not_loaded_is_a_warning(project):
    source = "for m in pkgutil.iter_modules(__path__): import_module(f'{__name__}.{m.name}')"
    project({**FILES, "shop/goods/__init__.py": HEAD + source})
    plan = planned("shop.goods")
    assert set(plan.modules(Action.INTERN)) == {"shop", "shop.goods"}
    assert [note.code for note in plan.warnings()] == ["dynamic-import"]


def test_listing_of_another_package_is_a_warning(project):
    source = (
        "import shop.goods, pkgutil, importlib\n"
        "for m in pkgutil.iter_modules(shop.goods.__path__):\n"
        "    importlib.import_module('shop.goods.' + m.name)\n"
    )
    project({**FILES, "shop/goods/__init__.py": "", "desk.py": source})
    import_module("desk")
    plan = planned("desk")
    assert set(plan.modules(Action.INTERN)) == {"desk", "shop", "shop.goods"}
    assert [note.code for note in plan.warnings()] == ["dynamic-import"]


def test_package_with_listed_folder_loads_without_the_folder(project, tmp_path, clean_python):
    source = (
        "from os.path import basename, dirname, join\nimport glob\n"
        "__all__ = [basename(f)[:-3] for f in glob.glob(join(dirname(__file__), '*.py'))\n"
        "           if not f.endswith('__init__.py')]\n"
    )
    project({"shop/__init__.py": source, "shop/bread.py": "price = 2\n", "shop/fish.py": ""})
    exec("from shop import *", {})
    with PackageExporter(tmp_path / "a.modpack") as exporter:
        exporter.intern("shop.**")
        exporter.save_source_string(
            "desk", "from shop import *\nfrom shop import bread as b\ntotal = bread.price\n"
        )
    with PackageImporter(tmp_path / "a.modpack") as importer:
        assert importer.import_module("desk").total == 2
    code = "import modpack; print(modpack.PackageImporter(path).import_module('shop').__all__)"
    assert "bread" in clean_python(code, path=tmp_path / "a.modpack").stdout


def test_submodules_in_computed_dunder_all_are_interned(project):
    project(
        {
            "shop/__init__.py": "from . import names\n__all__ = names.all_of_them()\n",
            "shop/names.py": "def all_of_them(): return ['bread']\n",
            "shop/bread.py": "",
            "shop/fish.py": "",
            "desk.py": "from shop import *\nclass Desk: pass\n",
        }
    )
    desk = __import__("desk")
    exporter = PackageExporter(None)
    exporter.use_preset("pinned")
    exporter.save_pickle("m", "m.pkl", desk.Desk())
    interned = set(exporter.plan().modules(Action.INTERN))
    assert interned == {"desk", "shop", "shop.names", "shop.bread"}


def test_loaded_entry_points_of_own_project_are_interned(project, installed, tmp_path):
    root = project(
        {
            "shop/__init__.py": "from importlib.metadata import entry_points\n"
            "GOODS = [e.load() for e in entry_points(group='shop.goods')]\n"
            "class Shop: pass\n",
            "shop/bread.py": "Bread = 1\n",
            "shop/fish.py": "Fish = 1\n",
        }
    )
    origin = json.dumps({"url": root.as_uri(), "dir_info": {"editable": True}})
    points = "[shop.goods]\nbread = shop.bread:Bread [fresh]\n\n[other]\nfish = shop.fish\n"
    metadata = {"direct_url.json": origin, "entry_points.txt": points, "top_level.txt": "shop\n"}
    installed("shop", {"shop-editable.pth": f"{root}\n"}, metadata=metadata)
    plan = save(__import__("shop").Shop(), tmp_path / "a.modpack", self_test=True)
    assert set(plan.modules(Action.INTERN)) == {"shop", "shop.bread"}
