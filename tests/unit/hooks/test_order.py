"""Hooks keep their order and flags."""

import pytest
import torch
from torch.utils.hooks import RemovableHandle


def test_later_hook_overwrites_no_loaded_hook(again, net, monkeypatch):
    net[0].register_forward_hook(lambda module, args, output: output * 2)
    net[2].weight.register_hook(lambda grad: grad * 2)
    loaded = again(net)
    monkeypatch.setattr(RemovableHandle, "next_id", RemovableHandle.next_id)
    known = set(loaded[0]._forward_hooks) | set(loaded[2].weight._backward_hooks)
    later = loaded[0].register_forward_hook(lambda module, args, output: output + 1)
    assert later.id not in known
    assert len(loaded[0]._forward_hooks) == 2


def test_later_hook_overwrites_no_loaded_hook_in_new_process(package, net, clean_python, tmp_path):
    for _ in range(5):
        net[0].register_forward_hook(print).remove()  # so that ids start higher
    net[0].register_forward_hook(torch.nn.functional.relu6)  # stays in the state, by reference
    net[0].register_forward_pre_hook(print, with_kwargs=True)
    path = tmp_path / "net.modpack"
    path.write_bytes(package(net).data)
    printed = clean_python(
        """
        import modpack
        model = modpack.load(path)
        before = set(model[0]._forward_hooks) | set(model[0]._forward_pre_hooks)
        handles = [model[0].register_forward_hook(len) for _ in range(20)]
        print(before.isdisjoint(handle.id for handle in handles))
        print(len(model[0]._forward_hooks), model[0]._forward_hooks_with_kwargs)
        """,
        path=path,
    ).stdout
    assert printed.split("\n")[:2] == ["True", "21 OrderedDict()"]


def test_prepended_hooks_stay_in_front(again, net):
    ran = []
    for name, prepend in (("b", False), ("c", False), ("a", True)):
        net[0].register_forward_hook(lambda *_, name=name: ran.append(name), prepend=prepend)
        net[0].register_full_backward_hook(lambda *_, name=name: ran.append(name), prepend=prepend)
    loaded = again(net)
    hooks = list(loaded[0]._forward_hooks.values())
    assert [hook.__defaults__ or hook.__kwdefaults__ for hook in hooks] == [
        {"name": "a"},
        {"name": "b"},
        {"name": "c"},
    ]
    calls = hooks[0].__closure__[0].cell_contents
    loaded(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert calls == ["a", "b", "c"] * 2
    assert ran == []


def test_public_and_private_state_dict_hooks_keep_their_common_order(again, net):
    def add(name):
        return lambda module, state, prefix, metadata: state.update({f"{prefix}{name}": 1})

    net._register_state_dict_hook(add("one"))
    net.register_state_dict_post_hook(add("two"))
    net._register_state_dict_hook(add("three"))
    names = [key for key in again(net).state_dict() if "." not in key]
    assert names == [key for key in net.state_dict() if "." not in key] == ["one", "two", "three"]


def test_hook_flags_load_without_stale_ones(again, net):
    def with_all(module, args, kwargs, output):
        return output * 2

    net[0].register_forward_hook(lambda *given: None, with_kwargs=True, always_call=True).remove()
    net[0].register_forward_hook(with_all, with_kwargs=True, always_call=True)
    net[0].register_forward_hook(lambda module, args, output: None)
    loaded = again(net)[0]
    (first, second) = loaded._forward_hooks
    assert dict(loaded._forward_hooks_with_kwargs) == {first: True}
    assert dict(loaded._forward_hooks_always_called) == {first: True}
    assert second not in loaded._forward_hooks_with_kwargs


def test_flags_of_excluded_hooks_are_not_saved(package, net):
    net[0].register_forward_hook(
        lambda module, args, kwargs, output: None, with_kwargs=True, always_call=True
    )
    for loaded in (package(net).model(hooks=False), package(net, hooks=False).model()):
        assert not loaded[0]._forward_hooks_with_kwargs
        assert not loaded[0]._forward_hooks_always_called


def test_always_called_hook_runs_when_forward_raises(again, net):
    calls = []
    net[0].register_forward_hook(lambda *_: calls.append("hook"), always_call=True)
    loaded = again(net)
    (hook,) = loaded[0]._forward_hooks.values()
    with pytest.raises(RuntimeError):
        loaded[0](torch.ones(1, 99))
    assert hook.__closure__[0].cell_contents == ["hook"]


def test_hook_order_across_kinds_is_kept(again, net):
    """Tensor hooks run before post-accumulate hooks, multi-grad hooks at their position."""
    ran = []
    weight, other = net[0].weight, net[2].weight
    weight.register_post_accumulate_grad_hook(lambda p: ran.append("accumulated"))
    weight.register_hook(lambda g: ran.append("first"))
    torch.autograd.graph.register_multi_grad_hook([weight], lambda gs: ran.append("group"))
    weight.register_hook(lambda g: ran.append("second"))
    torch.autograd.graph.register_multi_grad_hook(
        [other, weight], lambda g: ran.append("any"), mode="any"
    )
    loaded = again(net)
    loaded(torch.ones(1, 2)).sum().backward()
    calls = next(iter(loaded[0].weight._backward_hooks.values())).__closure__[0].cell_contents
    net(torch.ones(1, 2)).sum().backward()
    assert calls == ran == ["any", "first", "group", "second", "accumulated"]


def test_multi_grad_hook_keeps_order_of_tensors(again, net):
    seen = []
    tensors = [net[2].bias, net[0].weight, net[2].bias]
    torch.autograd.graph.register_multi_grad_hook(tensors, lambda gs: seen.extend(gs))
    net.seen = seen
    loaded = again(net)
    loaded(torch.ones(1, 2)).sum().backward()
    assert [tuple(grad.shape) for grad in loaded.seen] == [(2,), (3, 2), (2,)]
    assert torch.equal(loaded.seen[1], loaded[0].weight.grad)


def test_multi_grad_hook_saves_its_tensors(package):
    apart = torch.nn.Parameter(torch.ones(1))
    model = torch.nn.Linear(1, 1)
    torch.autograd.graph.register_multi_grad_hook(
        [apart, model.weight], lambda grads: model.__dict__.update(got=list(grads))
    )
    loaded = package(model).model()
    loaded(torch.ones(1, 1)).sum().backward()
    assert [None if grad is None else grad.item() for grad in loaded.got] == [None, 1.0]


def test_legacy_and_full_backward_hooks_keep_their_kind(again, net):
    net[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    net[2].register_backward_hook(lambda module, inputs, outputs: None)
    loaded = again(net)
    assert loaded[1]._is_full_backward_hook is True
    assert loaded[2]._is_full_backward_hook is False


def test_module_without_hook_accepts_other_backward_kind(package, net):
    net[1].register_full_backward_hook(lambda module, inputs, outputs: None)
    saved = package(net)
    for loaded in (saved.model(hooks=False), saved.model(hooks=[]), package(net, hooks=[]).model()):
        assert loaded[1]._is_full_backward_hook is None
        loaded[1].register_backward_hook(lambda module, inputs, outputs: None)


def test_load_state_dict_hook_gets_its_own_module(again, net):
    def note(module, *rest):
        module.noted = True

    net[0].register_load_state_dict_pre_hook(note)
    net[2]._register_load_state_dict_pre_hook(lambda state, *rest: state.update(seen=1))
    loaded = again(net)
    loaded.load_state_dict(loaded.state_dict(), strict=False)
    assert loaded[0].noted
    assert not hasattr(net[0], "noted")
