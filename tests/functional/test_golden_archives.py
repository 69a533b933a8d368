"""Archives of former formats load with the values that they hold, where their code is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import modpack
from modpack.report.verify import verify_package

FOLDER = Path(__file__).parents[2] / "fixtures" / "archives" / "modpack"
FORMATS = ("v1", "v2")
X = torch.tensor([[1.0, 1.0]])


@pytest.mark.parametrize(("version", "count"), [("v1", 5), ("v2", 8)])
def test_all_are_accepted_as_what_they_are(version, count):
    archives = sorted((FOLDER / version).glob("*.modpack"))
    assert len(archives) == count
    for archive in archives:
        facts = verify_package(archive)
        assert facts.is_accepted, [each.text for each in facts.findings]
        assert facts.format == f"modpack {version[1:]}"


@pytest.mark.parametrize("name", ["v1/hooked", "v1/repacked", "v2/hooked"])
def test_hooks_and_the_optimizer_come_back(name):
    with modpack.PackageImporter(FOLDER / f"{name}.modpack") as importer:
        net, optimizer = importer.load_model("model", "model.pkl", optimizer=True)
        assert importer.load_binary("model", "blob.bin") == bytes(range(9))
        assert len(importer.hook_specs("model", "model.pkl")) == 8
    assert net.words == ["three", "golden", "words"]
    x = X.clone().requires_grad_()
    output = net(x)
    assert output.tolist() == [[(3 * 2 + 1) * 10.0, (7 * 2 + 1) * 10.0]]
    assert net.watcher.seen == 1
    assert net.state_dict()["more"] == 1
    output.sum().backward()
    assert net.inner.weight.grad.tolist() == [[100.0, 100.0], [100.0, 100.0]]
    assert x.grad.tolist() == [[3 * 20.0 * 4, 3 * 20.0 * 6]]
    optimizer.step()
    assert net.words[-1] == "stepped"
    with pytest.raises(NotImplementedError, match="goldtracker"):
        net.track()


@pytest.mark.parametrize("version", FORMATS)
def test_objects_that_plain_pickle_refuses_come_back(version):
    found = modpack.load(FOLDER / version / "objects.modpack")
    assert found["local"].answer() == 42
    assert found["by_source"](1) == 8
    assert found["lock"].acquire(blocking=False)
    assert found["logger"].name == "gold.logger"
    assert found["weak"]() is found["target"]
    assert found["enum"].name == "GREEN"
    assert found["tuple"]._asdict() == {"a": 1, "b": 2}
    assert found["scripted"](X).tolist() == [[3.0, 3.0]]
    assert found["traced"](X).tolist() == [[2.0, 2.0]]
    assert found["parametrized"](X).tolist() == [[4.0, 4.0]]
    assert found["freed"].untyped_storage().nbytes() == 0


@pytest.mark.parametrize("version", FORMATS)
def test_a_model_of_a_script_comes_back(version):
    assert modpack.load(FOLDER / version / "script.modpack")(X).tolist() == [[5.0, 5.0]]


def test_a_hook_of_the_autograd_graph_comes_back():
    net = modpack.load(FOLDER / "v2" / "graph.modpack")
    net(X).sum().backward()
    assert net.inner.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    net.handle.remove()
    net.zero_grad()
    net(X).sum().backward()
    assert net.inner.weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_an_exported_program_comes_back():
    found = modpack.load(FOLDER / "v2" / "program.modpack")
    assert found["program"].module()(-X).tolist() == [[0.0, 0.0]]


def test_weights_are_loaded_where_no_code_is_allowed():
    found = modpack.load(FOLDER / "v2" / "weights.modpack", policy=modpack.TrustPolicy())
    assert [tuple(tensor.shape) for tensor in found.values()] == [(2, 2), (2,)]


def test_a_pickle_inside_of_an_object_is_found(clean_python):
    code = """
    import modpack, torch
    print(modpack.load(file)(torch.ones(1)).tolist())
    """
    ran = clean_python(code, file=str(FOLDER / "v2" / "nesting.modpack"))
    assert ran.stdout == "[6.0]\n"


@pytest.mark.parametrize("version", FORMATS)
def test_its_signature_still_holds(version):
    key, package = FOLDER / version / "signer.pub", FOLDER / version / "signed.modpack"
    command = [sys.executable, "-m", "modpack", "verify", "--key", str(key), str(package)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("version", FORMATS)
def test_a_trial_of_then_can_be_repeated(version):
    package = FOLDER / version / "hooked.modpack"
    command = [sys.executable, "-m", "modpack", "replay", str(package)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
