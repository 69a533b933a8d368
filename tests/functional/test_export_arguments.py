"""Invalid arguments are rejected by name before anything is done."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

import modpack
from modpack import OrderedImporter, PackageExporter, analyze, sys_importer

RULES = ("intern", "extern", "mock", "deny")

WRONG = [
    *((rule, (3,), {}, "include") for rule in RULES),
    *((rule, (b"a.**",), {}, "include") for rule in RULES),
    *((rule, (None,), {}, "include") for rule in RULES),
    *((rule, (["a", 3],), {}, "include") for rule in RULES),
    *((rule, ("a",), {"exclude": 3}, "exclude") for rule in RULES),
    *((rule, ("a",), {"exclude": ["b", None]}, "exclude") for rule in RULES),
    *((rule, ("a",), {"allow_empty": "no"}, "allow_empty") for rule in RULES),
    *((rule, ("a",), {"allow_empty": None}, "allow_empty") for rule in RULES),
    *((f"register_{rule}_hook", (hook,), {}, "hook") for rule in RULES for hook in (3, None)),
    ("use_preset", (3,), {}, "preset"),
    ("use_preset", (["pinned"],), {}, "preset"),
    ("save_module", (3,), {}, "module_name"),
    ("save_module", (io,), {}, "module_name"),
    ("save_module", ("json", "yes"), {}, "dependencies"),
    ("save_source_file", (None, __file__), {}, "module_name"),
    ("save_source_file", ("a", 3), {}, "file_or_directory"),
    ("save_source_file", ("a", None), {}, "file_or_directory"),
    ("save_source_file", ("a", __file__), {"dependencies": 0}, "dependencies"),
    ("save_source_string", (b"a", ""), {}, "module_name"),
    ("save_source_string", ("a", b"x = 1"), {}, "src"),
    ("save_source_string", ("a", Path("x")), {}, "src"),
    ("save_source_string", ("a", "", "package"), {}, "is_package"),
    ("save_source_string", ("a", "", False, None), {}, "dependencies"),
    ("save_pickle", (3, "r", 1), {}, "package"),
    ("save_pickle", (None, "r", 1), {}, "package"),
    ("save_pickle", ("p", 3, 1), {}, "resource"),
    ("save_pickle", ("p", Path("r"), 1), {}, "resource"),
    ("save_pickle", ("p", "r", 1, "deps"), {}, "dependencies"),
    ("save_pickle", ("p", "r", 1), {"pickle_protocol": "3"}, "pickle_protocol"),
    ("save_pickle", ("p", "r", 1), {"pickle_protocol": None}, "pickle_protocol"),
    ("save_pickle", ("p", "r", 1), {"pickle_protocol": 3.0}, "pickle_protocol"),
    ("save_pickle", ("p", "r", 1), {"pickle_protocol": True}, "pickle_protocol"),
    ("save_text", (3, "r", "t"), {}, "package"),
    ("save_text", ("p", b"r", "t"), {}, "resource"),
    ("save_text", ("p", "r", b"t"), {}, "text"),
    ("save_text", ("p", "r", None), {}, "text"),
    ("save_binary", ("p", 3, b"b"), {}, "resource"),
    ("save_binary", ("p", "r", "b"), {}, "binary"),
    ("save_binary", ("p", "r", [1, 2]), {}, "binary"),
    ("save_model", (3, "r", 1), {}, "package"),
    ("save_model", ("p", None, 1), {}, "resource"),
    ("save_model", ("p", "r", 1), {"hooks": 3}, "hooks"),
    ("save_model", ("p", "r", 1), {"global_hooks": "yes"}, "global_hooks"),
    ("save_model", ("p", "r", 1), {"dependencies": 1}, "dependencies"),
    ("save_model", ("p", "r", 1), {"pickle_protocol": "3"}, "pickle_protocol"),
    ("get_rdeps", (3,), {}, "module_name"),
    ("get_rdeps", (None,), {}, "module_name"),
    ("all_paths", (3, "a"), {}, "src"),
    ("all_paths", ("a", None), {}, "dst"),
]


def test_wrong_type_is_a_type_error_naming_the_argument(subtests):
    for method, arguments, keywords, named in WRONG:
        exporter = PackageExporter(None)
        with subtests.test(method=method, arguments=arguments, keywords=keywords):
            with pytest.raises(TypeError, match=rf"\b{named}\b"):
                getattr(exporter, method)(*arguments, **keywords)
            plan = exporter.close()
            assert not plan.decisions and not plan.notes


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"f": 3}, "f"),
        ({"f": b"bytes.pt"}, "f"),
        ({"f": object()}, "f"),
        ({"f": io.StringIO()}, "buffer"),
        ({"f": None, "importer": 3}, "importer"),
        ({"f": None, "importer": "sys"}, "importer"),
        ({"f": None, "importer": None}, "importer"),
        ({"f": None, "importer": [sys_importer, io]}, "importer"),
        ({"f": None, "importer": io}, "importer"),
        ({"f": None, "debug": "yes"}, "debug"),
    ],
)
def test_exporter_itself_checks_its_arguments(arguments, named):
    with pytest.raises(TypeError, match=rf"\b{named}\b"):
        PackageExporter(**arguments)


def test_torch_importers_are_rejected():
    import torch.package

    with pytest.raises(TypeError, match=r"importer must be a modpack importer.*_SysImporter"):
        PackageExporter(None, importer=torch.package.sys_importer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "arguments", "named"),
    [
        ("save_module", ("a/b",), "module_name"),
        ("save_module", ("",), "module_name"),
        ("save_module", (".relative",), "module_name"),
        ("save_source_string", ("a..b", ""), "module_name"),
        ("save_source_file", ("../a", __file__), "module_name"),
        ("save_pickle", ("a/b", "r.pkl", 1), "package"),
        ("save_pickle", ("a", "../r.pkl", 1), "resource"),
        ("save_pickle", ("a", "", 1), "resource"),
        ("save_text", ("a", "/etc/passwd", ""), "resource"),
        ("save_text", ("a", "b\\c", ""), "resource"),
        ("save_text", ("", ".data/version", ""), "resource"),
        ("save_binary", ("", "byteorder", b""), "resource"),
        ("use_preset", ("no such policy",), "preset"),
    ],
)
def test_wrong_value_is_a_value_error_naming_the_argument(method, arguments, named):
    with pytest.raises(ValueError, match=rf"\b{named}\b"):
        getattr(PackageExporter(None), method)(*arguments)


@pytest.mark.parametrize("protocol", [-1, 0, 1, 6])
def test_pickle_protocols_are_two_to_five(protocol):
    with pytest.raises(ValueError, match="pickle_protocol"):
        PackageExporter(None).save_pickle("a", "b.pkl", 1, pickle_protocol=protocol)


def test_empty_list_of_importers_is_a_value_error():
    with pytest.raises(ValueError, match="importer"):
        PackageExporter(None, importer=[])


def test_missing_source_file_raises_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        PackageExporter(None).save_source_file("a", tmp_path / "missing.py")


def test_other_public_functions_check_their_arguments_too(tmp_path):
    with pytest.raises(TypeError, match="importer must be a modpack importer"):
        OrderedImporter(sys_importer, "sys")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="exc"):
        analyze.find_first_use_of_broken_modules(ValueError())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path"):
        modpack.save(1, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="intern"):
        modpack.save(1, tmp_path / "x.pt", intern=3)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_optimizer_must_be_one(tmp_path):
    with (
        pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, not dict"),
        modpack.PackageExporter(tmp_path / "x.modpack") as exporter,
    ):
        exporter.save_model("m", "m.pkl", torch.nn.Linear(1, 1), optimizer={})
    assert list(tmp_path.iterdir()) == []
