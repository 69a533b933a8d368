"""Saving objects: errors with attribute paths, and equality after loading."""

from __future__ import annotations

import collections
import copy
import enum
import functools
import io
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from modpack import (
    ModpackError,
    ObjMismatchError,
    ObjNotFoundError,
    PackageExporter,
    PackageImporter,
    PackagingError,
    PicklingError,
)


def save(obj: object, **options: object) -> PackageExporter:
    with PackageExporter(None) as exporter:
        exporter.extern("**")
        exporter.save_pickle("res", "obj.pkl", obj, **options)
    return exporter


def round_trip(obj: object, **options: object) -> object:
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.extern("**")
        exporter.save_pickle("res", "obj.pkl", obj, **options)
    buffer.seek(0)
    return PackageImporter(buffer).load_pickle("res", "obj.pkl")


class Holder:
    """Holds anything."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def bound(self) -> None:
        pass


class Keyed:
    def __init__(self, lock: object) -> None:
        self.lock = lock

    def __repr__(self) -> str:
        raise RuntimeError("not ready to be shown")


class Slotted:
    __slots__ = ("inside", "unset")

    def __init__(self, inside: object) -> None:
        self.inside = inside


ODD = (re.match("a", "a"),)


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (ODD[0], "obj"),
        ([1, ODD[0]], "obj[1]"),
        ({"a": {"b": (1, ODD[0])}}, "obj['a']['b'][1]"),
        (
            Holder(encoder=Holder(layers=[1, 2, Holder(lock=ODD[0])])),
            "obj.encoder.layers[2].lock",
        ),
        (collections.deque([0, ODD[0]]), "obj[1]"),
        ([Slotted(ODD[0])], "obj[0].inside"),
        (functools.partial(print, ODD[0]), "obj.args[0]"),
        (Holder(method=Holder(lock=ODD[0]).bound), "obj.method.__self__.lock"),
        ({Keyed(ODD[0]): 1}, "obj.keys()[Keyed].lock"),
    ],
)
def test_unpicklable_value_is_named_by_attribute_path(obj, path):
    with pytest.raises(PicklingError) as failure:
        save(obj)
    assert failure.value.path == path
    assert failure.value.resource == "res/obj.pkl"
    start = f"cannot save res/obj.pkl (at {path}): an object that Python"
    assert str(failure.value).startswith(start)


def test_path_uses_module_attribute_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"head": nn.Linear(2, 2)}))
    model[1]["head"].match = ODD[0]
    with pytest.raises(PicklingError) as failure:
        save({"model": model})
    assert failure.value.path == "obj['model'][1].head.match"


def test_lambda_without_source_is_a_pickling_error_with_its_path():
    anonymous = eval("lambda x: x + 1")
    with pytest.raises(PicklingError, match="lambda") as failure:
        save(Holder(inner=Holder(function=anonymous)))
    assert failure.value.path == "obj.inner.function"
    assert isinstance(failure.value, ModpackError)


def test_class_with_rebound_name_is_a_mismatch(project):
    project({"twins.py": "class Twin: pass"})
    import twins

    first = twins.Twin()
    twins.Twin = type("Twin", (), {"__module__": "twins"})
    with pytest.raises(ObjMismatchError, match=r"claims to be twins\.Twin, but that is a diff"):
        save({"a": first})
    with pytest.raises(PicklingError) as failure:
        save({"a": first})
    assert failure.value.path is not None


def test_class_of_a_module_that_is_not_loaded_is_not_found():
    unloaded = type("Liar", (), {"__module__": "never_loaded_at_all"})
    with pytest.raises(ObjNotFoundError, match="never_loaded_at_all"):
        save(unloaded())


def test_object_of_main_without_source_is_a_problem(clean_python, tmp_path):
    done = clean_python(
        """
        import modpack
        exec("class Net: pass")
        for rule in ("intern", "extern", "mock"):
            exporter = modpack.PackageExporter(target)
            getattr(exporter, rule)("**")
            exporter.save_pickle("m", "net.pkl", [Net()])
            try:
                exporter.close()
            except modpack.PackagingError as error:
                print([(p.subject, p.code) for p in error.problems], "Net" in str(error),
                      "move it into a module" in str(error))
        """,
        target=tmp_path / "x.pt",
    )
    assert done.stdout.splitlines() == ["[('__main__.Net', 'defined-in-script')] True True"] * 3
    assert list(tmp_path.iterdir()) == []


def test_exception_in_own_methods_is_reported_with_path():
    with pytest.raises(PicklingError, match=r"at obj\[1\]\): ZeroDivisionError: no state"):
        save([0, Angry()])


class Angry:
    def __getstate__(self) -> object:
        raise ZeroDivisionError("no state")


def test_object_that_nests_too_deeply_is_a_pickling_error():
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(PicklingError, match="nests too deeply"):
        save(nested)
    while nested:  # otherwise freeing it would recurse as deeply
        nested = nested.pop()


def test_exporter_continues_after_unpicklable_object(tmp_path: Path):
    target = tmp_path / "x.pt"
    with PackageExporter(target) as exporter:
        with pytest.raises(PicklingError):
            exporter.save_pickle("m", "bad.pkl", [torch.ones(3), ODD[0]])
        exporter.save_pickle("m", "good.pkl", [torch.ones(3)])
    importer = PackageImporter(target)
    assert torch.equal(importer.load_pickle("m", "good.pkl")[0], torch.ones(3))
    assert not importer.file_structure().has_file("m/bad.pkl")


class Color(enum.Enum):
    RED = 1


Pair = collections.namedtuple("Pair", "left right")


class Outer:
    class Inner:
        value = 3

        def method(self) -> int:
            return self.value

    @classmethod
    def make(cls) -> Outer:
        return cls()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_classes_functions_and_constants_keep_identity(protocol):
    objects = [
        Color.RED,
        Pair(1, 2),
        Outer.Inner,
        Outer.make,
        len,
        torch.float32,
        torch.strided,
        torch.nn.functional.relu,
        torch.relu,
        collections.OrderedDict,
        type(None),
        type(...),
        NotImplemented,
        ...,
        int,
        list[int],
        round_trip,
        functools.partial(round_trip, 1).func,
    ]
    again = round_trip(objects, pickle_protocol=protocol)
    assert again == objects
    assert all(a is b for a, b in zip(again, objects, strict=True) if isinstance(b, type))


def test_bound_methods_and_shared_objects_keep_their_structure():
    shared = Outer.Inner()
    loop: dict[str, object] = {"shared": shared, "method": shared.method, "again": [shared]}
    loop["self"] = loop
    again = round_trip(loop)
    assert again["self"] is again
    assert again["again"][0] is again["shared"] is again["method"].__self__
    assert again["method"]() == 3


def test_strings_that_look_like_modules_and_odd_values_survive():
    odd = [
        "modpack.importer",
        "",
        "\ud800 lone",
        "a" * 70_000,
        10**5000,
        -1,
        1.5,
        b"\0" * 300,
        {()},
    ]
    assert round_trip(odd) == odd
    assert round_trip(odd, pickle_protocol=5) == odd


def test_dependencies_false_saves_the_object_and_decides_nothing(project):
    project({"dependent.py": "class D: pass"})
    from dependent import D

    exporter = PackageExporter(None)
    exporter.save_pickle("m", "d.pkl", D(), dependencies=False)
    plan = exporter.close()
    assert not plan.decisions and not plan.problems
    with pytest.raises(PackagingError, match="dependent"), PackageExporter(None) as exporter:
        exporter.save_pickle("m", "d.pkl", D())


def test_classes_modules_and_their_imports_are_followed(project):
    project(
        {
            "zoo/__init__.py": "",
            "zoo/cage.py": "from zoo.animal import Cat\nimport json",
            "zoo/animal.py": "from zoo import food\nclass Cat: pass",
            "zoo/food.py": "",
        }
    )
    from zoo.cage import Cat

    with PackageExporter(None) as exporter:
        exporter.intern("zoo.**")
        exporter.save_pickle("m", "cat.pkl", {"cat": Cat()})
    assert exporter.interned_modules() == ["zoo", "zoo.animal", "zoo.food"]
    assert exporter.get_rdeps("zoo.animal") == ["<m/cat.pkl>"]


def test_mock_error_shows_rule_and_chain(project, clean_python, tmp_path):
    project(
        {
            "studio/__init__.py": "",
            "studio/net.py": "from studio import plots\nclass Net:\n    show = plots.show",
            "studio/plots.py": "import plotlib\ndef show(): return plotlib.figure()",
            "plotlib.py": "def figure(): return 1",
        }
    )
    from studio.net import Net

    target = tmp_path / "studio.pt"
    with PackageExporter(target) as exporter:
        exporter.mock("plotlib*")
        exporter.intern("studio.**")
        exporter.save_pickle("m", "net.pkl", Net())
    done = clean_python(
        """
        import modpack
        importer = modpack.PackageImporter(target)
        net = importer.load_pickle("m", "net.pkl")
        try:
            type(net).show()
        except NotImplementedError as error:
            print(error)
        """,
        target=target,
    )
    assert "plotlib" in done.stdout
    assert "mock('plotlib*')" in done.stdout
    assert "<m/net.pkl> -> studio.net -> studio.plots -> plotlib" in done.stdout


def test_fx_graph_module_packages_itself(clean_python, tmp_path: Path):
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    target = tmp_path / "fx.pt"
    for extern_all in (False, True):
        with PackageExporter(target) as exporter:
            if extern_all:
                exporter.extern("**")
            exporter.save_pickle("m", "fx.pkl", {"one": traced, "same": traced})
    torch.save(traced.state_dict(), tmp_path / "state.pt")
    clean_python(
        """
        import modpack, torch
        loaded = modpack.PackageImporter(target).load_pickle("m", "fx.pkl")
        assert loaded["one"] is loaded["same"]
        state = torch.load(target.parent / "state.pt")
        assert all(torch.equal(state[k], v) for k, v in loaded["one"].state_dict().items())
        assert loaded["one"](torch.ones(1, 2)).shape == (1, 2)
        """,
        target=target,
    )


def test_live_object_is_unchanged_by_its_export():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.BatchNorm1d(3)).train()
    model[0].weight.requires_grad_(False)
    model(torch.rand(4, 3)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(m)) for name, m in model.named_modules()}
    tensors = {name: (id(p), p.data_ptr(), p.grad) for name, p in model.named_parameters()}
    random_state = torch.get_rng_state()
    save(model)
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert attributes == {name: set(vars(m)) for name, m in model.named_modules()}
    assert tensors == {n: (id(p), p.data_ptr(), p.grad) for n, p in model.named_parameters()}
    assert torch.equal(random_state, torch.get_rng_state())
