"""Archives of each format version load with their values, without their projects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import modpack
from modpack.report.verify import verify_package
from tests.warm_python import run_python

FOLDER = Path(__file__).parents[2] / "fixtures" / "archives" / "modpack"
FORMATS = ("v2",)
X = torch.tensor([[1.0, 1.0]])


@pytest.mark.parametrize(("version", "count"), [("v2", 14)])
def test_verify_accepts_every_archive(version, count):
    archives = sorted((FOLDER / version).glob("*.modpack"))
    assert len(archives) == count
    for archive in archives:
        facts = verify_package(archive)
        assert facts.passed, [each.message for each in facts.findings]
        assert facts.format == f"modpack {version[1:]}"


@pytest.mark.parametrize("name", ["v2/hooked"])
def test_archive_restores_hooks_and_optimizer(name):
    with modpack.PackageImporter(FOLDER / f"{name}.modpack") as importer:
        net, optimizer = importer.load_model("model", "model.pkl", with_optimizer=True)
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
def test_archive_restores_objects_that_pickle_rejects(version):
    found = modpack.load(FOLDER / version / "objects.modpack")
    assert found["local"].answer() == 42
    assert found["by_source"](1) == 8
    assert found["lock"].acquire(blocking=False)
    assert found["logger"].name == "gold.logger"
    assert found["weak"]() is found["target"]
    assert found["tuple"]._asdict() == {"a": 1, "b": 2}
    assert found["scripted"](X).tolist() == [[3.0, 3.0]]
    assert found["traced"](X).tolist() == [[2.0, 2.0]]
    assert found["parametrized"](X).tolist() == [[4.0, 4.0]]
    assert found["freed"].untyped_storage().nbytes() == 0


@pytest.mark.parametrize("version", FORMATS)
def test_archive_restores_model_of_script(version):
    assert modpack.load(FOLDER / version / "script.modpack")(X).tolist() == [[5.0, 5.0]]


def test_archive_restores_graph_hook():
    net = modpack.load(FOLDER / "v2" / "graph.modpack")
    net(X).sum().backward()
    assert net.inner.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    net.handle.remove()
    net.zero_grad()
    net(X).sum().backward()
    assert net.inner.weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_archive_restores_exported_program():
    found = modpack.load(FOLDER / "v2" / "program.modpack")
    assert found["program"].module()(-X).tolist() == [[0.0, 0.0]]


def test_archive_restores_all_kinds_of_graph_hooks():
    net = modpack.load(FOLDER / "v2" / "attached.modpack")
    net(X).sum().backward()
    assert net.events == ["packed", "multi_grad", "node_pre", "node", "after"]
    outputs, inputs = (handle.spec.store for handle in net.handles[-2:])
    assert [each.tolist() for each in outputs["first"]] == [[[1.0, 1.0]]]
    assert [each.tolist() for each in inputs["last"]] == [[[1.0, 1.0]]]


def test_archive_restores_comm_hook(clean_python, tmp_path):
    code = """
    import modpack, torch, torch.distributed as dist
    net = modpack.load(file)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=0, world_size=1)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    (hook,) = modpack.hooks.restore_comm_hook(ddp)
    ddp(torch.ones(1, 2)).sum().backward()
    print(hook.state.buckets, net.inner.weight.grad.tolist())
    """
    file = FOLDER / "v2" / "wrapped.modpack"
    ran = clean_python(code, file=str(file), meeting=str(tmp_path / "meeting"))
    assert ran.stdout == "1 [[7.0, 7.0]]\n"


def test_archive_restores_values_computed_by_script():
    found = modpack.load(FOLDER / "v2" / "values.modpack")
    assert found(X).tolist() == [[(3.0 + 2.0) * 10, (3.0 + 2.0) * 10]]


def test_archive_restores_object_for_each_vocabulary_name():
    found = modpack.load(FOLDER / "v2" / "words.modpack")
    assert found["cell"].cell_contents == "in a cell"
    assert found["by_hand"]() == "by hand"
    assert found["by_hand"].__self__ is found["node"]
    assert found["forwarding"].method() == "bound"
    assert found["handler"].stream is sys.stderr
    assert found["stream"] is sys.stdout
    assert found["condition"].acquire(blocking=False)
    assert found["semaphore"]._initial_value == 3
    assert found["local"].value == "of the thread"
    assert found["pool"].submit(len, "gold").result() == 4
    assert found["variable"].get() == "default"
    assert set(found["members"]) == {found["node"]}
    assert found["method"]()() == "bound"
    assert found["proxy"].method() == "bound"
    found["shared"]["two"] = 2
    assert found["mapping"]["two"] == 2
    assert (found["cached"](1), found["cached"].cache_info().maxsize) == (2, 5)
    assert found["property"].fget(None) == "gold"
    assert found["parameter"].__bound__ is int
    assert found["new_type"].__supertype__ is int
    assert found["forward_ref"].__forward_arg__ == "Gold"
    assert found["operator"] is torch.ops.aten.add.Tensor
    assert found["weight"] is dict(found["scripted"].named_parameters())["weight"]
    assert type(found["traced"]).__mro__[1].__name__ == "Twice"
    assert found["traced"](X).tolist() == [[2.0, 2.0]]


def test_archive_restores_call_signature():
    package = FOLDER / "v2" / "called.modpack"
    call = modpack.call_signature(package)
    assert [f"{each.name}: {each}" for each in call.inputs] == [
        "features.tokens: float32 (batch, length, 2)",
        "features.mask: float32 (batch, length)",
        "scale: float",
        "state.0: int64 (batch,)",
        "state.1: bool (batch, 5)",
    ]
    assert [f"{each.name}: {each}" for each in call.outputs] == [
        "scores: float32 (batch, length, 3)",
        "state.0: int64 (batch,)",
        "state.1: bool (batch, 5)",
    ]
    assert (call.batch, call.batching) == ("batch", "independent")
    net = modpack.load(package)
    features = {"tokens": torch.ones(1, 1, 2), "mask": torch.zeros(1, 1)}
    found = net(features, 2.0, state=(torch.zeros(1), torch.ones(1, 5)))
    assert found["scores"].tolist() == [[[6.0, 10.0, 14.0]]]


@pytest.mark.parametrize("version", FORMATS)
def test_policy_allows_only_named_globals(version):
    package = FOLDER / version / "hooked.modpack"
    with pytest.warns(modpack.ModpackWarning, match="require_signature_from"):
        allowing = modpack.TrustPolicy(allow_code=True, allow_stdlib="**")
    assert modpack.load(package, policy=allowing)(X).shape == (1, 2)
    signer = modpack.Signer("gold", (FOLDER / version / "signer.pub").read_text())
    with pytest.raises(modpack.errors.SignatureError, match="'gold' is required"):
        modpack.load(
            package, policy=modpack.TrustPolicy(allow_code=True, require_signature_from=signer)
        )


def test_load_weights_works_if_code_is_not_allowed():
    found = modpack.load(FOLDER / "v2" / "weights.modpack", policy=modpack.TrustPolicy())
    assert [tuple(tensor.shape) for tensor in found.values()] == [(2, 2), (2,)]


def test_archive_restores_nested_pickle(clean_python):
    code = """
    import modpack, torch
    print(modpack.load(file)(torch.ones(1)).tolist())
    """
    ran = clean_python(code, file=str(FOLDER / "v2" / "nesting.modpack"))
    assert ran.stdout == "[6.0]\n"


@pytest.mark.parametrize("version", FORMATS)
def test_signature_of_archive_is_valid(version):
    key, package = FOLDER / version / "signer.pub", FOLDER / version / "signed.modpack"
    command = [sys.executable, "-m", "modpack", "verify", "--key", str(key), str(package)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("version", FORMATS)
def test_self_test_of_archive_can_be_repeated(version, tmp_path):
    ran = run_python(
        "-m", "modpack", "self-test", FOLDER / version / "hooked.modpack", folder=tmp_path
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("version", FORMATS)
def test_archive_with_a_loader_loads_and_describes_itself(version, tmp_path):
    package = FOLDER / version / "bundled.modpack"
    assert modpack.load(package)(X).shape == (1, 2)
    command = [sys.executable, "-S", package]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "input   input: float32 (batch, 2)" in done.stdout
