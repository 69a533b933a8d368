"""``modpack.save``, ``modpack.load``, and ``modpack.importer_of``."""

from __future__ import annotations

import importlib
import io
from pathlib import Path

import packaging.version
import pytest
import torch

import modpack

NET = {
    "oneline/__init__.py": "",
    "oneline/net.py": """
    import torch, oneline.ops
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
        def forward(self, x):
            return oneline.ops.double(self.layer(x))
    """,
    "oneline/ops.py": "import heavy_thing\ndef double(x): return x * 2",
    "heavy_thing.py": "value = 1",
}
X = torch.ones(1, 2)


@pytest.fixture
def net(project):
    project(NET)
    from oneline.net import Net

    return Net()


def test_model_is_saved_and_loaded(net, tmp_path):
    plan = modpack.save(net, tmp_path / "net.pt")
    assert set(plan.modules(modpack.Action.INTERN)) >= {"oneline", "oneline.net", "oneline.ops"}
    loaded = modpack.load(tmp_path / "net.pt")
    assert modpack.is_from_package(loaded)
    assert torch.equal(loaded(X), net(X))


def test_paths_and_buffers_are_taken(net, tmp_path):
    buffer = io.BytesIO()
    modpack.save(net, buffer)
    modpack.save(net, str(tmp_path / "net.pt"))
    buffer.seek(0)
    for source in (buffer, str(tmp_path / "net.pt"), Path(tmp_path / "net.pt")):
        assert torch.equal(modpack.load(source)(X), net(X))
    with (tmp_path / "net.pt").open("rb") as file:
        assert torch.equal(modpack.load(file)(X), net(X))


def test_patterns_decide_before_the_preset(net, tmp_path):
    plan = modpack.save(net, tmp_path / "net.pt", mock="heavy_thing", extern=["nothing.*"])
    assert plan.modules(modpack.Action.MOCK) == ["heavy_thing"] or "heavy_thing" in plan.modules(
        modpack.Action.MOCK
    )
    with pytest.raises(modpack.PackagingError, match="heavy_thing"):
        modpack.save(net, tmp_path / "net.pt", deny="heavy_thing", intern="**")
    with pytest.raises(modpack.PackagingError):
        modpack.save(net, tmp_path / "net.pt", preset="none")
    assert torch.equal(modpack.load(tmp_path / "net.pt")(X), net(X))


def test_one_of_several_objects_is_chosen_by_name(tmp_path):
    with modpack.PackageExporter(tmp_path / "two.pt") as exporter:
        exporter.save_pickle("a", "one.pkl", {"n": 1})
        exporter.save_pickle("b.c", "two.pkl", {"n": 2})
    assert modpack.load(tmp_path / "two.pt", package="b.c", resource="two.pkl") == {"n": 2}
    with pytest.raises(modpack.ModpackError) as caught:
        modpack.load(tmp_path / "two.pt")
    assert "package='a', resource='one.pkl'" in str(caught.value)
    assert "package='b.c', resource='two.pkl'" in str(caught.value)
    for half in ({"package": "a"}, {"resource": "one.pkl"}):
        with pytest.raises(TypeError, match="package and resource"):
            modpack.load(tmp_path / "two.pt", **half)


def test_load_of_package_without_objects_raises(packaged):
    with pytest.raises(modpack.ModpackError, match="no saved object"):
        modpack.load(packaged({"user.py": ""}).filename)


def test_load_in_process_namespace_uses_real_names(net, tmp_path, clean_python):
    modpack.save(net, tmp_path / "net.pt")
    clean_python(
        """
        import modpack, sys
        model = modpack.load(path, namespace="process")
        assert type(model).__module__ == "oneline.net" and "oneline.ops" in sys.modules
        """,
        path=tmp_path / "net.pt",
    )


@pytest.mark.parametrize("argument", ["intern", "extern", "mock", "deny"])
def test_wrong_patterns_are_named(argument, tmp_path):
    for wrong in (3, None, b"x", ["x", 3]):
        with pytest.raises(TypeError, match=argument):
            modpack.save({}, tmp_path / "x.pt", **{argument: wrong})
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_named(tmp_path):
    path = tmp_path / "x.pt"
    modpack.save({"a": torch.ones(1)}, path)
    for wrong, argument in (
        ({"package": 3, "resource": "x"}, "package"),
        ({"package": "m", "resource": 3}, "resource"),
        ({"map_location": 3}, "map_location"),
        ({"namespace": 3}, "namespace"),
    ):
        with pytest.raises(TypeError, match=argument):
            modpack.load(path, **wrong)
    with pytest.raises(ValueError, match="namespace"):
        modpack.load(path, namespace="mine")
    with pytest.raises((TypeError, ValueError), match="preset"):
        modpack.save({}, path, preset="wild")
    with pytest.raises(TypeError, match="importer"):
        modpack.save({}, path, importer="sys")


