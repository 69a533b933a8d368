"""An export never changes the live model."""

import io
import re
import threading

import pytest
import torch
from torch.nn.modules import module as modules

import modpack


def model_with_everything():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2),
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)),
        torch.nn.utils.prune.l1_unstructured(torch.nn.Linear(2, 2), "weight", amount=1),
    )
    model.collected = []
    layer = model[0]
    model.handle = layer.register_forward_hook(
        lambda m, args, kwargs, output: model.collected.append(output), with_kwargs=True
    )
    layer.register_forward_pre_hook(lambda m, args: None)
    layer.register_full_backward_hook(lambda m, inputs, outputs: None)
    layer.register_state_dict_post_hook(lambda *_: None)
    layer.register_load_state_dict_pre_hook(lambda *_: None)
    layer.weight.register_hook(lambda grad: grad * 2)
    layer.weight.register_post_accumulate_grad_hook(lambda p: None)
    torch.autograd.graph.register_multi_grad_hook([layer.weight, layer.bias], lambda grads: None)
    layer.bias.requires_grad_(False)
    return model


def everything_about(model):
    """Return all tables and attributes of all parts, by identity and contents."""
    seen = []
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            inside = [(k, id(v)) for k, v in value.items()] if isinstance(value, dict) else None
            seen.append((path, name, id(value), inside))
    for name, tensor in model.named_parameters():
        tables = (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
        contents = [[(k, id(v)) for k, v in (table or {}).items()] for table in tables]
        seen.append((name, tensor.requires_grad, tensor._version, contents, list(map(id, tables))))
    return seen


def export(model, **options):
    with modpack.PackageExporter(io.BytesIO()) as exporter:
        exporter.extern("**")
        exporter.save_model("net", "model.pkl", model, **options)


def test_export_does_not_change_model():
    model = model_with_everything()
    before = everything_about(model)
    for options in ({}, {"hooks": False}, {"hooks": ["0/forward/0"]}, {"global_hooks": True}):
        export(model, **options)
        assert everything_about(model) == before


def test_export_without_live_nodes_uses_no_hook_ids():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: None)
    model[1].weight.register_hook(lambda grad: None)
    model(torch.ones(1, 2)).sum().backward()
    next_id = torch.utils.hooks.RemovableHandle.next_id
    export(model)
    assert torch.utils.hooks.RemovableHandle.next_id == next_id


def test_failed_export_does_not_change_model():
    model = model_with_everything()
    unpicklable = re.match("a", "a")
    model[0].register_forward_hook(lambda *_: unpicklable)
    before = everything_about(model)
    with pytest.raises(modpack.PicklingError, match="hook '0/forward/1'"):
        export(model)
    assert everything_about(model) == before


def test_export_never_changes_model_for_other_threads():
    model = model_with_everything()
    before = everything_about(model)
    done = threading.Event()
    otherwise = []

    def look():
        while not done.is_set():
            if everything_about(model) != before:
                otherwise.append(1)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(20):
            export(model)
    finally:
        done.set()
        watcher.join()
    assert not otherwise


def test_export_only_reads_global_hook_tables():
    handle = modules.register_module_forward_hook(lambda *_: None)
    before = dict(modules._global_forward_hooks)
    export(model_with_everything(), global_hooks=True)
    assert dict(modules._global_forward_hooks) == before
    handle.remove()
