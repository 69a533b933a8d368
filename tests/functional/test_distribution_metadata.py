"""Metadata of interned distributions in packaged code."""

from __future__ import annotations

import importlib
import json
import zipfile
from pathlib import Path

import pytest
import torch

import modpack
from modpack import Action, PackageExporter, PackageImporter, sys_importer

NAMESPACES = pytest.mark.parametrize("namespace", ["private", "process"])
LIBRARY = {
    "my_shop/__init__.py": """
        from importlib import metadata

        __version__ = metadata.version("My.Shop")
    """,
    "my_shop/plugins.py": "def euro():\n    return 'euro'\n",
}
METADATA = {
    "entry_points.txt": "[shop.coins]\neuro = my_shop.plugins:euro\n",
    "top_level.txt": "my_shop\n",
    "licenses/LICENSE": "Do as you like.\n",
    "direct_url.json": '{"url": "file:///home/me/my-shop"}',
    "INSTALLER": "pip\n",
}


@pytest.fixture
def shop(installed, tmp_path):
    """A package with the library my-shop 1.5 and the user's own module ``asks``."""

    def export(asks: str = "", intern: tuple[str, ...] = (), **options: object) -> Path:
        site = installed("my-shop", LIBRARY, version="1.5", metadata=METADATA, **options)
        (site / "asks.py").write_text(f"import my_shop.plugins\n{asks}")
        with PackageExporter(tmp_path / "shop.pt") as exporter:
            for pattern in intern:
                exporter.intern(pattern)
            exporter.use_preset("hermetic")
            exporter.save_module("asks")
        return tmp_path / "shop.pt"

    return export


