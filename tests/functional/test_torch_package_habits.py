"""Code for torch.package that works with modpack unchanged."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import torch

import modpack
from modpack import (
    ObjMismatchError,
    ObjNotFoundError,
    OrderedImporter,
    PackageExporter,
    PackageImporter,
    PackagingError,
    sys_importer,
)


def opened(buffer: io.BytesIO) -> PackageImporter:
    buffer.seek(0)
    return PackageImporter(buffer)


READER = """
    import importlib.resources
    import words
    from words import deep

    def text():
        return importlib.resources.files(words).joinpath("a.txt").read_text("utf-8")

    def deep_text():
        return importlib.resources.read_text(deep, "b.txt")
"""


def save_words(exporter: PackageExporter) -> None:
    exporter.save_text("words", "a.txt", "alpha")
    exporter.save_text("words.deep", "b.txt", "beta")


@pytest.mark.parametrize("resources_come_first", [True, False])
def test_import_of_resource_package_in_packaged_code_works(
    project, clean_python, tmp_path, resources_come_first
):
    project({"reader.py": READER})
    target = tmp_path / "words.modpack"
    with PackageExporter(target) as exporter:
        if resources_come_first:
            save_words(exporter)
        exporter.save_module("reader")
        if not resources_come_first:
            save_words(exporter)
    assert {"words", "words.deep"} & set(exporter.interned_modules())
    code = """
        from modpack import PackageImporter
        importer = PackageImporter(path)
        reader = importer.import_module("reader")
        deep = importer.import_module("words.deep")
        print(reader.text(), reader.deep_text(), deep is reader.deep)
    """
    assert clean_python(code, path=target).stdout.split() == ["alpha", "beta", "True"]


def test_import_of_pickle_package_in_packaged_code_works():
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.save_source_string("reader", "import model.weights")
        exporter.save_pickle("model.weights", "ones.pkl", torch.ones(2))
    importer = opened(buffer)
    model = importer.import_module("reader").model
    assert model is importer.import_module("model")


def test_import_of_resource_package_overrides_general_extern_rule():
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.extern("**")
        exporter.save_source_string("reader", "import words")
        save_words(exporter)
    assert "words" not in exporter.externed_modules()
    assert opened(buffer).import_module("reader").words


def test_rule_that_names_resource_package_decides_it():
    exporter = PackageExporter(None)
    exporter.deny("words")
    exporter.save_source_string("reader", "import words")
    save_words(exporter)
    assert exporter.denied_modules() == ["words"]


def test_unimported_resource_package_is_not_in_plan():
    exporter = PackageExporter(None)
    save_words(exporter)
    assert exporter.close().decisions == {}


def test_resource_package_does_not_replace_missing_submodule():
    exporter = PackageExporter(None)
    exporter.save_source_string("reader", "import words.grammar")
    save_words(exporter)
    with pytest.raises(PackagingError, match=r"words\.grammar"):
        exporter.close()


def test_interned_folder_without_any_file_is_importable(project):
    root = project({"reader.py": "import hollow\n"})
    (root / "hollow").mkdir()
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.intern("**")
        exporter.save_module("reader")
    assert opened(buffer).import_module("reader").hollow.__name__.endswith(".hollow")


def test_add_dependency_applies_rules_and_follows_imports(project):
    project({"shop.py": "import till, json", "till.py": "total = 3"})
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.intern(["shop", "till"])
        exporter.add_dependency("shop")
        exporter.add_dependency("decimal")
        assert exporter.interned_modules() == ["shop", "till"]
        assert exporter.externed_modules() == ["decimal", "json"]
        assert exporter.get_rdeps("till") == ["shop"]
    assert opened(buffer).import_module("shop").till.total == 3


def test_add_dependency_without_dependencies_ends_at_the_module(project):
    project({"shop.py": "import till", "till.py": "total = 3"})
    exporter = PackageExporter(None)
    exporter.add_dependency("shop", dependencies=False)
    exporter.intern("**")
    assert exporter.interned_modules() == ["shop"]


def test_add_dependency_without_rule_is_a_problem(project):
    project({"shop.py": ""})
    exporter = PackageExporter(None)
    exporter.add_dependency("shop")
    exporter.add_dependency("nowhere_to_be_found")
    with pytest.raises(PackagingError, match="add_dependency") as failure:
        exporter.close()
    problems = {problem.subject: problem.code for problem in failure.value.problems}
    assert problems == {"shop": "no-matching-rule", "nowhere_to_be_found": "module-not-found"}


@pytest.mark.parametrize("wrong", [None, 3, pytest])
def test_add_dependency_rejects_invalid_name(wrong):
    with pytest.raises(TypeError, match="module_name"):
        PackageExporter(None).add_dependency(wrong)


class Unpicklable:
    def __getstate__(self) -> object:
        raise ValueError("no")


def test_object_that_cannot_be_saved_raises_pickling_error():
    with pytest.raises(pickle.PicklingError, match="no") as failure:
        PackageExporter(None).save_pickle("m", "m.pkl", Unpicklable())
    assert isinstance(failure.value, modpack.PicklingError)


def test_damaged_pickle_raises_unpickling_error():
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.save_binary("m", "m.pkl", b"\x80\x02no pickle")
    with pytest.raises(pickle.UnpicklingError, match=r"m/m\.pkl") as failure:
        opened(buffer).load_pickle("m", "m.pkl")
    assert isinstance(failure.value, modpack.UnpicklingError)


def package_without_end() -> io.BytesIO:
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        save_words(exporter)
    return io.BytesIO(buffer.getvalue()[:-30])


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: PackageImporter(folder / "missing.pt"),
        lambda folder: PackageImporter(io.BytesIO(b"no zip archive")),
        lambda folder: PackageImporter(package_without_end()),
        lambda folder: PackageExporter(folder / "missing" / "x.pt"),
        lambda folder: opened(_words()).load_text("words", "absent.txt"),
        lambda folder: opened(_words()).load_pickle("words", "absent.pkl"),
    ],
)
def test_file_that_cannot_be_used_raises_runtime_error(use, tmp_path: Path):
    with pytest.raises(RuntimeError) as failure:
        use(tmp_path)
    assert isinstance(failure.value, modpack.ModpackError)


def _words() -> io.BytesIO:
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        save_words(exporter)
    return buffer


@pytest.fixture
def two_packages(project, tmp_path) -> tuple[PackageImporter, PackageImporter, type]:
    """Two unloaded packages with the same module, and the class of the host's module."""
    project({"shop.py": "class Till:\n    pass\n"})
    importers = []
    for number in range(2):
        with PackageExporter(tmp_path / f"{number}.modpack") as exporter:
            exporter.save_module("shop")
            exporter.save_text("shop_data", "number.txt", str(number))
        importers.append(PackageImporter(tmp_path / f"{number}.modpack"))
    from shop import Till

    return importers[0], importers[1], Till


