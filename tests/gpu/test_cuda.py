"""Packages on CUDA devices. ``make test-gpu`` runs these tests; they skip without a GPU."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import modpack
from tests.serving_process import MODPACK, Serving

DEVICE = "cuda"  # edit to "cpu" to check the logic of these tests without a GPU

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no CUDA device"
    ),
]


def loaded(buffer: io.BytesIO, **options: Any) -> Any:
    buffer.seek(0)
    with modpack.PackageImporter(buffer) as importer:
        return importer.load_pickle("m", "o.pkl", **options)


def saved(obj: object) -> io.BytesIO:
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.save_pickle("m", "o.pkl", obj)
    return buffer


def make_net(device: str = DEVICE) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return net.append(nn.Linear(4 * 6 * 6, 5)).to(device).eval()


def devices_of(model: nn.Module) -> set[str]:
    return {each.device.type for each in (*model.parameters(), *model.buffers())}


@pytest.fixture
def batch() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def package(tmp_path: Path, batch: torch.Tensor) -> Path:
    """A package of a net on the GPU, which passed its self-test there."""
    modpack.save(make_net(), tmp_path / "net.modpack", example_inputs=batch.to(DEVICE))
    return tmp_path / "net.modpack"


def test_load_returns_model_to_gpu_with_equal_outputs(package, batch):
    model = modpack.load(package)
    assert devices_of(model) == {DEVICE}
    with torch.inference_mode():
        assert torch.equal(model(batch.to(DEVICE)), make_net()(batch.to(DEVICE)))


@pytest.mark.parametrize("saved_on, loaded_on", [(DEVICE, "cpu"), ("cpu", DEVICE)])
def test_map_location_moves_whole_model(tmp_path, batch, saved_on, loaded_on):
    modpack.save(make_net(saved_on), tmp_path / "net.modpack")
    model = modpack.load(tmp_path / "net.modpack", map_location=loaded_on)
    assert devices_of(model) == {loaded_on}
    with torch.inference_mode():
        torch.testing.assert_close(model(batch.to(loaded_on)).cpu(), make_net("cpu")(batch))


@pytest.mark.parametrize("device", [DEVICE, f"{DEVICE}:0", torch.device(DEVICE, 0)], ids=str)
def test_map_location_moves_cpu_tensors_to_gpu(device):
    again = loaded(saved({"a": torch.arange(3.0), "b": torch.ones(1)}), map_location=device)
    assert {tensor.device.type for tensor in again.values()} == {DEVICE}
    assert again["a"].tolist() == [0, 1, 2]


def test_load_weights_moves_weights_to_gpu(package):
    weights = modpack.load_weights(package, map_location=DEVICE)
    assert {each.device.type for each in weights.values()} == {DEVICE}
    make_net().load_state_dict(weights)


def test_gpu_tensors_share_storage_as_before():
    base = torch.arange(6.0, device=DEVICE)
    model = nn.Linear(2, 2).to(DEVICE)
    package = saved({"base": base, "row": base[2:4], "model": model, "cpu": torch.ones(1)})
    again = loaded(package)
    assert again["base"].device.type == DEVICE and again["cpu"].device.type == "cpu"
    again["base"][2] = 9.0
    assert again["row"].tolist() == [9.0, 3.0]
    assert torch.equal(again["model"].weight, model.weight)
    assert loaded(package, map_location="cpu")["row"].tolist() == [2.0, 3.0]


def test_pinned_tensor_loads_as_ordinary_tensor():
    pinned = torch.arange(3.0).pin_memory()
    again = loaded(saved(pinned))
    assert again.tolist() == [0, 1, 2] and not again.is_pinned()


def test_gpu_device_context_moves_nothing():
    package = saved([torch.ones(2), torch.eye(2).to_sparse()])
    with torch.device(DEVICE):
        dense, sparse = loaded(package)
    assert (dense.device.type, sparse.device.type) == ("cpu", "cpu")


def test_optimizer_state_returns_to_gpu(tmp_path, batch):
    net = make_net().train()
    optimizer = torch.optim.Adam(net.parameters())
    net(batch.to(DEVICE)).sum().backward()
    optimizer.step()
    modpack.save(net, tmp_path / "net.modpack", optimizer=optimizer)
    for location in (None, "cpu"):
        model, again = modpack.load(
            tmp_path / "net.modpack", map_location=location, with_optimizer=True
        )
        expected = location or DEVICE
        assert again.param_groups[0]["params"][0] is next(model.parameters())
        assert {s["exp_avg"].device.type for s in again.state.values()} == {expected}


def test_self_test_on_cpu_accepts_model_on_gpu(tmp_path, batch):
    target = tmp_path / "net.modpack"
    modpack.save(make_net(), target, example_inputs=batch.to(DEVICE), self_test_device="cpu")
    assert modpack.self_test(target).passed


@pytest.mark.parametrize("location", [None, "cpu", DEVICE])
def test_hooks_with_tensors_work_on_gpu(tmp_path, batch, location):
    net = make_net()
    scale = torch.tensor(3.0, device=DEVICE)
    net[0].register_forward_hook(lambda module, args, output: output * scale)
    net[4].weight.register_hook(lambda grad: grad * scale)
    inputs = batch.to(DEVICE)
    net(inputs).sum().backward()
    modpack.save(net, tmp_path / "net.modpack")
    model = modpack.load(tmp_path / "net.modpack", map_location=location)
    output = model(batch.to(location or DEVICE))
    output.sum().backward()
    torch.testing.assert_close(output.to(DEVICE), net(inputs))
    torch.testing.assert_close(model[4].weight.grad.to(DEVICE), net[4].weight.grad)


def test_run_on_gpu_writes_outputs_of_cpu(package, batch, tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(batch.tolist()))
    outputs = {}
    for device in (DEVICE, "cpu"):
        target = tmp_path / f"{device}.json"
        command = [MODPACK, "run", package, tmp_path / "rows.json", "-o", target]
        subprocess.run([*command, "--device", device], check=True)
        outputs[device] = torch.tensor(json.loads(target.read_text())["output"])
    torch.testing.assert_close(outputs[DEVICE], outputs["cpu"], rtol=1e-3, atol=1e-4)


def test_server_on_gpu_answers_as_on_cpu(package, batch):
    served = Serving(package, "--device", DEVICE, "--workers", 2)
    try:
        answers = [served.client.post("/predict", json={"input": batch.tolist()}) for _ in range(4)]
        assert {each.status_code for each in answers} == {200}
        with torch.inference_mode():
            expected = make_net("cpu")(batch)
        for each in answers:
            torch.testing.assert_close(
                torch.tensor(each.json()["output"]), expected, rtol=1e-3, atol=1e-4
            )
    finally:
        served.stop()
