"""Tensors of every kind, saved and loaded in every way.

``tests/tensor_kinds.py`` creates and describes the tensors.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import modpack
from tests import tensor_kinds
from tests.tensor_kinds import KINDS, DispatchingMode, ForwardingMode, described

Described = dict[str, Any]


@contextlib.contextmanager
def default(set_it: Callable[[Any], None], value: object, after: object) -> Iterator[None]:
    set_it(value)
    try:
        yield
    finally:
        set_it(after)


@contextlib.contextmanager
def sparse_checks() -> Iterator[None]:
    with torch.sparse.check_sparse_tensor_invariants():
        yield


AROUND: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "nothing": contextlib.nullcontext,
    "a device context": lambda: torch.device("meta"),
    "a context of the CPU": lambda: torch.device("cpu"),
    "a default device": lambda: default(torch.set_default_device, "meta", None),
    "a default type": lambda: default(torch.set_default_dtype, torch.float64, torch.float32),
    "a function mode": ForwardingMode,
    "a dispatch mode": DispatchingMode,
    "no gradients": torch.no_grad,
    "checks of sparse tensors": sparse_checks,
}
"""Contexts that must not change saving and loading."""


def all_kinds() -> dict[str, Any]:
    return {kind: make() for kind, make in KINDS.items()}


def saved(path: Path, obj: object) -> Path:
    with modpack.PackageExporter(path) as exporter:
        exporter.intern("tests.**")
        exporter.save_pickle("m", "obj.pkl", obj)
    return path


def descriptions(tensors: dict[str, Any]) -> dict[str, Described]:
    told = {kind: described(tensor) for kind, tensor in tensors.items()}
    return json.loads(json.dumps(told))  # type: ignore[no-any-return]


def changed(
    now: dict[str, Described], before: dict[str, Described]
) -> dict[str, tuple[Described | None, Described]]:
    """Return the changed kinds with their old and new descriptions."""
    assert now.keys() == before.keys()
    return {kind: (before[kind], now[kind]) for kind in now if now[kind] != before[kind]}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ignore torch's warnings about prototypes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


LEFT_BEHIND: dict[str, Described] = {
    "computed": {"is_leaf": True, "grad": False},
    "parameter with a gradient": {"grad": False},
}
"""Attributes that are not saved, as with torch.save."""


@pytest.fixture(scope="module")
def expected() -> dict[str, Described]:
    before = descriptions(all_kinds())
    return {kind: {**told, **LEFT_BEHIND.get(kind, {})} for kind, told in before.items()}


LOADED = """
import contextlib, io, json, sys, warnings
warnings.simplefilter("ignore")
import modpack
import torch

def load(source):
    importer = modpack.PackageImporter(source, namespace=namespace)
    kinds = importer.import_module("tests.tensor_kinds")
    around = {"a device context": lambda: torch.device("meta")}
    with around.get(context, contextlib.nullcontext)():
        loaded = importer.load_pickle("m", "obj.pkl")
    return {kind: kinds.described(tensor) for kind, tensor in loaded.items()}

source = io.BytesIO(path.read_bytes()) if way == "a stream" else path
if way == "an open file":
    source = path.open("rb")
