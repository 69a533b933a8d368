"""``handle.remove()`` of handles that loading returns, and of saved handles."""

import copy

import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook

from modpack.hooks.kinds import KINDS, kinds_of


def hooked():
    """Return a model with hooks of every kind with a table, on itself and its weight."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = {"module": model, "tensor": model.weight, "optimizer": optimizer}
    for scope, target in targets.items():
        for kind in kinds_of(scope):
            if kind.name != "backward":
                kind.register(target, lambda *_: None, {})
    register_multi_grad_hook([model.weight, model.bias], lambda grads: None)
    return model, optimizer


def count(model, optimizer):
    """Return the number of hooks; kinds may share a table."""
    tables = {}
    for kind in KINDS.values():
        target = {"module": model, "tensor": model.weight, "optimizer": optimizer}.get(kind.scope)
        for name in kind.tables[:1] if target is not None else ():
            tables[id(target), name] = getattr(target, name) or {}
    return sum(map(len, tables.values()))


def test_handle_removes_its_hook_only(package):
    model, optimizer = hooked()
    saved = package(model, optimizer=optimizer)
    loaded, its_optimizer = saved.model(with_optimizer=True)
    assert set(saved.importer.hook_handles) == set(saved.names)
    left = count(loaded, its_optimizer)
    for name in saved.names:
        saved.importer.hook_handles[name].remove()
        left -= 1  # one hook of the group is on the weight
        assert count(loaded, its_optimizer) == left, name
    assert left == 0
    assert not loaded.bias._backward_hooks


def test_hook_handles_are_available_by_name(package, net):
    net[0].register_forward_hook(_Counter())
    saved = package(net)
    saved.model()(torch.ones(1, 2))
    assert saved.importer.hooks["0/forward/0"].count == 1


class _Counter:
    def __init__(self):
        self.count = 0

    def __call__(self, module, args, output):
        self.count += 1


def test_handles_in_model_remove_loaded_hooks(again, net):
    model = net
    model.handles = {
        "forward": model[0].register_forward_hook(lambda *_: None, with_kwargs=True),
        "always": model[0].register_forward_hook(lambda *_: None, always_call=True),
        "tensor": model[0].weight.register_hook(lambda grad: None),
        "after": model[0].weight.register_post_accumulate_grad_hook(lambda p: None),
        "state": model.register_state_dict_post_hook(lambda *_: None),
        "group": register_multi_grad_hook([model[2].bias, model[2].weight], lambda grads: None),
    }
    loaded = again(model)
    (first, second) = loaded[0]._forward_hooks
    loaded.handles["forward"].remove()
    assert list(loaded[0]._forward_hooks) == [second]
    assert first not in loaded[0]._forward_hooks_with_kwargs
    loaded.handles["always"].remove()
    assert not loaded[0]._forward_hooks_always_called
    for name in ("tensor", "after", "state", "group"):
        loaded.handles[name].remove()
    assert not loaded[0].weight._backward_hooks
    assert not loaded[0].weight._post_accumulate_grad_hooks
    assert not loaded._state_dict_hooks
    assert not loaded[2].bias._backward_hooks and not loaded[2].weight._backward_hooks
    assert len(model[0]._forward_hooks) == 2


def test_self_removing_hook_removes_itself_after_loading(again, net):
    calls = net.calls = []

    def once(module, args, output):
        calls.append("once")
        handle.remove()

    handle = net[0].register_forward_hook(once)
    loaded = again(net)
    loaded(torch.ones(1, 2))
    loaded(torch.ones(1, 2))
    assert loaded.calls == ["once"]
    assert len(net[0]._forward_hooks) == 1


def test_handle_of_excluded_hook_is_dead(package, net):
    net.handle = net[0].register_forward_hook(lambda *_: None)
    loaded = package(net).model(hooks=False)
    later = loaded[0].register_forward_hook(lambda *_: None)
    loaded.handle.remove()
    assert list(loaded[0]._forward_hooks) == [later.id]


def test_handle_of_removed_hook_stays_dead(again, net):
    net.handle = net[0].register_forward_hook(lambda *_: None)
    net.handle.remove()
    loaded = again(net)
    later = loaded[0].register_forward_hook(lambda *_: None)
    loaded.handle.remove()
    assert list(loaded[0]._forward_hooks) == [later.id]


def test_handle_of_global_hook_removes_it(package, net):
    net.handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    saved = package(net, global_hooks=True)
    net.handle.remove()
    loaded = saved.model(global_hooks=True)
    assert len(torch.nn.modules.module._global_forward_hooks) == 1
    loaded.handle.remove()
    assert not torch.nn.modules.module._global_forward_hooks


def test_loaded_model_can_be_deep_copied(again, net, same):
    net[0].register_forward_hook(lambda module, args, output: output * 2)
    net[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    loaded = again(net)
    duplicate = copy.deepcopy(loaded)
    assert same(net, duplicate)
    duplicate[0]._forward_hooks.clear()
    assert len(loaded[0]._forward_hooks) == 1


def test_loaded_model_can_be_saved_with_torch(again, net, tmp_path):
    net[0].register_forward_hook(_plus_one)
    loaded = again(net)
    torch.save(loaded, tmp_path / "model.pt")
    x = torch.ones(1, 2)
    assert torch.equal(torch.load(tmp_path / "model.pt", weights_only=False)(x), net(x))


def _plus_one(module, args, output):
    return output + 1


class OutOfRange(ValueError):
    """A user-defined error."""


@pytest.mark.parametrize("method", ["register_forward_hook", "register_full_backward_hook"])
def test_raising_hook_raises_same_error_after_loading(again, net, method):
    limit = 3

    def strict(*given):
        raise OutOfRange(f"more than {limit}")

    getattr(net[1], method)(strict)
    loaded = again(net)
    for each in (net, loaded):
        with pytest.raises(OutOfRange, match="more than 3"):
            each(torch.ones(1, 2, requires_grad=True)).sum().backward()
