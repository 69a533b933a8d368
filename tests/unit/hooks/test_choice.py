"""Selection of hooks to save and to register."""

import pytest
import torch
from torch.nn.modules import module as modules

from modpack.hooks.choice import selector

X = torch.ones(1, 2)


@pytest.fixture
def hooked(net):
    for factor in (2, 3):
        net[0].register_forward_hook(lambda m, args, output, factor=factor: output * factor)
    net[2].weight.register_hook(lambda grad: grad * 5)
    return net


ALL = ["0/forward/0", "0/forward/1", "2.weight/tensor/0"]


def counts(model):
    return len(model[0]._forward_hooks), len(model[2].weight._backward_hooks or ())


CHOICES = [
    (True, (2, 1)),
    (False, (0, 0)),
    ([], (0, 0)),
    ("0/forward/1", (1, 0)),
    (["0/forward/1", "2.weight/tensor/0"], (1, 1)),
    (lambda spec: spec.kind == "tensor", (0, 1)),
    (lambda spec: spec.target == ("0",) and spec.position == 0, (1, 0)),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_load_registers_chosen_hooks_only(package, hooked, choice, expected):
    saved = package(hooked)
    loaded = saved.model(hooks=choice)
    assert counts(loaded) == expected
    assert len(saved.importer.hook_handles) == len(saved.importer.hooks) == sum(expected)
    assert saved.names == ALL


@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_save_captures_chosen_hooks_and_reports_others(package, hooked, choice, expected):
    saved = package(hooked, hooks=choice)
    assert counts(saved.model()) == expected
    assert len(saved.specs) == sum(expected)
    statuses = {status.name: status.status for status in saved.report}
    assert set(statuses) == set(ALL)
    assert {name for name, status in statuses.items() if status == "captured"} == set(saved.names)
    assert set(statuses.values()) <= {"captured", "left out"}


def test_choice_does_not_change_live_model(package, hooked):
    package(hooked, hooks=False)
    assert counts(hooked) == (2, 1)


def test_chosen_hook_runs_after_loading(package, hooked, net):
    plain = package(hooked).model(hooks=False)[0](X)
    loaded = package(hooked).model(hooks="0/forward/1")
    assert torch.equal(loaded[0](X), plain * 3)


def test_unknown_hook_name_is_rejected_with_known_names(package, hooked):
    saved = package(hooked)
    for ask in (lambda: saved.model(hooks=["0/forward/9"]), lambda: package(hooked, hooks="nope")):
        with pytest.raises(ValueError, match=r"unknown hook names '(0/forward/9|nope)'") as caught:
            ask()
        assert all(name in str(caught.value) for name in ALL)


def test_unknown_hook_name_without_hooks_lists_none(package, net):
    with pytest.raises(ValueError, match="known names: none"):
        package(net).model(hooks=["0/forward/0"])


def test_choice_of_other_type_is_rejected(package, hooked):
    with pytest.raises(TypeError, match="True, False, hook names, or a predicate, not int"):
        package(hooked, hooks=7)
    with pytest.raises(TypeError, match="not float"):
        package(hooked).model(hooks=0.5)


def test_single_name_selects_hook():
    assert [selector("a")(spec) for spec in (_named("a"), _named("b"))] == [True, False]


def _named(name):
    from modpack.core.hookspec import CallableSpec, HookSpec

    return HookSpec(name, "forward", (), 0, CallableSpec("source", "f"))


def test_unchosen_importable_hooks_are_not_in_state(package, net):
    net[0].register_forward_hook(torch.nn.functional.relu6)
    assert not package(net, hooks=False).model()[0]._forward_hooks
    assert not package(net).model(hooks=False)[0]._forward_hooks


@pytest.fixture
def profiler():
    calls = []

    def profile(module, args, output):
        calls.append(type(module).__name__)

    handle = modules.register_module_forward_hook(profile)
    yield handle
    handle.remove()


def test_global_hooks_are_captured_on_request_only(package, net, profiler):
    saved = package(net)
    assert saved.specs == ()
    (status,) = saved.report
    assert (status.name, status.status) == ("global.forward/0", "left out")
    assert "global_hooks=True" in status.why


def test_global_hooks_are_registered_on_request_only(package, net, profiler):
    saved = package(net, global_hooks=True)
    assert saved.names == ["global.forward/0"]
    profiler.remove()
    saved.model()
    saved.model(hooks=True)
    saved.model(hooks=["global.forward/0"])
    assert not modules._global_forward_hooks
    assert not saved.importer.hook_handles
    model = saved.model(global_hooks=True)
    try:
        model(X)
        (hook,) = modules._global_forward_hooks.values()
        calls = hook.__closure__[0].cell_contents
        assert calls == ["Linear", "Tanh", "Linear", "Sequential"]
    finally:
        saved.importer.hook_handles["global.forward/0"].remove()
    assert not modules._global_forward_hooks


def test_global_and_model_hooks_share_state_after_loading(package, net):
    net.calls = []
    net[0].register_forward_hook(lambda *_: net.calls.append("own"))
    handle = modules.register_module_forward_hook(
        lambda module, *_: net.calls.append("process") if module is net[0] else None
    )
    saved = package(net, global_hooks=True)
    handle.remove()
    loaded = saved.model(global_hooks=True)
    loaded(X)
    saved.importer.hook_handles["global.forward/0"].remove()
    assert loaded.calls == ["process", "own"]
    assert net.calls == []


def test_global_hook_keeps_flags(package, net):
    handle = modules.register_module_forward_hook(
        lambda module, args, kwargs, output: None, with_kwargs=True, always_call=True
    )
    saved = package(net, global_hooks=True)
    handle.remove()
    modules._global_forward_hooks_with_kwargs.clear()  # torch does not remove it
    saved.model(global_hooks=True)(X)
    assert saved.specs[0].flags == {"with_kwargs": True, "always_call": True}
    assert len(modules._global_forward_hooks_with_kwargs) == 1
    saved.importer.hook_handles["global.forward/0"].remove()
    modules._global_forward_hooks_with_kwargs.clear()