@pytest.mark.parametrize("is_loaded", [False, True])
def test_get_name_of_another_object_raises_mismatch(two_packages, is_loaded):
    first, second, of_host = two_packages
    of_first = first.import_module("shop").Till
    if is_loaded:
        second.import_module("shop")
    for importer, obj in ((second, of_host), (second, of_first), (sys_importer, of_first)):
        with pytest.raises(ObjMismatchError, match=r"shop\.Till.*importer="):
            importer.get_name(obj)
    assert is_loaded == ("shop" in second.modules)


def test_get_name_of_unknown_object_raises_not_found(two_packages):
    first, second, _ = two_packages
    gone = type("Gone", (), {"__module__": "absent_module"})
    for importer in (first, second, sys_importer):
        with pytest.raises(ObjNotFoundError) as failure:
            importer.get_name(gone)
        assert not isinstance(failure.value, ObjMismatchError)


def test_save_of_object_that_no_importer_has_raises_pickling_error(two_packages):
    first, _, _ = two_packages
    till = first.import_module("shop").Till()
    first.close()
    with pytest.raises(ObjNotFoundError) as failure:
        PackageExporter(None).save_pickle("m", "m.pkl", till)
    assert isinstance(failure.value, pickle.PicklingError)


def test_save_module_accepts_private_name_of_loaded_module(two_packages):
    first, second, _ = two_packages
    loaded = second.import_module("shop")
    for importers in ([second], [sys_importer, second], [first, second]):
        with PackageExporter(io.BytesIO(), importer=importers) as exporter:
            exporter.save_module(loaded.__name__)
        assert exporter.interned_modules() == ["shop"]
        assert exporter.plan().decisions["shop"].location.file.startswith(second.filename)


@pytest.mark.parametrize("method", ["save_module", "add_dependency"])
def test_importer_of_a_loaded_module_is_added(two_packages, method):
    first, second, _ = two_packages
    exporter = PackageExporter(None, importer=[second, sys_importer])
    exporter.intern("shop")
    getattr(exporter, method)(first.import_module("shop").__name__)
    assert exporter.plan().decisions["shop"].location.file.startswith(first.filename)
    with pytest.raises(ObjMismatchError, match="one version of 'shop'"):
        exporter.save_pickle("m", "m.pkl", second.import_module("shop"))


def test_resource_is_loaded_by_the_module_of_its_package(two_packages):
    first, _, _ = two_packages
    module = first.import_module("shop_data")
    assert first.load_text(module, "number.txt") == "0"
    assert first.load_binary(module.__name__, "number.txt") == b"0"
    with pytest.raises(TypeError, match="package must be"):
        first.load_text(3, "number.txt")


def test_ordered_importer_failure_is_caught_as_either_error(two_packages):
    first, second, of_host = two_packages
    with pytest.raises(ObjNotFoundError) as failure:
        OrderedImporter(first, second).get_name(of_host)
    assert isinstance(failure.value, ObjMismatchError)
