"""Errors of damaged packages, invalid arguments, and damaged pickles."""

from __future__ import annotations

import importlib.util
import io
import json
import marshal
import os
import pickle
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import modpack
from modpack.archive.reader import open_archive
from modpack.errors import (
    ArchiveError,
    NotAPackageError,
    RecordNotFoundError,
    UnpicklingError,
    UnsupportedVersionError,
)
from modpack.writing.writer import ArchiveWriter


class WithPersistentIds(pickle.Pickler):
    """A pickler that writes ``Pid`` tuples as persistent ids."""

    def persistent_id(self, obj):
        return tuple(obj) if isinstance(obj, Pid) else None


class Pid(list):
    """A value to be written as a persistent id."""


def pickled(obj):
    buffer = io.BytesIO()
    WithPersistentIds(buffer, 3).dump(obj)
    return buffer.getvalue()


def package_with(tmp_path, records):
    """Write a valid archive with these records."""
    with ArchiveWriter(tmp_path / "made.pt") as writer:
        writer.write(".data/version", b"6\n")
        writer.write(".data/extern_modules", b"torch\ncollections\n")
        for name, content in records.items():
            writer.write(name, content)
        writer.commit()
    return tmp_path / "made.pt"


def load_bytes(tmp_path, data, **records):
    path = package_with(tmp_path, {"m/obj.pkl": data, **records})
    with modpack.PackageImporter(path) as importer:
        return importer.load_pickle("m", "obj.pkl")


FLOATS = torch.FloatStorage


@pytest.mark.parametrize(
    ("pid", "message"),
    [
        (("surprise", 1, 2), "the persistent ID"),
        (("storage", FLOATS), "the persistent ID"),
        (("reduce_package", 1), "the persistent ID"),
        (("reduce_package", 1, 2, 3), "the persistent ID"),
        (("reduce_package", [1], print, ()), "the persistent ID"),
        ((1, 2), "the persistent ID"),
        ((), "the persistent ID"),
        (("storage", FLOATS, "7", "cpu", 4), r"'\.data/7\.storage' is not in the package"),
        (("storage", FLOATS, "0", "cpu", 400), "has 16 bytes, but 1600 are required"),
        (("storage", dict, "0", "cpu", 4), "invalid type"),
        (("storage", "FloatStorage", "0", "cpu", 4), "invalid type"),
        (("storage", FLOATS, "0", "cpu", -1), "invalid type, location, or size"),
        (("storage", FLOATS, "0", "cpu", "4"), "invalid type, location, or size"),
        (("storage", FLOATS, "0", 3, 4), "invalid type, location, or size"),
        (("storage", FLOATS, "../x", "cpu", 4), "not in the package"),
        (("storage", FLOATS, ["0"], "cpu", 4), "invalid type|not in the package"),
    ],
)
def test_invalid_persistent_id_raises_unpickling_error(tmp_path, pid, message):
    storage = {".data/0.storage": bytes(16)}
    with pytest.raises(UnpicklingError, match=message) as caught:
        load_bytes(tmp_path, pickled(Pid(pid)), **storage)
    assert "m/obj.pkl" in str(caught.value)


WHOLE = pickle.dumps({"key": [1.5, "text", (1, 2)], "more": b"x" * 300}, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        WHOLE[:1],
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:-1],
        b"no pickle at all",
        b"\x80\x63.",
        b"\x80\x03h\x05.",
        b"\x80\x03e.",
        b"\x80\x03K\x01K\x02s.",
        b"\x80\x03X\x02\x00\x00\x00\xff\xfe.",
        b"\x80\x03\x82\x07.",
        b"\x80\x03K\x01R.",
        b"\x80\x03ccollections\nOrderedDict\nK\x01\x85R.",
        b"\x80\x03\x8a\xff",
        b"I12x\n.",
    ],
    ids=str,
)
def test_damaged_pickle_raises_unpickling_error(tmp_path, data):
    with pytest.raises(UnpicklingError, match=r"m/obj\.pkl.*(damaged|cannot be executed)"):
        load_bytes(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cm\nThing\n.", r"m has no 'Thing', which the pickle refers to"),
        (b"cabsent.mod\nThing\n.", r"absent\.mod\.Thing"),
        (b"ccollections\nNothing\n.", r"collections has no 'Nothing'"),
        (b"ca..b\nThing\n.", "not a module path"),
        (b"c../etc\nThing\n.", "not a module path"),
        (b"csolid\nThing.Missing\n.", r"solid has no 'Thing\.Missing'"),
        (b"csolid\nf.<locals>.g\n.", r"<locals>"),
    ],
)
def test_missing_class_raises_unpickling_error(tmp_path, data, message):
    with pytest.raises(UnpicklingError, match=message):
        load_bytes(tmp_path, data, **{"solid.py": b"class Thing: pass\ndef f(): pass\n"})


