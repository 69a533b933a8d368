"""Native hooks stay in their modules' state; parametrized modules load."""

import warnings

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.spectral_norm import spectral_norm
from torch.nn.utils.weight_norm import remove_weight_norm, weight_norm


def layer():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3)


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return weight_norm(layer())


def pruned():
    return prune.l1_unstructured(layer(), "weight", amount=4)


def pruned_twice():
    return prune.random_unstructured(pruned(), "weight", amount=2)


NATIVE = {
    "weight_norm": old_weight_norm,
    "spectral_norm": lambda: spectral_norm(layer()),
    "prune": pruned,
    "prune, twice": pruned_twice,
}
X = torch.arange(6.0).reshape(2, 3)


def hooks_of(module):
    return {
        name: len(table)
        for name, table in vars(module).items()
        if "hooks" in name and isinstance(table, dict)
    }


def outputs(module):
    return [module(X) for _ in range(3)]  # spectral_norm iterates at each call


@pytest.mark.parametrize("name", NATIVE)
def test_native_hooks_are_neither_lost_nor_doubled(package, again, name):
    module = NATIVE[name]()
    saved = package(module)
    loaded = saved.model()
    assert hooks_of(loaded) == hooks_of(module)
    assert hooks_of(again(again(loaded))) == hooks_of(module)
    states = {status.status for status in saved.report}
    assert (states, saved.specs) == ({"native"}, ())
    assert list(loaded.state_dict()) == list(module.state_dict())
    for one, other in zip(outputs(loaded), outputs(module), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", NATIVE)
def test_native_hooks_keep_order_among_user_hooks(package, name):
    module = NATIVE[name]()
    module.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    module.register_forward_hook(lambda module, args, output: output + 1)
    saved = package(module)
    loaded = saved.model()
    assert hooks_of(loaded) == hooks_of(module)
    assert torch.equal(loaded(X), module(X))
    assert sorted(saved.names) == ["forward/0", "forward_pre/0"]
    without = saved.model(hooks=False)
    assert hooks_of(without) == hooks_of(NATIVE[name]())


def test_native_hooks_keep_running_after_user_hooks(again):
    """A user hook before spectral_norm's changes the weight, and stays before it."""

    def change(module, args):
        with torch.no_grad():
            module.weight_orig.add_(1)

    module = spectral_norm(layer())
    module.register_forward_pre_hook(change, prepend=True)
    loaded = again(module)
    for one, other in zip(outputs(loaded), outputs(module), strict=True):
        assert torch.equal(one, other)


def test_torch_utilities_can_be_removed_after_loading(again):
    loaded = again(old_weight_norm())
    remove_weight_norm(loaded)
    assert not loaded._forward_pre_hooks
    loaded = again(pruned())
    prune.remove(loaded, "weight")
    assert not loaded._forward_pre_hooks and "weight" in dict(loaded.named_parameters())


def test_lazy_modules_initialize_after_loading(package, again):
    lazy = torch.nn.LazyLinear(2)
    lazy.register_forward_hook(lambda module, args, output: output * 0 + 7)
    saved = package(lazy)
    for loaded in (saved.model(), again(saved.model())):
        assert isinstance(loaded, torch.nn.LazyLinear)
        assert torch.equal(loaded(X), torch.full((2, 2), 7.0))
        assert type(loaded) is torch.nn.Linear
        assert not loaded._forward_pre_hooks and not loaded._load_state_dict_pre_hooks
        assert len(loaded._forward_hooks) == 1
    filled = saved.model()
    filled.load_state_dict(torch.nn.Linear(3, 2).state_dict())
    assert filled(X).shape == (2, 2)


class Doubled(torch.nn.Module):
    """A custom parametrization."""

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return x * self.factor

    def right_inverse(self, x):
        return x / self.factor


class Shifted(torch.nn.Module):
    """Another custom parametrization, which does not commute with the first."""

    def forward(self, x):
        return x + 1


def several():
    module = layer()
    parametrize.register_parametrization(module, "weight", Doubled())
    parametrize.register_parametrization(module, "weight", Shifted())
    parametrize.register_parametrization(module, "bias", Shifted())
    return module


PARAMETRIZED = {
    "weight_norm": lambda: parametrizations.weight_norm(layer()),
    "orthogonal": lambda: parametrizations.orthogonal(layer()),
    "spectral_norm": lambda: parametrizations.spectral_norm(layer()),
    "several": several,
}


@pytest.mark.parametrize("name", PARAMETRIZED)
def test_parametrized_modules_load(package, again, same, name):
    module = PARAMETRIZED[name]()
    saved = package(module)
    for loaded in (saved.model(), again(saved.model())):
        assert type(loaded).__name__ == "ParametrizedLinear"
        assert isinstance(loaded, torch.nn.Linear)
        assert torch.equal(loaded.eval()(X), module.eval()(X))
        assert list(loaded.state_dict()) == list(module.state_dict())
        assert hooks_of(loaded) == hooks_of(module)
        parametrize.remove_parametrizations(loaded, "weight")
        assert "weight" in dict(loaded.named_parameters())


def test_parametrizations_have_specs(package):
    saved = package(torch.nn.Sequential(several()))
    described = [spec for spec in saved.specs if spec.kind == "parametrization"]
    assert [(spec.name, spec.callable.name.rpartition(".")[2]) for spec in described] == [
        ("0.weight/parametrization/0", "Doubled"),
        ("0.weight/parametrization/1", "Shifted"),
        ("0.bias/parametrization/0", "Shifted"),
    ]
    loaded = saved.model(hooks=False)
    assert parametrize.is_parametrized(
        loaded[0]
    )  # part of the model, not a hook that can be excluded


def test_shared_parametrization_stays_shared(again):
    shared = Doubled()
    model = torch.nn.Sequential(layer(), layer())
    for each in model:
        parametrize.register_parametrization(each, "weight", shared)
    loaded = again(model)
    first, second = (each.parametrizations.weight[0] for each in loaded)
    assert first is second
    assert torch.equal(loaded(X), model(X))


def test_parametrized_modules_keep_their_hooks(again, same):
    module = parametrizations.weight_norm(layer())
    module.register_forward_hook(lambda module, args, output: output * 2)
    module.parametrizations.weight.original0.register_hook(lambda grad: grad * 3)
    loaded = again(module)
    for each in (module, loaded):
        each(X).sum().backward()
    name = "parametrizations.weight.original0"
    gradients = [dict(each.named_parameters())[name].grad for each in (module, loaded)]
    assert torch.equal(*gradients)
    assert torch.equal(module(X), loaded(X))


class Stateful(torch.nn.Linear):
    """A class with its own ``__getstate__``."""

    def __getstate__(self):
        return {**self.__dict__, "saved": True}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.restored = True


def test_parametrized_custom_class_uses_its_own_getstate(again):
    module = Stateful(3, 3)
    parametrize.register_parametrization(module, "weight", Shifted())
    loaded = again(module)
    assert loaded.saved and loaded.restored
    assert torch.equal(loaded(X), module(X))
