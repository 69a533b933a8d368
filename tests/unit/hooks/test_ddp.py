"""DistributedDataParallel modules are saved with their comm hooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import modpack
from modpack import hooks
from modpack.hooks.ddp import comm_hooks_of

LAB = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Traffic:
    def __init__(self, scale):
        self.scale, self.bytes, self.group = scale, [], None

def averaging(scale):
    def reduce(state, bucket):
        state.bytes.append(bucket.buffer().nbytes)
        sent = (bucket.buffer() * state.scale).round(decimals=3) / dist.get_world_size()
        return dist.all_reduce(sent, group=state.group, async_op=True).get_future().then(
            lambda done: done.value()[0] / scale)
    return reduce

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

def gradients(ddp):
    rank = dist.get_rank()
    torch.manual_seed(rank + 10)
    ddp(torch.randn(5, 3)).pow(2).sum().backward()
    return [p.grad.tolist() for p in ddp.parameters()]

def join(rank, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)

def leave():  # now and then torch aborts when Python ends while a state still holds the group
    sys.stdout.flush()
    os._exit(0)
"""
BEFORE = """
import json, sys
rank, folder, root = sys.argv[1:]
sys.path.insert(0, root)
import lab, modpack, torch.distributed as dist
lab.join(rank, f"{folder}/before")
ddp = lab.DistributedDataParallel(lab.net())
state = lab.Traffic(100.0)
state.group = dist.group.WORLD
ddp.register_comm_hook(state, lab.averaging(100.0))
ddp.module[1].register_forward_hook(lambda module, args, output: output * 2)
if rank == "0":
    with modpack.PackageExporter(f"{folder}/net.modpack") as exporter:
        exporter.save_module("lab")
        exporter.save_model("net", "model.pkl", ddp)
        report = [(hook.name, hook.status) for hook in exporter.hook_report()]
dist.barrier()
own = lab.gradients(ddp)
plain = lab.net()
plain[1].register_forward_hook(lambda module, args, output: output * 2)
without = lab.gradients(lab.DistributedDataParallel(plain))
if rank == "0":
    print(json.dumps({"gradients": own, "without": without, "bytes": state.bytes,
                      "report": report}))
dist.destroy_process_group()
lab.leave()
"""
AFTER = """
import json, sys
rank, folder, root = sys.argv[1:]
import modpack, torch.distributed as dist
importer = modpack.PackageImporter(f"{folder}/net.modpack")
lab = importer.import_module("lab")
lab.join(rank, f"{folder}/after")
model = importer.load_model("net", "model.pkl")
assert type(model).__name__ == "Sequential", type(model)
ddp = lab.DistributedDataParallel(model)
registered = modpack.hooks.restore_comm_hook(ddp)
gradients = lab.gradients(ddp)
state = importer.hook_state("ddp.comm/0")
if rank == "0":
    print(json.dumps({"gradients": gradients, "bytes": state["state"].bytes,
                      "scale": state["scale"], "same": registered[0].state is state["state"],
                      "group": state["state"].group is dist.group.WORLD}))
dist.destroy_process_group()
lab.leave()
"""


def two_processes(code: str, folder: Path, root: Path) -> dict[str, object]:
    """Return the output of rank 0 of two processes."""
    script = folder / "script.py"
    script.write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-I", str(script), rank, str(folder), str(root)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    results = [process.communicate(timeout=240) for process in running]
    for process, (_, error) in zip(running, results, strict=True):
        assert process.returncode == 0, error
    return json.loads(results[0][0].splitlines()[-1])  # some releases of torch print the ranks


