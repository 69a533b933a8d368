"""Archives of former formats load with the values that they hold, where their code is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import modpack
from modpack.report.verifying.verifying import verify_package

FOLDER = Path(__file__).parents[2] / "fixtures" / "archives" / "v1"
X = torch.tensor([[1.0, 1.0]])


def test_all_are_accepted_as_what_they_are():
    archives = sorted(FOLDER.glob("*.modpack"))
    assert len(archives) == 5
    for archive in archives:
        facts = verify_package(archive)
        assert facts.is_accepted, [each.text for each in facts.findings]
        assert facts.format == "modpack 1"


@pytest.mark.parametrize("name", ["hooked", "repacked"])
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


def test_objects_that_plain_pickle_refuses_come_back():
    found = modpack.load(FOLDER / "objects.modpack")
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


def test_a_model_of_a_script_comes_back():
    assert modpack.load(FOLDER / "script.modpack")(X).tolist() == [[5.0, 5.0]]


def test_its_signature_still_holds():
    key, package = FOLDER / "signer.pub", FOLDER / "signed.modpack"
    command = [sys.executable, "-m", "modpack", "verify", "--key", str(key), str(package)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_a_trial_of_then_can_be_repeated():
    command = [sys.executable, "-m", "modpack", "replay", str(FOLDER / "hooked.modpack")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
