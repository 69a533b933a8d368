"""Pickles that contain the package of their objects."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import modpack
from modpack import pickle_by_source
from modpack.core.cache_dir import cache_folder
from modpack.errors import ModpackWarning, TrustError, UnpicklingError

SOURCE = """
import torch

class Net(torch.nn.Linear):
    def hooked(self):
        def add(module, inputs, output):
            return output + 1
        self.register_forward_hook(add)
        return self
"""


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.extern("torch.**")
        exporter.save_source_string("net", SOURCE)
    return tmp_path / "net.modpack"


@pytest.fixture(params=["private", "process"])
def model(package: Path, request: pytest.FixtureRequest):
    with modpack.PackageImporter(package, namespace=request.param) as importer:
        torch.manual_seed(0)
        yield importer.import_module("net").Net(2, 2).hooked()


def written(obj: object, **options: object) -> io.BytesIO:
    file = io.BytesIO()
    pickle_by_source.dump(obj, file, **options)
    file.seek(0)
    return file


def test_file_loads_where_its_package_is_unknown(model, package, tmp_path):
    checkpoint = {"model": model, "twin": model, "epoch": 3}
    (tmp_path / "checkpoint.pkl").write_bytes(written(checkpoint).read())
    expected = model(torch.ones(2)).tolist()
    package.unlink()
    code = """
import pickle, sys, joblib, torch, modpack
for load in pickle.load, modpack.pickle_by_source.load, joblib.load:
    loaded = load(open("checkpoint.pkl", "rb"))
    assert loaded["model"] is loaded["twin"]
    print(loaded["model"](torch.ones(2)).tolist(), loaded["epoch"])
again = pickle.loads(pickle.dumps(loaded["model"].weight))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        env={"MODPACK_CACHE_DIR": str(tmp_path / "other"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [f"{expected} 3"] * 3, done.stderr


def test_package_is_in_the_file_once(package):
    with modpack.PackageImporter(package) as importer:
        net = importer.import_module("net").Net
        content = written([net(1, 1), net(1, 1), net]).read()
    assert content.count(b"PK\5\6") == 1  # the end of a zip archive


def test_several_objects_follow_each_other_in_a_file(package):
    file = io.BytesIO()
    with modpack.PackageImporter(package) as importer:
        for obj in importer.import_module("net").Net(1, 1), [1], importer.import_module("net").Net:
            pickle_by_source.dump(obj, file)
    file.seek(0)
    loaded = [pickle_by_source.load(file) for _ in range(3)]
    assert type(loaded[0]).__name__ == "Net" == loaded[2].__name__ and loaded[1] == [1]


def test_objects_without_a_package_are_a_plain_pickle():
    file = io.BytesIO()
    pickle_by_source.dump({"a": 1}, file, 2)
    assert file.getvalue() == pickle.dumps({"a": 1}, 2)
    file.seek(0)
    assert pickle_by_source.load(file) == {"a": 1}
    file = io.BytesIO(b"U\x02\xc3\xa9.")  # a text of Python 2
    assert pickle_by_source.load(file, encoding="utf-8") == "é"


def test_loaded_objects_reach_other_processes(package, tmp_path, clean_python):
    with modpack.PackageImporter(package) as importer:
        file = written(importer.import_module("net").Net(1, 1))
    (tmp_path / "sent.pkl").write_bytes(pickle.dumps(pickle_by_source.load(file)))
    code = "import pickle; print(type(pickle.loads(path.read_bytes())).__name__)"
    assert clean_python(code, path=tmp_path / "sent.pkl").stdout == "Net\n"


def test_cache_that_cannot_be_written_is_not_needed(package, tmp_path, monkeypatch):
    with modpack.PackageImporter(package) as importer:
        file = written(importer.import_module("net").Net(1, 1))
    (tmp_path / "file").touch()
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "file"))
    assert type(pickle_by_source.load(file)).__name__ == "Net"


def test_file_that_was_changed_in_the_cache_is_written_again(package):
    with modpack.PackageImporter(package) as importer:
        file = written(importer.import_module("net").Net(1, 1))
    pickle_by_source.load(file)
    (kept,) = cache_folder().rglob("package.modpack")
    kept.write_bytes(b"other")
    file.seek(0)
    assert type(pickle_by_source.load(file)).__name__ == "Net"


def test_options_apply_to_the_package(package):
    with modpack.PackageImporter(package) as importer:
        file = written(importer.import_module("net").Net(1, 1), extern="torch.**")
    assert pickle_by_source.load(file, map_location="meta").weight.is_meta
    file.seek(0)
    with pytest.raises(TrustError, match=r"1 Python source \(net\.py\)"):
        pickle_by_source.load(file, policy=modpack.TrustPolicy())


class Marker:
    """An object whose unpickling leaves a file."""

    def __init__(self, *path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, self.path


def _changed_afterwards(package: Path, marker: Path) -> bytes:
    """Return a pickle that loads the package, and then calls the object."""
    carried = pickle.dumps(pickle_by_source._Carried(package.read_bytes()), 4)
    return carried[:-1] + b")R."


@pytest.mark.parametrize(
    "make",
    [
        lambda package, marker: pickle.dumps(Marker(marker)),
        lambda package, marker: pickle.dumps([1]),
        lambda package, marker: b"not a pickle",
        lambda package, marker: b"",
        _changed_afterwards,
        lambda package, marker: pickle.dumps(
            [Marker(marker), pickle_by_source._Carried(package.read_bytes())], 4
        ),
    ],
)
def test_policy_refuses_what_is_not_just_a_package(package, tmp_path, make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModpackWarning)
        policy = modpack.TrustPolicy(allow_code=True)
    content = make(package, tmp_path / "ran")
    with pytest.raises(UnpicklingError, match=r"just a package|is damaged"):
        pickle_by_source.load(io.BytesIO(content), policy=policy)
    assert not (tmp_path / "ran").exists()
    assert not list(cache_folder().rglob("package.modpack"))


def test_reference_that_cannot_be_followed_names_module_and_digest(package, monkeypatch, tmp_path):
    with modpack.PackageImporter(package) as importer:
        sent = pickle.dumps(importer.import_module("net").Net)
        digest = importer.id().rpartition(".p")[2]
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "other"))
    sent = sent.replace(digest.encode(), digest[::-1].encode())
    with pytest.raises(
        modpack.errors.ReopenError,
        match=rf"package with digest {digest[::-1]} for its module 'net': .*pickle_by_source\.dump",
    ) as caught:
        pickle.loads(sent)
    assert "\n" not in str(caught.value)
