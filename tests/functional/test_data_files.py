"""Data files next to packaged code: included if code reads them, and no others."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest

import modpack
from modpack import PackageExporter, PackageImporter, sys_importer
from modpack.core.plan import FileKind, Plan

READERS = """
    import glob, gzip, importlib.resources, json, os, pkgutil
    from importlib.resources import files
    from pathlib import Path

    here = Path(__file__).parent
    found = {
        "pathlib": (here / "words.txt").read_text(),
        "os.path": open(os.path.join(os.path.dirname(__file__), "words.txt")).read(),
        "resources": (files("reader") / "conf" / "a.json").read_text(),
        "of a folder": files("reader.conf").joinpath("a.json").read_text(),
        "pkgutil": pkgutil.get_data(__name__, "words.txt").decode(),
        "glob": sorted(os.path.basename(p) for p in glob.glob(str(here / "conf" / "*.json"))),
        "listed": sorted(p.name for p in here.joinpath("conf").iterdir()),
        "gzip": gzip.open(here / "big.txt.gz", "rt").read(),
        "own name": open(f"{here}/VERSION").read(),
    }
"""
FOUND = {
    "pathlib": "a b",
    "os.path": "a b",
    "resources": "{}",
    "of a folder": "{}",
    "pkgutil": "a b",
    "glob": ["a.json", "b.json"],
    "listed": ["a.json", "b.json"],
    "gzip": "much",
    "own name": "7",
}


def reader_files() -> dict[str, str | bytes]:
    return {
        "reader/__init__.py": READERS,
        "reader/words.txt": "a b",
        "reader/conf/a.json": "{}",
        "reader/conf/b.json": "[]",
        "reader/big.txt.gz": gzip.compress(b"much"),
        "reader/VERSION": "7",
    }


def written(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())


def plan_of(*modules: str, policy: str = "hermetic") -> Plan:
    with PackageExporter(None) as exporter:
        exporter.use_preset(policy)
        for module in modules:
            exporter.save_module(module)
        return exporter.plan()


def data_of(plan: Plan) -> list[str]:
    return [file.record for file in plan.files if file.kind is FileKind.DATA]


def notes_of(plan: Plan, code: str) -> list[str]:
    return [str(note) for note in plan.notes if note.code == code]


@pytest.mark.parametrize("namespace", ["private", "process"])
@pytest.mark.parametrize("is_installed", [True, False])
def test_neighboring_files_are_readable_without_the_source(
    installed, project, clean_python, tmp_path, namespace, is_installed
):
    if is_installed:
        installed("reader", reader_files())
    else:
        root = project({"reader/__init__.py": READERS})
        written(root, {n: c for n, c in reader_files().items() if not n.endswith(".py")})
    with PackageExporter(tmp_path / "reader.pt") as exporter:
        exporter.use_preset("hermetic")
        exporter.save_module("reader")
    done = clean_python(
        """
        import json, modpack
        importer = modpack.PackageImporter(path, namespace=namespace)
        print(json.dumps(importer.import_module("reader").found))
        """,
        path=tmp_path / "reader.pt",
        namespace=namespace,
    )
    assert json.loads(done.stdout) == FOUND


def test_distribution_files_in_interned_folders_are_included(installed):
    installed(
        "shop",
        {
            "shop/__init__.py": "from shop import till",
            "shop/till/__init__.py": "",
            "shop/till/coins.csv": "1,2",
            "shop/till/deep/er/notes.csv": "5",
            "shop/unused/__init__.py": "",
            "shop/unused/big.csv": "0",
            "shop/tests/expected.csv": "0",
            "shop/module.pyi": "",
            "shop/fast.so": b"\x7fELF",
            "shop_docs/manual.txt": "read me",
            "../../bin/shop": "#!python",
        },
    )
    with PackageExporter(None) as exporter:
        exporter.intern("shop.**")
        exporter.save_module("shop")
        plan = exporter.plan()
    assert data_of(plan) == ["shop/till/coins.csv", "shop/till/deep/er/notes.csv"]
    assert {file.owner for file in plan.files} == {"shop"}


def test_local_code_includes_only_named_files(project):
    project(
        {
            "mine.py": """
                import json, os
                with open(os.path.join(os.path.dirname(__file__), "settings.json")) as file:
                    settings = json.load(file)
            """,
            "settings.json": "{}",
            "measurements.json": "[1, 2, 3]",
            ".env": "TOKEN=1",
        }
    )
    plan = plan_of("mine")
    assert data_of(plan) == ["settings.json"]
    assert plan.files[0].why == "mine names it (line 3)"


def test_file_name_passed_to_helper_is_found(project):
    project(
        {
            "mine/__init__.py": """
                from pathlib import Path

                def words(name):
                    return (Path(__file__).parent / "lists" / name).read_text()

                english = words("english.txt")
            """,
            "mine/lists/english.txt": "a",
            "mine/lists/french.txt": "un",
        }
    )
    assert data_of(plan_of("mine")) == ["mine/lists/english.txt"]


@pytest.mark.parametrize(
    ("expression", "record"),
    [
        ('here / "lists" / "german" / "a.txt"', "mine/lists/german/a.txt"),
        ('here / "lists/words"', "mine/lists/words"),
        ('os.path.join(here, "..", "VERSION")', "VERSION"),
        ('files("mine.words") / "b.txt"', "mine/words/b.txt"),
        ('glob.glob(f"{here}/lists/german/*.txt")', "mine/lists/german/a.txt"),
        ('(here / "lists").glob("*.csv")', "mine/lists/c.csv"),
        ('glob.glob(os.path.join(here, "..", "data", "*.csv"))', "data/d.csv"),
        ('glob.glob(f"{here}/../data/*.csv")', "data/d.csv"),
    ],
)
def test_constants_of_a_path_name_a_file(project, expression, record):
    project(
        {
            "mine/__init__.py": "",
            "mine/code.py": f"""
                import glob, mine.words, os
                from importlib.resources import files
                from pathlib import Path

                here = Path(__file__).parent
                found = {expression}
            """,
            "mine/words/__init__.py": "",
            "mine/words/b.txt": "b",
            "mine/lists/words": "w",
            "mine/lists/c.csv": "c",
            "mine/lists/german/a.txt": "a",
            "mine/private.csv": "1",
            "data/d.csv": "d",
            "VERSION": "1",
        }
    )
    assert data_of(plan_of("mine.code")) == [record]


@pytest.mark.parametrize("start", ["here", "here / '..'", "files('mine')"])
def test_pattern_in_folder_around_the_module_includes_no_files(project, start):
    project(
        {
            "mine/__init__.py": f"""
                from importlib.resources import files
                from pathlib import Path

                here = Path(__file__).parent
                def results(): return list(({start}).rglob('*.csv'))
            """,
            "mine/results.csv": "1",
            "data/private.csv": "1",
        }
    )
    assert data_of(plan_of("mine")) == []


@pytest.mark.parametrize("is_package", [True, False])
def test_self_test_adds_computed_file_of_an_import(project, tmp_path, is_package):
    module = "mine/__init__.py" if is_package else "mine.py"
    project(
        {
            module: """
                from pathlib import Path

                class Net: ...

                names = [letter + "ords.txt" for letter in "w"]
                texts = [(Path(__file__).parent / name).read_text() for name in names]
            """,
            f"{'mine/' if is_package else ''}words.txt": "a b",
            "diary.txt": "dear diary",
        }
    )
    net = __import__("mine").Net()
    plan = modpack.save(net, tmp_path / "net.modpack", self_test=True)
    assert data_of(plan) == ["mine/words.txt" if is_package else "words.txt"]


def test_code_without_paths_includes_no_files(project):
    project({"mine/__init__.py": "name = 'table.json'", "mine/table.json": "{}"})
    assert data_of(plan_of("mine")) == []


@pytest.mark.parametrize(
    "name", [".env", "service.key", "id_rsa", "credentials.json", "secrets.yaml", "prod.env"]
)
def test_secret_files_are_never_included_automatically(project, name):
    project(
        {
            "mine/__init__.py": f"""
                from pathlib import Path
                here = Path(__file__).parent
                secret = here / "{name}"
                everything = list((here / "conf").iterdir())
            """,
            f"mine/{name}": "hush",
            f"mine/conf/{name}": "hush",
        }
    )
    plan = plan_of("mine")
    assert data_of(plan) == []
    assert "is excluded as a possible secret" in notes_of(plan, "data-files-excluded")[0]


def test_pattern_includes_no_caches_and_code(project):
    project(
        {
            "mine/__init__.py": """
                from pathlib import Path
                all = list((Path(__file__).parent / "assets").rglob("*.yaml"))
            """,
            "mine/assets/a.yaml": "",
            "mine/assets/deep/b.yaml": "",
            "mine/assets/script.py": "",
            "mine/assets/.git/config": "",
            "mine/assets/venv/pyvenv.cfg": "",
            "mine/assets/venv/lib/c.yaml": "",
            "mine/assets/node_modules/d.yaml": "",
        }
    )
    assert data_of(plan_of("mine")) == ["mine/assets/a.yaml", "mine/assets/deep/b.yaml"]


def test_large_file_is_excluded_with_a_warning(installed):
    site = installed("shop", {"shop/__init__.py": "", "shop/weights.bin": ""})
    with (site / "shop/weights.bin").open("wb") as file:
        file.truncate(65 * 2**20)
    plan = plan_of("shop")
    assert data_of(plan) == []
    (note,) = [note for note in plan.notes if note.code == "data-files-excluded"]
    assert "weights.bin (65 MiB)" in note.message
    assert "save_binary" in note.hint


def test_saved_resource_precedes_file(project, tmp_path):
    project(
        {
            "mine/__init__.py": """
                from pathlib import Path
                mode = (Path(__file__).parent / "mode.txt").read_text()
            """,
            "mine/mode.txt": "development",
        }
    )
    with PackageExporter(tmp_path / "mine.pt") as exporter:
        exporter.use_preset("pinned")
        exporter.save_module("mine")
        exporter.save_text("mine", "mode.txt", "production")
    assert PackageImporter(tmp_path / "mine.pt").import_module("mine").mode == "production"


def test_equal_top_level_file_names_are_reported(project):
    source = "from pathlib import Path\ntext = (Path(__file__).parent / 'words.txt').read_text()\n"
    project({"one.py": source, "words.txt": "1"})
    project({"two.py": source, "words.txt": "2"})
    plan = plan_of("one", "two")
    assert data_of(plan) == ["words.txt"]
    assert "project1/words.txt is excluded" in notes_of(plan, "data-files-excluded")[0]


def test_source_folder_includes_files_it_reads(project, tmp_path):
    root = project({"elsewhere/net/__init__.py": READERS})
    files = {n: c for n, c in reader_files().items() if not n.endswith(".py")}
    written(root / "elsewhere", {n.replace("reader/", "net/"): c for n, c in files.items()})
    with PackageExporter(None) as exporter:
        exporter.save_source_file("reader", root / "elsewhere" / "net")
        records = data_of(exporter.plan())
    assert "reader/words.txt" in records
    assert "reader/conf/b.json" in records


def test_reexport_includes_data_files(installed, tmp_path):
    installed("reader", reader_files())
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    with PackageExporter(first) as exporter:
        exporter.use_preset("hermetic")
        exporter.save_module("reader")
    importer = PackageImporter(first)
    with PackageExporter(second, importer=[importer, sys_importer]) as exporter:
        exporter.use_preset("hermetic")
        exporter.save_module("reader")
    assert PackageImporter(second).import_module("reader").found == FOUND
    assert _records(second) == _records(first)


def test_reexport_includes_files_added_by_self_test(project, tmp_path):
    project({"mine/__init__.py": "", "mine/odd": "odd"})
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"
    with PackageExporter(first) as exporter:
        exporter.use_preset("pinned")
        exporter.save_module("mine")
        planner = exporter._planner
        why = "the self-test read it"
        assert planner.package_data.add_file(planner.decisions(), "mine/odd", why)
    importer = PackageImporter(first)
    with PackageExporter(second, importer=[importer, sys_importer]) as exporter:
        exporter.use_preset("pinned")
        exporter.save_module("mine")
    assert PackageImporter(second).load_text("mine", "odd") == "odd"


def test_equal_exports_with_files_are_equal_bytes(installed, tmp_path):
    installed("reader", reader_files(), metadata={"direct_url.json": '{"url": "file:///home/me"}'})
    for name in ("a", "b"):
        with PackageExporter(tmp_path / name) as exporter:
            exporter.use_preset("hermetic")
            exporter.save_module("reader")
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b")
    assert not any(
        "home/me" in text.decode("utf-8", "replace") for _, text in _contents(tmp_path / "a")
    )


def _contents(package: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(package) as archive:
        names = (name for name in archive.namelist())
        return sorted((n.partition("/")[2], archive.read(n)) for n in names if "manifest" not in n)


def _records(package: Path) -> list[str]:
    return [name for name, _ in _contents(package)]