def test_error_of_packaged_code_is_not_wrapped(tmp_path):
    source = b"""
class Touchy:
    def __setstate__(self, state):
        raise AttributeError("no such gear")
"""
    data = b"\x80\x03ctouchy\nTouchy\n)\x81}b."
    with pytest.raises(AttributeError, match="no such gear") as caught:
        load_bytes(tmp_path, data, **{"touchy.py": source})
    assert any("m/obj.pkl" in note for note in getattr(caught.value, "__notes__", ["m/obj.pkl"]))
    failing = {"failing.py": b"raise AttributeError('while importing')"}
    with pytest.raises(AttributeError, match="while importing"):
        load_bytes(tmp_path, b"cfailing\nThing\n.", **failing)


def test_newer_format_is_rejected_with_fix(packaged, tmp_path):
    path = packaged({"user.py": ""}).filename
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "future")
    [root] = (tmp_path / "future").iterdir()
    manifest = root / ".data" / "modpack" / "manifest.json"
    changed = {**json.loads(manifest.read_text()), "format": 999}
    manifest.write_text(json.dumps(changed))
    import hashlib

    digest = hashlib.sha256(manifest.read_bytes()).hexdigest()
    (root / ".data" / "modpack" / "manifest.sha256").write_text(digest)
    with pytest.raises(UnsupportedVersionError, match=r"format 999.*Install a newer version"):
        modpack.PackageImporter(root)


def test_open_rejects_files_that_are_not_packages(tmp_path):
    text = tmp_path / "text.pt"
    text.write_text("I am no archive at all, but long enough to be one. " * 10)
    plain_zip = tmp_path / "plain.zip"
    with zipfile.ZipFile(plain_zip, "w") as archive:
        archive.writestr("a/b.txt", "x")
    torch.save({"a": 1}, tmp_path / "saved.pt")
    empty = tmp_path / "empty.pt"
    empty.touch()
    (tmp_path / "folder").mkdir()
    for path in (text, plain_zip, empty, tmp_path / "folder", tmp_path / "absent.pt"):
        with pytest.raises(NotAPackageError, match=path.name):
            modpack.PackageImporter(path)
    with pytest.raises(NotAPackageError, match=r"torch\.load"):
        modpack.load(tmp_path / "saved.pt")


def test_open_rejects_changed_record(packaged, tmp_path):
    path = packaged({"user.py": "value = 1"}).filename
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "changed")
    [source] = (tmp_path / "changed").rglob("user.py")
    source.write_text("value = 2")
    with pytest.raises(ArchiveError, match=r"user\.py"):
        modpack.PackageImporter(tmp_path / "changed")


def test_missing_resource_suggests_similar_names(packaged):
    importer = packaged({"data/words.txt": "x"})
    for load in (importer.load_text, importer.load_binary, importer.load_pickle):
        with pytest.raises(RecordNotFoundError, match=r"data/word\.txt.*data/words\.txt") as caught:
            load("data", "word.txt")
        assert isinstance(caught.value, FileNotFoundError)
    assert importer.load_text("data", "words.txt") == "x"
    assert importer.load_binary("data", "words.txt") == b"x"


def test_load_text_uses_given_encoding(packaged):
    importer = packaged({"data/words.txt": "größe"})
    assert importer.load_text("data", "words.txt", encoding="latin-1") == "grÃ¶Ã\x9fe"
    assert importer.load_text("data", "words.txt", "ascii", "replace").startswith("gr\ufffd")
    assert importer.load_text("data", "words.txt", errors="ignore", encoding="ascii") == "gre"
    with pytest.raises(UnicodeDecodeError):
        importer.load_text("data", "words.txt", "ascii")


WRONG_CALLS = {
    "import_module": [("name", (3,)), ("name", (None,)), ("package", (".x", 3))],
    "load_pickle": [
        ("package", (3, "x")),
        ("resource", ("m", 3)),
        ("map_location", ("data", "words.txt", 3)),
        ("map_location", ("data", "words.txt", ["cpu"])),
    ],
    "load_text": [
        ("package", (None, "x")),
        ("resource", ("m", b"x")),
        ("encoding", ("data", "words.txt", 3)),
        ("errors", ("data", "words.txt", "utf-8", 3)),
    ],
    "load_binary": [("package", (3, "x")), ("resource", ("m", None))],
    "get_source": [("module_name", (3,))],
    "get_resource_reader": [("fullname", (3,))],
}


@pytest.mark.parametrize(
    ("method", "argument", "arguments"),
    [(method, *call) for method, calls in WRONG_CALLS.items() for call in calls],
)
def test_argument_of_wrong_type_is_named(packaged, method, argument, arguments):
    importer = packaged({"data/words.txt": "x"})
    with pytest.raises(TypeError, match=rf"\b{argument}\b"):
        getattr(importer, method)(*arguments)