def answers(clean_python, package: Path, namespace: str = "private") -> dict[str, object]:
    """Return ``asks.answers`` from an interpreter without my-shop."""
    done = clean_python(
        """
        import json, modpack
        importer = modpack.PackageImporter(package, namespace=namespace)
        print(json.dumps(importer.import_module("asks").answers))
        """,
        package=package,
        namespace=namespace,
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


ASKS = """
from {library} import (
    Distribution, PackageNotFoundError, distribution, distributions, entry_points, files, metadata,
    packages_distributions, requires, version,
)

def fails(name):
    try:
        version(name)
    except PackageNotFoundError as failure:
        return failure.name
    raise AssertionError(name)

(euro,) = entry_points(group="shop.coins")
answers = dict(
    version=version("my-shop"),
    normalized=[version("My_Shop"), version("my.shop")],
    at_import=my_shop.__version__,
    name=metadata("my-shop")["Name"],
    requires=requires("my-shop"),
    files=[str(file) for file in files("my-shop") if file.suffix == ".py"],
    text=[file.read_text() for file in files("my-shop") if file.name == "LICENSE"],
    listed="my-shop" in [d.metadata["Name"] for d in distributions()],
    packages=packages_distributions()["my_shop"],
    entry_point=[euro.name, euro.value, euro.dist.version, euro.load()()],
    by_distribution=[e.load()() for e in distribution("my-shop").entry_points],
    by_name=[e.name for e in entry_points(name="euro")],
    from_name=Distribution.from_name("my-shop").version,
    discovered=[d.version for d in Distribution.discover(name="my-shop")],
    isinstance=isinstance(distribution("my-shop"), Distribution),
    torch=version("torch") == distribution("torch").version,
    absent=fails("no-such-distribution"),
    same=my_shop.plugins.euro is euro.load(),
)
"""
ANSWERS = {
    "version": "1.5",
    "normalized": ["1.5", "1.5"],
    "at_import": "1.5",
    "name": "my-shop",
    "requires": ["torch"],
    "files": ["my_shop/__init__.py", "my_shop/plugins.py"],
    "text": ["Do as you like.\n"],
    "listed": True,
    "packages": ["my-shop"],
    "entry_point": ["euro", "my_shop.plugins:euro", "1.5", "euro"],
    "by_distribution": ["euro"],
    "by_name": ["euro"],
    "from_name": "1.5",
    "discovered": ["1.5"],
    "isinstance": True,
    "torch": True,
    "absent": "no-such-distribution",
    "same": True,
}


@NAMESPACES
@pytest.mark.parametrize("library", ["importlib.metadata", "importlib_metadata"])
def test_interned_distribution_answers_every_metadata_query(shop, clean_python, library, namespace):
    package = shop(ASKS.format(library=library), requires=["torch"])
    assert answers(clean_python, package, namespace) == ANSWERS


def test_interned_importlib_metadata_gives_the_same_answers(shop, clean_python):
    code = ASKS.format(library="importlib_metadata")
    package = shop(code, ("importlib_metadata.**", "zipp.**"), requires=["torch"])
    assert answers(clean_python, package) == ANSWERS


@NAMESPACES
def test_packaged_metadata_precedes_installed_version(shop, installed, clean_python, namespace):
    package = shop("import importlib.metadata as m\nanswers = {'v': m.version('my-shop')}\n")
    installed("my-shop", {**LIBRARY, "my_shop/plugins.py": "raise ImportError"}, version="2.0")
    importer = PackageImporter(package, namespace=namespace)
    assert importer.import_module("asks").answers == {"v": "1.5"}
    importer.close()


def test_private_metadata_is_hidden_from_host(shop, clean_python):
    done = clean_python(
        """
        import importlib.metadata, modpack
        importer = modpack.PackageImporter(package)
        importer.import_module("asks")
        try:
            importlib.metadata.version("my-shop")
        except importlib.metadata.PackageNotFoundError:
            print("not there")
        """,
        package=shop(),
    )
    assert done.stdout == "not there\n"


def test_process_metadata_is_visible_to_host_until_close(shop, clean_python):
    done = clean_python(
        """
        import importlib.metadata as m, modpack
        importer = modpack.PackageImporter(package, namespace="process")
        print(m.version("my-shop"), [e.load()() for e in m.entry_points(group="shop.coins")])
        importer.close()
        print([d for d in m.distributions() if d.metadata["Name"] == "my-shop"])
        """,
        package=shop(),
    )
    assert done.stdout == "1.5 ['euro']\n[]\n"


@NAMESPACES
def test_unimportable_distribution_does_not_look_installed(shop, installed, tmp_path, namespace):
    installed("bank", {"bank.py": ""})
    package = shop(
        "from importlib import metadata, util\n"
        "names = {d.metadata['Name'] for d in metadata.distributions()}\n"
        "def has(name):\n"
        "    try:\n"
        "        return bool(metadata.version(name))\n"
        "    except metadata.PackageNotFoundError:\n"
        "        return False\n"
        "answers = [util.find_spec('bank') is None, has('bank'), 'bank' in names]\n"
    )
    with PackageImporter(package, namespace=namespace) as importer:
        assert importer.import_module("asks").answers == [True, False, False]


def test_requirement_of_extern_distribution_looks_installed(installed, tmp_path):
    installed("coins", {"coins.py": ""}, version="3.0")
    site = installed("till", {"till.py": ""}, requires=["coins>=2; python_version > '3'"])
    (site / "mine.py").write_text(
        "import till\nfrom importlib import metadata\ncoins = metadata.version('coins')\n"
    )
    with PackageExporter(tmp_path / "mine.pt") as exporter:
        exporter.use_preset("pinned")
        exporter.save_module("mine")
    with PackageImporter(tmp_path / "mine.pt") as importer:
        assert importer.import_module("mine").coins == "3.0"


def test_distribution_sees_versions_of_its_requirements(shop, installed, clean_python):
    installed("coins", {"coins.py": ""}, version="3.0")
    package = shop(
        "from importlib import metadata\n"
        "answers = {'coins': metadata.version('coins')}\n"
        "answers['group'] = list(metadata.entry_points(group='coins'))\n",
        requires=["coins >= 2", "extra-coins; extra == 'more'"],
    )
    assert answers(clean_python, package) == {"coins": "3.0", "group": []}


def test_packaged_metadata_omits_machine_specific_files(shop):
    with zipfile.ZipFile(shop()) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
        record = archive.read(next(n for n in archive.namelist() if n.endswith("/RECORD")))
    assert sorted(name for name in names if ".dist-info/" in name) == [
        "my_shop-1.5.dist-info/METADATA",
        "my_shop-1.5.dist-info/RECORD",
        "my_shop-1.5.dist-info/entry_points.txt",
        "my_shop-1.5.dist-info/licenses/LICENSE",
        "my_shop-1.5.dist-info/top_level.txt",
    ]
    listed = {line.partition(",")[0] for line in record.decode().splitlines()}
    assert listed == {name for name in names if "my_shop" in name}


def test_editable_install_is_packaged_with_name_and_version(installed, project, tmp_path):
    root = project(
        {"mine/__init__.py": "from importlib.metadata import version\nv = version('mine')"}
    )
    url = {"url": root.as_uri(), "dir_info": {"editable": True}}
    installed(
        "mine",
        {"mine.pth": str(root)},
        version="0.3",
        metadata={"direct_url.json": json.dumps(url)},
    )
    with PackageExporter(tmp_path / "mine.pt") as exporter:
        exporter.use_preset("pinned")
        exporter.save_module("mine")
        plan = exporter.plan()
    assert [(d.name, d.version, d.modules) for d in plan.distributions] == [
        ("mine", "0.3", ("mine",))
    ]
    with PackageImporter(tmp_path / "mine.pt") as importer:
        assert importer.import_module("mine").v == "0.3"


def test_reexport_keeps_metadata(shop, tmp_path):
    importer = PackageImporter(shop("answers = my_shop.__version__\n"))
    again = tmp_path / "again.pt"
    with PackageExporter(again, importer=[importer, sys_importer]) as exporter:
        exporter.use_preset("hermetic")
        exporter.save_module("asks")
        plan = exporter.plan()
    assert [(d.name, d.modules) for d in plan.distributions] == [
        ("my-shop", ("my_shop", "my_shop.plugins"))
    ]
    with PackageImporter(again) as loaded:
        assert loaded.import_module("asks").answers == "1.5"


def test_metadata_requested_by_self_test_is_added_once(installed, tmp_path):
    site = installed("coins", {"coins.py": ""}, version="3.0")
    (site / "mine.py").write_text("from importlib.metadata import version\nv = version('Coins')\n")
    with PackageExporter(tmp_path / "mine.pt") as exporter:
        exporter.use_preset("hermetic")
        exporter.save_module("mine")
        planner, why = exporter._planner, "the self-test asked for it"
        assert planner.package_data.add_metadata(planner.decisions(), "Coins", why)
        for name in ("coins", "no-such-distribution"):
            assert not planner.package_data.add_metadata(planner.decisions(), name, why)
    with PackageImporter(tmp_path / "mine.pt") as importer:
        assert importer.import_module("mine").v == "3.0"


def test_reexport_keeps_metadata_without_code(installed, tmp_path):
    site = installed("coins", {"coins.py": ""}, version="3.0")
    (site / "mine.py").write_text("from importlib.metadata import version\nv = version('coins')\n")
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    with PackageExporter(first) as exporter:
        exporter.use_preset("hermetic")
        exporter.save_module("mine")
        data, decisions = exporter._planner.package_data, exporter._planner.decisions()
        data.add_metadata(decisions, "coins", "the self-test asked for it")
    importer = PackageImporter(first)
    with PackageExporter(second, importer=[importer, sys_importer]) as exporter:
        exporter.use_preset("hermetic")
        exporter.save_module("mine")
    with PackageImporter(second) as loaded:
        assert loaded.import_module("mine").v == "3.0"


def test_torch_package_archive_uses_host_metadata(tmp_path):
    from torch.package import PackageExporter as AncestorsExporter

    with AncestorsExporter(str(tmp_path / "old.pt")) as exporter:
        source = "from importlib import metadata\nclick = metadata.version('click')\n"
        exporter.extern("importlib.**")
        exporter.save_source_string("mine", source)
    with PackageImporter(tmp_path / "old.pt") as importer:
        assert importer.import_module("mine").click


def test_recorded_plan_lists_distributions(shop):
    with PackageImporter(shop()) as importer:
        graph = json.loads(importer._archive.read(".data/modpack/graph.json"))
    (found,) = graph["distributions"]
    assert found == {
        "name": "my-shop",
        "version": "1.5",
        "folder": "my_shop-1.5.dist-info",
        "modules": ["my_shop", "my_shop.plugins"],
    }
    assert graph["files"]["my_shop-1.5.dist-info/METADATA"] == {
        "owner": "my-shop",
        "why": "its modules are interned",
        "kind": "metadata",
    }


def test_self_test_adds_plugins_found_by_entry_points(installed, clean_python, tmp_path):
    host = """
    from importlib.metadata import entry_points
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):
            for entry in entry_points(group="host.steps"):
                x = entry.load()(x)
            return x
    """
    installed("host", {"host.py": host})
    for name, factor in (("doubling", 2), ("unused", 100)):
        group = "host.steps" if name == "doubling" else "host.other"
        files = {f"{name}.py": f"def step(x):\n    return {factor} * x\n"}
        entries = {"entry_points.txt": f"[{group}]\n{name} = {name}:step\n"}
        installed(name, files, requires=["host"], metadata=entries)
    x, first, second = torch.ones(2), tmp_path / "first.modpack", tmp_path / "second.modpack"
    live = importlib.import_module("host").Net()
    plan = modpack.save(live, first, preset="hermetic", example_inputs=(x,))
    assert set(plan.modules(Action.INTERN)) == {"host", "doubling"}
    loaded = modpack.load(first)
    importers = [modpack.importer_of(loaded), modpack.sys_importer]
    modpack.save(loaded, second, preset="hermetic", importer=importers, example_inputs=(x,))
    clean_python(
        """
        import modpack, torch
        for path in paths:
            assert modpack.load(path)(torch.ones(2)).tolist() == [2.0, 2.0]
        """,
        paths=[str(first), str(second)],
    )