print(json.dumps(load(source)))
"""


@pytest.mark.parametrize(
    ("way", "namespace", "context"),
    [
        ("a file", "private", ""),
        ("a file", "process", "a device context"),
        ("an unzipped folder", "private", ""),
        ("a stream", "private", ""),
        ("an open file", "private", "a device context"),
    ],
)
def test_every_kind_of_tensor_loads_in_clean_interpreter(
    way, namespace, context, expected, clean_python, tmp_path
):
    path = saved(tmp_path / "kinds.modpack", all_kinds())
    if way == "an unzipped folder":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / "folder")
        path = tmp_path / "folder"
    done = clean_python(LOADED, path=path, way=way, namespace=namespace, context=context)
    assert changed(json.loads(done.stdout), expected) == {}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_context_of_save_does_not_change_tensors(around, expected, tmp_path):
    tensors = all_kinds()
    with around():
        path = saved(tmp_path / "kinds.modpack", tensors)
    assert changed(loaded_descriptions(path), expected) == {}
    assert changed(descriptions(tensors), descriptions(all_kinds())) == {}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_context_of_load_does_not_change_tensors(around, expected, tmp_path):
    path = saved(tmp_path / "kinds.modpack", all_kinds())
    assert changed(loaded_descriptions(path, around), expected) == {}


def loaded_descriptions(
    path: Path, around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
) -> dict[str, Described]:
    with modpack.PackageImporter(path) as importer, around():
        return descriptions(importer.load_pickle("m", "obj.pkl"))


def test_save_calls_no_torch_function_of_subclass(tmp_path):
    tensor = KINDS["subclass that looks"]()
    tensor_kinds.Counting.calls = 0
    torch.save(tensor, io.BytesIO())
    by_torch = tensor_kinds.Counting.calls
    tensor_kinds.Counting.calls = 0
    saved(tmp_path / "kinds.modpack", tensor)
    assert tensor_kinds.Counting.calls <= by_torch


PLACES: dict[str, dict[str, Any]] = {
    "by default": {},
    "cpu": {"map_location": "cpu"},
    "meta": {"map_location": "meta"},
    "device of the CPU": {"map_location": torch.device("cpu")},
    "device meta": {"map_location": torch.device("meta")},
    "dict": {"map_location": {"cpu": "meta"}},
    "dict of something else": {"map_location": {"cuda:0": "meta"}},
    "function": {"map_location": lambda storage, location: storage},
    "function that leaves it": {"map_location": lambda storage, location: None},
}


Save = Callable[[Any], io.BytesIO]
Load = Callable[..., Any]


def saved_by_torch(obj: object) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return buffer


def loaded_by_torch(buffer: io.BytesIO, **options: Any) -> Any:
    return torch.load(buffer, weights_only=False, **options)


def saved_by_modpack(obj: object) -> io.BytesIO:
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.extern("tests.**")
        exporter.save_pickle("m", "obj.pkl", obj)
    buffer.seek(0)
    return buffer


def loaded_by_modpack(buffer: io.BytesIO, **options: Any) -> Any:
    with modpack.PackageImporter(buffer) as importer:
        return importer.load_pickle("m", "obj.pkl", **options)


BY_TORCH = (saved_by_torch, loaded_by_torch)
BY_MODPACK = (saved_by_modpack, loaded_by_modpack)


_OF_LAZY = {"dtype", "device", "attributes"}
LEFT_BEHIND_BY_TORCH: dict[str, set[str]] = {
    **{kind: {"type"} for kind in KINDS if kind.startswith("parameter of a kind")},
    "parameter of a kind, with a say": {"type", "attributes"},
    **{kind: {"requires_grad", "is_leaf", "grad"} for kind in KINDS if "needs grad" in kind},
    "parameter of a subclass": {"is_leaf", "grad"},
    **{kind: _OF_LAZY for kind in KINDS if kind.startswith("lazy ")},
    "untyped storage": {"dtype"},
}
"""Kinds that torch.load changes and modpack keeps."""


def what_becomes_of(
    kind: str,
    by: tuple[Save, Load],
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    **options: Any,
) -> Described | str:
    """Return the description of a loaded tensor, or that it is rejected."""
    save, load = by
    try:
        buffer = save(KINDS[kind]())
        with around():
            loaded = load(buffer, **options)
    except Exception as failure:  # torch raises various types
        assert str(failure)
        return "refused"
    lost = LEFT_BEHIND_BY_TORCH.get(kind, set())
    return {fact: told for fact, told in described(loaded).items() if fact not in lost}


def differences_from_torch(
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext, **options: Any
) -> dict[str, tuple[Described | str, Described | str]]:
    """Return what becomes of each kind with modpack and with torch, where they differ."""
    results = {
        kind: tuple(what_becomes_of(kind, by, around, **options) for by in (BY_MODPACK, BY_TORCH))
        for kind in KINDS
    }
    return {kind: (ours, theirs) for kind, (ours, theirs) in results.items() if ours != theirs}


@pytest.mark.parametrize("place", PLACES)
def test_map_location_works_like_torch_load(place):
    assert differences_from_torch(**PLACES[place]) == {}


def test_load_in_fake_mode_works_like_torch_load():
    assert differences_from_torch(FakeTensorMode) == {}