def test_keyword_argument_of_wrong_type_is_named(packaged):
    importer = packaged({"user.py": ""})
    with pytest.raises(TypeError, match="include"):
        importer.file_structure(include=3)
    with pytest.raises(TypeError, match="exclude"):
        importer.file_structure(exclude=[3])
    with pytest.raises(TypeError, match="path"):
        importer.zip_reader.has_record(3)
    with pytest.raises(TypeError, match="name"):
        importer.zip_reader.get_record(None)


@pytest.mark.parametrize(
    "wrong", [3, None, ["x"], b"path", object()], ids=lambda wrong: type(wrong).__name__
)
def test_file_argument_of_wrong_type_is_named(wrong):
    with pytest.raises(TypeError, match="file_or_buffer"):
        modpack.PackageImporter(wrong)
    with pytest.raises(TypeError, match=r"\b(path|file_or_buffer)\b"):
        modpack.load(wrong)


def test_constructor_argument_of_wrong_type_is_named(packaged, tmp_path):
    path = packaged({"user.py": ""}).filename
    with pytest.raises(TypeError, match="module_allowed"):
        modpack.PackageImporter(path, module_allowed="json")
    with pytest.raises(TypeError, match="namespace"):
        modpack.PackageImporter(path, namespace=1)
    with pytest.raises(ValueError, match="namespace must be 'auto', 'private', or 'process'"):
        modpack.PackageImporter(path, namespace="public")
    (tmp_path / "text").write_text("x")
    with (tmp_path / "text").open() as text, pytest.raises(TypeError, match="binary"):
        modpack.PackageImporter(text)
    path = packaged({}, objects={"m/x.pkl": 1}).filename
    with pytest.raises(ValueError, match="map_location 'nonsense'"):
        modpack.PackageImporter(path).load_pickle("m", "x.pkl", "nonsense")


@pytest.mark.parametrize(
    ("package", "resource"),
    [
        ("m", "../user.py"),
        ("m", ""),
        ("m", "a//b"),
        ("m", "a\\b"),
        ("m", "/etc"),
        ("..", "x"),
        ("a/b", "x"),
    ],
)
def test_resource_name_outside_package_is_rejected(packaged, package, resource):
    importer = packaged({"user.py": ""})
    with pytest.raises(ValueError, match=r"package|resource"):
        importer.load_binary(package, resource)


def test_any_path_object_is_accepted(packaged):
    class Somewhere(os.PathLike):
        def __init__(self, path):
            self.path = path

        def __fspath__(self):
            return self.path

    path = packaged({"user.py": "value = 1"}).filename
    for source in (path, Path(path), Somewhere(path)):
        with modpack.PackageImporter(source) as importer:
            assert importer.import_module("user").value == 1
            assert importer.filename == path


def test_invalid_packaged_source_raises_syntax_error_with_line(tmp_path):
    path = package_with(tmp_path, {"bad.py": b"def f(:\n    import x\n", "good.py": b"import bad"})
    with modpack.PackageImporter(path) as importer:
        with pytest.raises(SyntaxError) as caught:
            importer.import_module("good")
        assert caught.value.filename.endswith("bad.py")
        assert caught.value.lineno == 1


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_bytecode_in_a_package_is_not_imported(tmp_path, namespace):
    code = compile("ran = True\n", "evil", "exec")
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    bytecode = header + marshal.dumps(code)
    (tmp_path / "bytecode_evil.pyc").write_bytes(bytecode)
    path = package_with(tmp_path, {"bytecode_shop/evil.pyc": bytecode})
    with (
        modpack.PackageImporter(path, namespace=namespace) as importer,
        pytest.raises(ModuleNotFoundError, match=r"only bytecode \(.*evil\.pyc\)"),
    ):
        importer.import_module("bytecode_shop.evil")
    assert not [name for name in sys.modules if name.endswith("bytecode_shop.evil")]


def save_with_element_type(path, name):
    modpack.save({"w": torch.ones(1)}, path)
    with open_archive(path) as archive:
        records = {n: archive.read(n) for n in archive.names() if "manifest" not in n}
    record = ".data/modpack/tensors.json"
    records[record] = records[record].replace(b'"float32"', f'"{name}"'.encode())
    with ArchiveWriter(path) as writer:
        for each, content in records.items():
            writer.write(each, content)
        writer.commit()


def test_unknown_element_type_imports_nothing(tmp_path, clean_python):
    paths = [str(tmp_path / f"{name}.modpack") for name in ("_inductor", "nn")]
    for path in paths:
        save_with_element_type(path, Path(path).stem)
    code = """
    import sys, modpack, torch
    before = set(sys.modules)
    for path in paths:
        try:
            modpack.load_weights(path)
        except modpack.ModpackError as failure:
            print("does not support" in str(failure), "torch._inductor" in {*sys.modules} - before)
    """
    assert clean_python(code, paths=paths).stdout == "True False\n" * 2
