"""Long chains of imports in packages, and names outside of ASCII."""

from __future__ import annotations

import importlib
import sys

import modpack

LENGTH = 140
"""Python itself imports chains of about 142 modules with its default recursion limit."""


def chain(statement: str) -> dict[str, str]:
    files = {f"chain/m{n}.py": f"{statement.format(n + 1)}\nY = {n}\n" for n in range(LENGTH - 1)}
    last = "import sys\nY = 0\nclass Net:\n    limit = sys.getrecursionlimit()\n"
    return {"chain/__init__.py": "", **files, f"chain/m{LENGTH - 1}.py": last}


def test_chain_that_python_imports_is_loaded(project, tmp_path, clean_python):
    files = chain("from .m{} import Net")
    project(files)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)  # the tests run deep in pytest
    try:
        net = importlib.import_module("chain.m0").Net
    finally:
        sys.setrecursionlimit(limit)
    with modpack.PackageExporter(tmp_path / "o.modpack") as exporter:
        exporter.use_preset("pinned")
        exporter.save_source_string("start", "from chain.m0 import Net")
    assert net.__module__ == f"chain.m{LENGTH - 1}"
    code = """
        import sys, modpack
        limit = sys.getrecursionlimit()
        importer = modpack.PackageImporter(path)
        print(importer.import_module("start").Net.__name__, sys.getrecursionlimit() == limit)
    """
    assert clean_python(code, path=tmp_path / "o.modpack").stdout == "Net True\n"


def test_limit_that_a_packaged_module_sets_is_kept(tmp_path, clean_python):
    with modpack.PackageExporter(tmp_path / "o.modpack") as exporter:
        exporter.save_source_string("deep", "import sys\nsys.setrecursionlimit(4321)")
        exporter.extern("sys")
    code = """
        import sys, modpack
        modpack.PackageImporter(path).import_module("deep")
        print(sys.getrecursionlimit())
    """
    assert clean_python(code, path=tmp_path / "o.modpack").stdout == "4321\n"


def test_names_outside_of_ascii_are_saved(project, tmp_path, clean_python):
    project({"größen.py": "class Größe:\n    名 = 1\ndef häken(): return 2\n"})
    module = importlib.import_module("größen")
    code = """
        import modpack
        size, hook, members = modpack.PackageImporter(path).load_pickle("m", "o.pkl")
        print(type(size).__name__, size.名, hook(), members)
    """
    for protocol in (3, 4, 5):
        path = tmp_path / f"{protocol}.modpack"
        with modpack.PackageExporter(path) as exporter:
            exporter.use_preset("pinned")
            saved = [module.Größe(), module.häken, {"é", "b"}]
            exporter.save_pickle("m", "o.pkl", saved, pickle_protocol=protocol)
        with modpack.PackageImporter(path) as importer:
            again = tmp_path / f"{protocol}-again.modpack"
            with modpack.PackageExporter(again, importer=[importer, modpack.sys_importer]) as e:
                e.use_preset("pinned")
                e.save_pickle("m", "o.pkl", importer.load_pickle("m", "o.pkl"))
        for each in path, again:
            assert clean_python(code, path=each).stdout.startswith("Größe 1 2 {")