@pytest.fixture
def alone(tmp_path):
    """A process group with one process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def count(state, bucket):  # torch refuses annotations that are text
    state.append(bucket.index())
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer() * 3)
    return done


def reloaded(obj: object, path: Path) -> nn.Module:
    with modpack.PackageExporter(path) as exporter:
        exporter.extern("tests.**"), exporter.extern("test_ddp")
        exporter.save_model("net", "model.pkl", obj)
    return modpack.PackageImporter(path).load_model("net", "model.pkl")


def test_ddp_gradients_are_same_after_loading_in_two_processes(project, tmp_path):
    root = project({"lab.py": LAB})
    before = two_processes(BEFORE, tmp_path, root)
    after = two_processes(AFTER, tmp_path, Path("/nowhere"))
    assert after["gradients"] == before["gradients"] != before["without"]
    assert after["bytes"] == before["bytes"] and len(after["bytes"]) > 0
    assert after["scale"] == 100.0 and after["same"] and after["group"]
    assert before["report"] == [
        ["DistributedDataParallel", "unwrapped"],
        ["ddp.comm/0", "captured"],
        ["1/forward/0", "captured"],
    ]


def test_comm_hook_spec_shows_callable_and_state(alone, tmp_path):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    seen: list[int] = []
    ddp.register_comm_hook(seen, lambda state, bucket: count(state, bucket))
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.extern("**")
        exporter.save_model("net", "model.pkl", ddp)
        report = {hook.name: hook for hook in exporter.hook_report()}
    assert "the module inside is saved" in report["DistributedDataParallel"].why
    (spec,) = modpack.PackageImporter(tmp_path / "net.modpack").hook_specs("net", "model.pkl")
    assert (spec.name, spec.kind, spec.target) == ("ddp.comm/0", "ddp.comm", ("",))
    assert spec.callable.source == "lambda state, bucket: count(state, bucket)"
    assert spec.callable.state[0] == "state"


def test_comm_hook_waits_through_saves(alone, tmp_path):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    ddp.register_comm_hook([], count)
    model = reloaded(ddp, tmp_path / "one.modpack")
    model = reloaded(model, tmp_path / "two.modpack")
    wrapped = DistributedDataParallel(model)
    (hook,) = hooks.restore_comm_hook(wrapped)
    wrapped(torch.ones(1, 2)).sum().backward()
    assert hook.state == [0]
    assert torch.equal(model.weight.grad, torch.full((1, 2), 3.0))


def test_rewrapped_module_has_comm_hook_once(alone, tmp_path):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    ddp.register_comm_hook([], count)
    wrapped = DistributedDataParallel(reloaded(ddp, tmp_path / "one.modpack"))
    hooks.restore_comm_hook(wrapped)
    modpack.save(wrapped, tmp_path / "two.modpack", extern="**")
    specs = modpack.PackageImporter(tmp_path / "two.modpack").hook_specs("__model__", "model.pkl")
    assert [spec.name for spec in specs] == ["ddp.comm/0"]


def test_nested_wrapper_is_unwrapped(alone, tmp_path):
    net = nn.Linear(2, 1)
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook([], count)
    loaded = reloaded({"wrapped": ddp, "plain": net}, tmp_path / "net.modpack")
    assert loaded["wrapped"] is loaded["plain"]
    assert len(hooks.restore_comm_hook(DistributedDataParallel(loaded["plain"]))) == 1


def test_builtin_hooks_and_buffer_hooks_are_registered_again(alone, tmp_path):
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    ddp._register_buffer_comm_hook([], keep_buffers)
    wrapped = DistributedDataParallel(reloaded(ddp, tmp_path / "net.modpack"))
    hooks.restore_comm_hook(wrapped)
    assert str(wrapped._get_ddp_logging_data()["comm_hook"]).endswith("FP16_COMPRESS")
    wrapped(torch.ones(2, 2))
    assert wrapped.buffer_hook.buffer_comm_hook_state == ["1.num_batches_tracked"]


def keep_buffers(state, buffers):
    state.extend(name for name in buffers if name.endswith("tracked"))


def test_hooks_on_wrapper_are_rejected_unless_excluded(alone, tmp_path):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    ddp.register_forward_hook(lambda module, args, output: None)
    problem = "DistributedDataParallel/forward/0.*is registered on the.*Register it"
    with pytest.raises(modpack.PicklingError, match=problem):
        modpack.save(ddp, tmp_path / "net.modpack")
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.save_model("net", "model.pkl", ddp, hooks=lambda spec: spec.target != ())
        assert ("DistributedDataParallel/forward/0", "left out") in [
            (hook.name, hook.status) for hook in exporter.hook_report()
        ]


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="with CUDA's build of torch, mixed precision needs a GPU",
)
def test_hooks_registered_by_wrapper_are_not_saved(alone, tmp_path):
    """With mixed precision, the wrapper registers hooks on its module and a comm hook."""
    precision = _MixedPrecision(*[torch.bfloat16] * 3)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(2, 1)), mixed_precision=precision)
    assert len(ddp.module._forward_pre_hooks) == 2 and len(ddp._comm_hooks) == 1
    ddp.module.register_forward_pre_hook(add_one)
    loaded = reloaded(ddp, tmp_path / "net.modpack")
    assert list(loaded._forward_pre_hooks.values()) == [add_one]
    assert not loaded[0]._forward_pre_hooks
    with pytest.raises(modpack.ModpackError, match="not loaded with a comm hook"):
        hooks.restore_comm_hook(DistributedDataParallel(loaded))


def add_one(module, args):
    return (args[0] + 1,)


def test_custom_process_group_is_rejected_with_path(alone, tmp_path):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    ddp.register_comm_hook({"group": dist.new_group([0])}, count)
    with pytest.raises(modpack.PicklingError, match=r"hook 'ddp.comm/0' -> state\['group'\].*None"):
        modpack.save(ddp, tmp_path / "net.modpack", extern="**")


def test_restore_comm_hook_without_comm_hook_raises(alone):
    with pytest.raises(
        modpack.ModpackError, match=r"the Linear inside this wrapper was not loaded with"
    ):
        hooks.restore_comm_hook(DistributedDataParallel(nn.Linear(2, 1)))
    with pytest.raises(TypeError, match=r"ddp must be a torch.nn.parallel.DistributedDataParallel"):
        hooks.restore_comm_hook(nn.Linear(2, 1))


def test_waiting_comm_hook_is_removed_by_handle(alone, tmp_path):
    ddp = DistributedDataParallel(nn.Linear(2, 1))
    ddp.register_comm_hook([], count)
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.extern("**")
        exporter.save_model("net", "model.pkl", ddp)
    importer = modpack.PackageImporter(tmp_path / "net.modpack")
    model = importer.load_model("net", "model.pkl")
    importer.hook_handles["ddp.comm/0"].remove()
    with pytest.raises(modpack.ModpackError, match=r"not loaded with a comm hook"):
        hooks.restore_comm_hook(DistributedDataParallel(model))
    assert list(comm_hooks_of(ddp)) != []
