"""Models that are tied to a group of processes are refused by name, with a remedy that works."""

from __future__ import annotations

import pytest

WRAPPED = {
    "replicate": """
        from torch.distributed._composable import replicate
        model = torch.nn.Sequential(replicate(torch.nn.Linear(2, 2)))
        """,
    "FSDP": """
        from torch.distributed.fsdp import FullyShardedDataParallel
        inner = FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))
        model = torch.nn.Sequential(inner)
        """,
    "FSDP that has run": """
        from torch.distributed.fsdp import FullyShardedDataParallel
        inner = FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))
        model = torch.nn.Sequential(inner)
        model(torch.ones(1, 2)).sum().backward()
        """,
    "fully_shard": """
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (1,))
        model = torch.nn.Sequential(fully_shard(torch.nn.Linear(2, 2), mesh=mesh))
        """,
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_model_of_a_group_is_refused_with_a_remedy_that_works(clean_python, tmp_path, kind):
    code = f"""
    import textwrap, warnings
    warnings.simplefilter("ignore")
    import torch, torch.distributed as dist
    import modpack
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=0, world_size=1)
    exec(textwrap.dedent({WRAPPED[kind]!r}))
    try:
        modpack.save(model, file, self_test=False)
    except modpack.PicklingError as failure:
        text = str(failure)
        print("FullyShardedDataParallel" in text, "model[0]" in text, text.count("get_model_state"))
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2))
    whole = StateDictOptions(full_state_dict=True)
    plain.load_state_dict(get_model_state_dict(model, options=whole))
    modpack.save(plain, file, self_test=False)
    print(torch.equal(modpack.load(file)(torch.ones(1, 2)), model(torch.ones(1, 2))))
    dist.destroy_process_group()
    """
    places = {"file": tmp_path / "net.modpack", "meeting": str(tmp_path / "meeting")}
    assert clean_python(code, **places).stdout == "True True 1\nTrue\n"
