"""Hooks of leaf nodes load; hooks of other graph nodes are reported."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

import modpack
from modpack import hooks

BOTH = ["weight/accumulate_grad_pre/0", "weight/accumulate_grad/0"]
KEPT: list[object] = []


class Logged(nn.Linear):
    """Records which hooks run."""

    def __init__(self):
        super().__init__(2, 2)
        nn.init.ones_(self.weight)
        self.log: list[str] = []

    def before(self, grads):
        self.log.append("before")
        return (grads[0] * 3,)

    def after(self, grads, incoming):
        self.log.append(f"after {incoming[0].sum().item():.0f}")


@pytest.fixture(autouse=True)
def _forget():
    yield
    KEPT.clear()


def hooked() -> Logged:
    """A model with other hooks, and hooks on a node that only this module keeps alive."""
    model = Logged()
    node = get_gradient_edge(model.weight).node
    KEPT.append(node)
    log = model.log
    model.handle = node.register_prehook(model.before)
    node.register_hook(model.after)
    model.weight.register_hook(lambda grad: log.append("tensor"))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: log.append("accumulated"))
    return model


def passed(model: Logged) -> tuple[list[str], list[float]]:
    """Return the hooks that ran in a backward pass, and the gradient."""
    gc.collect()
    model.zero_grad()
    model.log.clear()
    model(torch.ones(1, 2)).sum().backward()
    return list(model.log), model.weight.grad.flatten().tolist()


EXPECTED = (["tensor", "before", "accumulated", "after 12"], [3.0] * 4)


def test_node_hooks_run_in_order_after_three_round_trips(package):
    model = hooked()
    assert passed(model) == EXPECTED
    for _ in range(3):
        saved = package(model)
        model = saved.model()
        assert saved.names[:2] == BOTH
        assert passed(model) == passed(model) == EXPECTED
    model.handle.remove()
    assert passed(model)[0] == ["tensor", "accumulated", "after 4"]
    saved.importer.hook_handles[BOTH[1]].remove()
    assert passed(model)[0] == ["tensor", "accumulated"]


def test_node_hooks_kept_alive_by_tensor_load(package):
    model = Logged()
    model.view = model.weight.expand_as(model.weight)
    (node, _), *_ = model.view.grad_fn.next_functions
    handle = node.register_prehook(model.before)
    saved = package(model)
    assert passed(saved.model()) == (["before"], [3.0] * 4)
    handle.remove()
    assert package(model).names == []


def test_node_hooks_added_to_a_loaded_parameter_are_saved_too(package):
    model = package(hooked()).model()
    KEPT.append(get_gradient_edge(model.weight).node)
    KEPT[-1].register_prehook(lambda grads: (grads[0] + 1,))
    assert passed(model)[1] == passed(package(model).model())[1]
    assert len(package(model).names) == len(package(hooked()).names) + 1


def test_node_hooks_of_frozen_and_tied_parameters_load(package):
    model = nn.Sequential(hooked(), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    saved = package(model)
    assert saved.names[:2] == [f"0.{name}" for name in BOTH]
    loaded = saved.model()
    loaded[0].weight.requires_grad_(False)
    again = package(loaded).model()
    assert not again[1].weight.requires_grad
    again[1].weight.requires_grad_(True)
    for each in (loaded, again):
        each(torch.ones(1, 2)).sum().backward()
    assert loaded[0].log == [] and again[0].log.count("before") == 1


def test_loaded_model_with_node_hooks_is_freed(package):
    saved = package(hooked())
    model = saved.model()
    passed(model)
    parameter, module = weakref.ref(model.weight), weakref.ref(model)
    saved.importer.hooks.clear()
    saved.importer.hook_handles.clear()
    del model
    gc.collect()
    assert parameter() is None and module() is None


def test_node_hooks_can_be_excluded(package):
    loaded = package(hooked(), hooks=lambda spec: spec.name not in BOTH).model()
    assert passed(loaded)[0] == ["tensor", "accumulated"]
    assert passed(package(hooked()).model(hooks=[BOTH[0]]))[0] == ["before"]


def test_node_hooks_of_scripted_module_load(package):
    model = nn.Sequential(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)))
    node = get_gradient_edge(model[0].weight).node
    KEPT.append(node)
    node.register_prehook(lambda grads: (grads[0] * 0,))
    loaded = package(model).model()
    loaded(torch.ones(1, 2)).sum().backward()
    assert not loaded[0].weight.grad.any()


def test_node_hooks_of_sparse_parameters_load(package):
    model = nn.Module()
    model.weight = nn.Parameter(torch.eye(2).to_sparse())
    (node, _), *_ = (model.weight * 1).grad_fn.next_functions  # torch cannot create a view of it
    KEPT.append(node)
    node.register_prehook(lambda grads: (grads[0] * 3,))
    loaded = package(model).model()
    torch.sparse.mm(loaded.weight, torch.ones(2, 1)).sum().backward()
    assert loaded.weight.grad.to_dense().max() == 3


def test_node_hooks_of_nested_parameters_load(package):
    model = nn.Module()
    model.parts = nn.Parameter(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    model.log = []
    log = model.log
    node = torch.ops.aten.alias(model.parts).grad_fn.next_functions[0][0]  # it has no shape
    KEPT.append(node)
    node.register_prehook(lambda grads: log.append("before"))
    loaded = package(model).model()
    loaded.parts.to_padded_tensor(0.0).sum().backward()
    assert loaded.log == ["before"]
    assert [part.tolist() for part in loaded.parts.grad.unbind()] == [[1.0] * 2, [1.0] * 3]


def test_optimizer_in_backward_pass_is_saved_with_model(package):
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = nn.Linear(2, 2)
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.5})
    loaded = package(model).model()
    before = loaded.weight.tolist()
    for each in (model, loaded):
        each(torch.ones(1, 2)).sum().backward()
    assert torch.equal(model.weight, loaded.weight) and before != loaded.weight.tolist()


def noted(*args):
    """A hook."""


def test_node_hooks_of_live_graph_are_reported_with_hint(package):
    model = nn.Linear(2, 2)
    model.output = model(torch.ones(1, 2)).relu()
    node = model.output.grad_fn
    node.register_prehook(lambda grads: None)
    model.handle = node.next_functions[0][0].register_hook(noted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saved = package(model)
    messages = [str(each.message) for each in caught if each.category is modpack.ModpackWarning]
    assert len(messages) == 2
    assert messages[0].startswith("hook 'output/graph.node_pre': ")
    assert "<lambda>" in messages[0] and "test_grad_nodes:" in messages[0]
    assert "on node ReluBackward0" in messages[0] and "NodePreHook(path, hook)" in messages[0]
    assert "noted is registered on node AddmmBackward0" in messages[1]
    assert [each.status for each in saved.report] == ["left out", "left out"]


def test_internal_hooks_on_live_graph_are_not_reported(package):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].register_full_backward_hook(noted)
    model[0].register_full_backward_pre_hook(noted)
    for spec in (hooks.NodeHook, hooks.NodePreHook, hooks.OutputGrad):
        hooks.attach(model, spec("1", noted))
    legacy = nn.Sequential(nn.Tanh())
    legacy[0].register_backward_hook(noted)
    model.outputs = [model(torch.ones(1, 2, requires_grad=True))]
    legacy.output = legacy(torch.ones(1, 2, requires_grad=True))
    for each in (model, legacy):
        with warnings.catch_warnings():
            warnings.simplefilter("error", modpack.ModpackWarning)
            report = package(each).report
        assert {status.status for status in report} == {"captured"}


def test_handles_of_hooks_on_unsaved_objects_are_reported(package):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    node = get_gradient_edge(other.weight).node
    model.handles = {"node": node.register_prehook(noted), "dead": other.register_forward_hook(len)}
    model.handles["dead"].remove()
    model.group = torch.autograd.graph.register_multi_grad_hook([other.weight, other.bias], noted)
    model.own = model.register_forward_hook(noted)
    with pytest.warns(
        modpack.ModpackWarning, match="the handle removes .*noted, which is not registered on"
    ):
        saved = package(model)
    lost = [status.name for status in saved.report if status.status == "left out"]
    assert lost == ["handles['node']", "group.handles[0]"]
    loaded = saved.model()
    loaded.handles["node"].remove()
    loaded.own.remove()
    assert not loaded._forward_hooks
    whole = nn.ModuleList([model, other])  # follow the hint
    assert all(status.status == "captured" for status in package(whole).report)
