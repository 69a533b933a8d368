"""Pickling with a context that records its calls."""

from __future__ import annotations

import copyreg
import io
import itertools
import pickle
from types import FunctionType, ModuleType

import pytest
import torch

from modpack.errors import (
    ModpackError,
    ObjMismatchError,
    ObjNotFoundError,
    PicklingError,
    TargetError,
)
from modpack.saving.base import GlobalReference
from modpack.saving.pickler import Pickled, pickle_object


class Notes:
    """A context that returns each object's own name, or raises ``failure``."""

    exporter = "the exporter"

    def __init__(self, renames: dict[str, str] | None = None) -> None:
        self.storages: list[int] = []
        self.renames = renames or {}
        self.failure: Exception | None = None
        self.numbers = 0

    def resolve(self, obj: object, name: str) -> GlobalReference:
        if self.failure is not None:
            raise self.failure
        module = str(getattr(obj, "__module__", "builtins"))
        return GlobalReference(self.renames.get(module, module), name, module)

    def add_storage(self, storage: torch.UntypedStorage) -> str:
        if self.failure is not None:
            raise self.failure
        self.storages.append(storage.nbytes())
        return str(len(self.storages) - 1)

    def add_attachment(self, data: bytes) -> str:
        return "attached"

    def next_reduce_id(self) -> int:
        self.numbers += 1
        return self.numbers

    def module_name(self, module: ModuleType) -> str:
        return module.__name__

    def script_additions(self, kind: type) -> tuple[()]:
        return ()

    def is_importable(self, function: FunctionType) -> bool:
        return True

    def script(self, module: str) -> None:
        return None


def save(obj: object, notes: Notes | None = None, protocol: int = 3) -> Pickled:
    return pickle_object(obj, context=notes or Notes(), resource="m/o.pkl", protocol=protocol)


def load(saved: Pickled) -> tuple[object, list[object]]:
    """Return the unpickled object and its persistent ids."""
    pids: list[object] = []

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: object) -> object:
            pids.append(pid)
            return pid

    return Unpickler(io.BytesIO(saved.data)).load(), pids


class Thing:
    class Part:
        pass


class Packages:
    def __reduce_package__(self, exporter: object) -> tuple[object, tuple[object, ...]]:
        return print, (exporter, self.__dict__.get("x"))


def test_plain_data_has_no_references():
    saved = save({"a": [1, 2.5, "text", None, True, b"x"], "b": (1, 2)})
    assert load(saved) == ({"a": [1, 2.5, "text", None, True, b"x"], "b": (1, 2)}, [])
    assert saved.references == () and saved.appended == b""


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_references_are_listed_once_in_order_of_use(protocol):
    saved = save([Thing.Part(), Packages, Thing.Part, torch.float16], None, protocol)
    named = [r.name for r in saved.references]
    order = [named.index(name) for name in ("Thing.Part", "Packages", "float16")]
    assert order == sorted(order)
    assert len(saved.references) == len(set(saved.references))


def test_pickle_contains_new_module_path():
    saved = save(Thing(), Notes({__name__: "shop.window"}))
    assert b"shop.window" in saved.data and __name__.encode() not in saved.data
    assert saved.references[-1] == GlobalReference("shop.window", "Thing", __name__)


def test_pickler_adds_storage_of_each_tensor():
    notes = Notes()
    whole = torch.ones(10)
    _, pids = load(save([whole.untyped_storage(), whole[2:].untyped_storage()], notes))
    assert notes.storages == [40, 40], "telling them apart is the context's work"
    assert [(pid[0], pid[2:]) for pid in pids] == [
        ("storage", ("0", "cpu", 40)),
        ("storage", ("1", "cpu", 40)),
    ]


def test_reduce_package_is_called_once():
    notes, thing = Notes(), Packages()
    (first, second), _ = load(save([thing, thing], notes))
    assert first == second == ("reduce_package", 1, print, ("the exporter", None))
    assert notes.numbers == 1


def test_module_is_saved_by_path():
    import json

    obj, _ = load(save({"tool": json}))
    assert obj == {"tool": ("module", "json")}


@pytest.mark.parametrize("kind", [ObjNotFoundError, ObjMismatchError, ModpackError])
def test_unresolved_name_is_reported_with_path_and_kind(kind):
    notes = Notes()
    notes.failure = kind("no such thing")
    with pytest.raises(kind) as failure:
        save({"x": [Thing()]}, notes)
    assert isinstance(failure.value, PicklingError)
    assert (failure.value.resource, failure.value.path) == ("m/o.pkl", "obj['x'][0]")
    assert str(failure.value) == "cannot save m/o.pkl (at obj['x'][0]): no such thing"


def test_target_error_is_not_wrapped():
    notes = Notes()
    notes.failure = TargetError("the disk is full")
    with pytest.raises(TargetError, match=r"^the disk is full$"):
        save(torch.ones(2).untyped_storage(), notes)


def test_unpicklable_object_is_reported_with_path():
    with pytest.raises(PicklingError, match=r"at obj\[1\]\): cannot pickle 'itertools"):
        save([0, itertools.pairwise([])])


def test_copyreg_extension_code_is_rejected_with_hint():
    copyreg.add_extension(__name__, "Thing", 0x1234)
    try:
        with pytest.raises(PicklingError, match=r"copyreg\.remove_extension"):
            save(Thing())
    finally:
        copyreg.remove_extension(__name__, "Thing", 0x1234)


def test_class_missing_in_sys_modules_is_saved_by_module_path():
    stranger = type("Stranger", (), {"__module__": "not_in_sys_modules"})
    saved = save([stranger])
    pids: list[object] = []

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: object) -> object:
            pids.append(pid)
            return type("Module", (), {"Stranger": stranger})

    assert Unpickler(io.BytesIO(saved.data)).load() == [stranger]
    assert pids == [("module", "not_in_sys_modules")]
