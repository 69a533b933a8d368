"""Hooks share objects with the model and each other after loading."""

import pytest
import torch


class Tied(torch.nn.Module):
    """Two paths to one layer, and one weight under two names."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(2, 2)
        self.decoder = self.encoder
        self.head = torch.nn.Linear(2, 2)
        self.head.weight = self.encoder.weight
        self.register_buffer("scale", torch.ones(2, requires_grad=True))
        self.free = torch.ones(2, requires_grad=True)

    def forward(self, x):
        return self.head(self.decoder(self.encoder(x))) * self.scale * self.free


def test_hooks_on_shared_modules_run_as_often_as_before(package):
    model = Tied()
    model.calls = []
    model.encoder.register_forward_hook(lambda *_: model.calls.append("module"))
    model.encoder.weight.register_hook(lambda grad: model.calls.append("parameter"))
    saved = package(model)
    loaded = saved.model()
    for each in (model, loaded):
        each(torch.ones(1, 2)).sum().backward()
    assert loaded.calls == model.calls == ["module", "module", "parameter"]
    assert [(spec.target, spec.aliases) for spec in saved.specs] == [
        (("encoder",), ("decoder",)),
        (("encoder.weight",), ("decoder.weight", "head.weight")),
    ]


def test_deeply_shared_modules_are_named_quickly(package):
    inner = torch.nn.Linear(1, 1)
    hooked = inner
    for _ in range(40):  # 2 ** 40 paths
        inner = torch.nn.ModuleList([inner, inner])
    hooked.register_forward_hook(lambda *_: None)
    (spec,) = package(inner).specs
    assert spec.target == (".".join(["0"] * 40),)
    assert 0 < len(spec.aliases) < 100


def test_hooks_on_buffers_and_attributes_load(package):
    model = Tied()
    model.scale.register_hook(lambda grad: grad * 2)
    model.free.register_hook(lambda grad: grad * 3)
    model.free.register_post_accumulate_grad_hook(lambda tensor: setattr(tensor, "grad", -tensor))
    saved = package(model)
    loaded = saved.model()
    for each in (model, loaded):
        each(torch.ones(1, 2)).sum().backward()
    assert torch.equal(loaded.scale.grad, model.scale.grad)
    assert torch.equal(loaded.free.grad, model.free.grad)
    assert sorted(saved.names) == [
        "free/post_accumulate_grad/0",
        "free/tensor/0",
        "scale/tensor/0",
    ]


def test_frozen_parameters_keep_their_hooks_and_stay_frozen(again, net):
    net[0].weight.register_hook(lambda grad: grad * 2)
    net[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", -p.grad))
    torch.autograd.graph.register_multi_grad_hook([net[0].weight], lambda grads: None)
    net[0].weight.requires_grad_(False)
    loaded = again(net)
    assert not loaded[0].weight.requires_grad
    for each in (net, loaded):
        each[0].weight.requires_grad_(True)
        each(torch.ones(1, 2)).sum().backward()
    assert torch.equal(loaded[0].weight.grad, net[0].weight.grad)
    assert len(loaded[0].weight._backward_hooks) == 2


def test_ten_modules_share_one_collector(package):
    seen = {}

    def collect(name):
        return lambda module, args, output: seen.update({name: output.detach()})

    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(10)))
    for index, layer in enumerate(model):
        layer.register_forward_hook(collect(f"layer{index}"))
    saved = package(model)
    loaded = saved.model()
    loaded(torch.ones(1, 2))
    collectors = {
        id(saved.importer.hooks[name].__closure__[1].cell_contents) for name in saved.names
    }
    assert len(collectors) == 1
    collected = saved.importer.hooks["0/forward/0"].__closure__[1].cell_contents
    assert list(collected) == [f"layer{index}" for index in range(10)]
    assert seen == {}


def test_hooks_and_model_share_objects_after_loading(again, net):
    net.collected = []
    net[0].register_forward_hook(lambda module, args, output: net.collected.append(output))
    net[2].register_forward_hook(lambda module, args, output: net.collected.append(output))
    loaded = again(net)
    loaded(torch.ones(1, 2))
    assert len(loaded.collected) == 2
    assert net.collected == []


def test_bound_append_hook_fills_loaded_list(package, net):
    net.gradients = []
    net[0].weight.register_hook(net.gradients.append)
    saved = package(net)
    loaded = saved.model()
    loaded(torch.ones(1, 2)).sum().backward()
    assert len(loaded.gradients) == 1
    assert net.gradients == []
    called = saved.specs[0].callable
    assert (called.by, called.name, called.state) == (
        "object",
        "builtins.list.append (bound)",
        ("self",),
    )


@pytest.mark.parametrize("hook", [torch.neg, torch.Tensor.neg, torch.nn.functional.relu])
def test_torch_functions_load_as_hooks(again, net, hook):
    net[0].weight.register_hook(hook)
    loaded = again(net)
    for each in (net, loaded):
        each(torch.ones(1, 2)).sum().backward()
    assert torch.equal(loaded[0].weight.grad, net[0].weight.grad)


def test_closure_over_parameter_refers_to_loaded_parameter(again, net, same):
    weight = net[2].weight
    net[0].register_forward_hook(lambda module, args, output: output * weight.sum())
    loaded = again(net)
    (hook,) = loaded[0]._forward_hooks.values()
    assert hook.__closure__[0].cell_contents is loaded[2].weight
    assert same(net, loaded)
    with torch.no_grad():
        loaded[2].weight.mul_(3)
    assert not same(net, loaded)


def test_tensor_hook_closure_refers_to_loaded_parameter(again, net):
    weight = net[0].weight
    weight.register_hook(lambda grad: grad + weight.detach())
    loaded = again(net)
    (hook,) = loaded[0].weight._backward_hooks.values()
    assert hook.__closure__[0].cell_contents is loaded[0].weight


@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {})]
)
def test_optimizer_loads_with_model_parameters_and_state(package, net, trained, kind, options):
    optimizer = kind(net.parameters(), lr=0.1, **options)
    rate = {"factor": 0.5}

    def scale(opt, args, kwargs):
        for parameter in opt.param_groups[0]["params"]:
            parameter.grad.mul_(rate["factor"])

    optimizer.register_step_pre_hook(scale)
    trained(net, optimizer)
    saved = package(net, optimizer=optimizer)
    loaded, its_optimizer = saved.model(with_optimizer=True)
    assert its_optimizer.param_groups[0]["params"][0] is loaded[0].weight
    for one, other in zip(trained(net, optimizer), trained(loaded, its_optimizer), strict=True):
        assert torch.equal(one, other)
    assert saved.names == ["optimizer/optimizer.step_pre/0"]


def test_bound_method_hooks_refer_to_loaded_objects(again):
    model = _Recorder(torch.nn.Linear(2, 2))
    model.layer.register_forward_hook(model.record)
    model.layer.register_full_backward_hook(model.record_gradient)
    loaded = again(model)
    loaded(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert (len(loaded.outputs), len(loaded.gradients)) == (1, 1)
    assert (len(model.outputs), len(model.gradients)) == (0, 0)


class _Recorder(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.outputs = []
        self.gradients = []

    def forward(self, x):
        return self.layer(x)

    def record(self, module, args, output):
        self.outputs.append(output)

    def record_gradient(self, module, grad_input, grad_output):
        self.gradients.append(grad_output)


@pytest.mark.parametrize("assign", [True, False])
def test_load_state_dict_after_loading_treats_hooks_as_torch_does(again, net, assign):
    """assign=True replaces the parameters, and their hooks with them; without it they stay."""
    net[0].weight.register_hook(lambda grad: grad * 2)
    loaded = again(net)
    loaded.load_state_dict(net.state_dict(), assign=assign)
    assert bool(loaded[0].weight._backward_hooks) is not assign