def test_importing_modpack_imports_neither_torch_nor_its_parts(clean_python):
    clean_python(
        """
        import sys, modpack
        assert "torch" not in sys.modules
        assert set(modpack.__all__) <= set(dir(modpack))
        for name in modpack.__all__:
            assert getattr(modpack, name) is not None
        try:
            modpack.absent
        except AttributeError as failure:
            assert "absent" in str(failure)
        """
    )


def test_save_with_swapped_arguments_suggests_their_order(tmp_path):
    with pytest.raises(
        TypeError, match=r"path must be .*The object comes first: save\(model, 'x'\)"
    ):
        modpack.save("x", torch.nn.ReLU())
    with pytest.raises(TypeError, match=r"path must be a path, .*, not int$"):
        modpack.save(torch.nn.ReLU(), 3)


def test_save_suggests_similar_preset(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'hermetic'"):
        modpack.save({}, tmp_path / "x.pt", preset="hermtic")


def test_importer_of_finds_the_importer_for_reexport(project, tmp_path):
    project({"apiowner.py": "import torch\nclass Net(torch.nn.Linear):\n    pass\n"})
    owned = importlib.import_module("apiowner")
    modpack.save(owned.Net(1, 1), tmp_path / "one.modpack")
    loaded = modpack.load(tmp_path / "one.modpack")
    owner = modpack.importer_of(loaded)
    assert owner is not None and owner.filename == str(tmp_path / "one.modpack")
    assert modpack.importer_of(type(loaded)) is owner
    assert modpack.importer_of(owned.Net) is None and modpack.importer_of(3) is None
    modpack.save(loaded, tmp_path / "two.modpack", importer=[owner, modpack.sys_importer])
    assert type(modpack.load(tmp_path / "two.modpack")).__name__ == "Net"


def test_importer_of_works_for_models_of_torchs_classes(project, tmp_path):
    project(
        {
            "apihooks.py": """
            def doubled(module, args, output):
                return output * 2
            def scaled(by):
                def scale(module, args, output): return output * by
                return scale
            """
        }
    )
    hooks = importlib.import_module("apihooks")
    model = torch.nn.Sequential(torch.nn.Identity())
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    model[0].register_forward_hook(hooks.doubled)
    model[0].register_forward_hook(hooks.scaled(5))
    modpack.save(model, tmp_path / "one.modpack", optimizer=optimizer)
    loaded, its_optimizer = modpack.load(tmp_path / "one.modpack", with_optimizer=True)
    owner = modpack.importer_of(loaded)
    assert owner is modpack.importer_of(its_optimizer) and modpack.is_from_package(loaded)
    assert modpack.importer_of(model) is modpack.importer_of(torch.nn.Sequential) is None
    modpack.save(loaded, tmp_path / "two.modpack", importer=[owner, modpack.sys_importer])
    with modpack.PackageImporter(tmp_path / "two.modpack") as second:
        again = second.load_model(*second.main_resource())
        assert again(torch.ones(1)).item() == 10
        assert modpack.importer_of(again) is second
    assert modpack.importer_of(again) is None


def test_extern_object_stays_extern_in_reexport(project, tmp_path):
    project({"apiextern.py": "import torch\nclass Net(torch.nn.Linear):\n    pass\n"})
    model = importlib.import_module("apiextern").Net(1, 1)
    model.version = packaging.version.Version("1.2")
    modpack.save(model, tmp_path / "one.modpack")
    loaded = modpack.load(tmp_path / "one.modpack")
    importer = [modpack.importer_of(loaded), modpack.sys_importer]
    plan = modpack.save(loaded, tmp_path / "two.modpack", importer=importer)
    assert "packaging.version" in plan.modules(modpack.Action.EXTERN)
    assert modpack.load(tmp_path / "two.modpack").version == model.version
