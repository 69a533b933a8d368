"""Tensors that are sharded across processes."""

from __future__ import annotations

import pytest
import torch

import modpack
from modpack.errors import PicklingError

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no torch.distributed"
)

TOGETHER = """
import warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import modpack
from torch import nn

def join():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""

SAVED = (
    TOGETHER
    + """
from torch.distributed._shard.sharded_tensor import Shard as Part, init_from_local_shards
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

join()
mesh = init_device_mesh("cpu", (1,))
model = nn.Linear(2, 3)
for name, parameter in list(model.named_parameters()):
    spread = distribute_tensor(torch.arange(float(parameter.numel())).view_as(parameter), mesh,
                               [Shard(0) if name == "weight" else Replicate()])
    setattr(model, name, nn.Parameter(spread))
part = Part.from_tensor_and_offsets(torch.arange(4.0), [0], 0)
modpack.save(model, path / "model.modpack")
with modpack.PackageExporter(path / "parts.modpack") as exporter:
    exporter.save_pickle("m", "parts.pkl", init_from_local_shards([part], [4]))
dist.destroy_process_group()
"""
)

LOADED = (
    TOGETHER
    + """
if joined:
    join()
try:
    model = modpack.load(path / "model.modpack")
    print(type(model.weight).__name__, model.weight.placements, model.bias.placements)
    print(model.weight.to_local().tolist(), model.weight.requires_grad)
    print(isinstance(model.weight, nn.Parameter), list(model.state_dict()))
    parts = modpack.PackageImporter(path / "parts.modpack").load_pickle("m", "parts.pkl")
    print(parts.local_shards()[0].tensor.tolist(), list(parts.size()))
except RuntimeError as failure:
    print(failure)
"""
)


@pytest.fixture
def spread(clean_python, tmp_path):
    clean_python(SAVED, path=tmp_path)
    return tmp_path


def test_sharded_tensors_load_with_placements(spread, clean_python):
    done = clean_python(LOADED, path=spread, joined=True)
    assert done.stdout.splitlines() == [
        "DTensor (Shard(dim=0),) (Replicate(),)",
        "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] True",
        "True ['weight', 'bias']",
        "[0.0, 1.0, 2.0, 3.0] [4]",
    ]


def test_sharded_tensors_without_process_group_load_local_parts(spread, clean_python):
    lines = clean_python(LOADED, path=spread, joined=False).stdout.splitlines()
    assert lines[1] == "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]] True"
    assert "init_process_group" in lines[-1]


class Unasked(torch.Tensor):
    """A class that rejects every torch function except those for saving."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.__reduce_ex__:
            raise NotImplementedError(f"{func} is not for {cls.__name__}")
        return super().__torch_function__(func, types, args, kwargs or {})


class Refusing(torch.Tensor):
    """A class that cannot be saved."""

    def __reduce_ex__(self, protocol):
        raise NotImplementedError("a Refusing stays here")


def test_tensor_with_raising_torch_function_is_saved(tmp_path):
    model = torch.nn.Linear(1, 1)
    model.kept = torch.arange(3.0).as_subclass(Unasked)
    with modpack.PackageExporter(tmp_path / "u.modpack") as exporter:
        exporter.extern("tests.**")
        exporter.extern(__name__)
        exporter.save_model("m", "model.pkl", model)
    with modpack.PackageImporter(tmp_path / "u.modpack") as importer:
        kept = importer.load_model("m", "model.pkl").kept
    assert type(kept) is Unasked
    with torch._C.DisableTorchFunctionSubclass():
        assert kept.tolist() == [0, 1, 2]


def test_tensor_that_refuses_to_be_saved_is_named(tmp_path):
    model = torch.nn.Linear(1, 1)
    model.kept = torch.arange(3.0).as_subclass(Refusing)
    with pytest.raises(PicklingError, match=r"model\.kept.*a Refusing stays here"):
        modpack.save(model, tmp_path / "r.modpack")


FULLY_SHARDED = (
    TOGETHER
    + """
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from modpack.errors import PicklingError

join()
mesh = init_device_mesh("cpu", (1,))
model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
fully_shard(model[1], mesh=mesh)
x = torch.ones(1, 3)
expected = model(x)
try:
    modpack.save(model, path / "sharded.modpack")
except PicklingError as failure:
    print(failure)
plain = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
options = StateDictOptions(full_state_dict=True)
plain.load_state_dict(get_model_state_dict(model, options=options))
modpack.save(plain, path / "plain.modpack")
print(torch.equal(modpack.load(path / "plain.modpack")(x), expected))
dist.destroy_process_group()
"""
)


def test_fully_sharded_module_is_rejected_with_working_hint(clean_python, tmp_path):
    told, remedy = clean_python(FULLY_SHARDED, path=tmp_path).stdout.splitlines()
    assert "at model[1]" in told and "get_model_state_dict" in told
    assert remedy == "True"
    assert not tmp_path.joinpath("sharded.modpack").exists()
