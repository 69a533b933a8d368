"""Hooks without a package: captured, restored on another model, and copied."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

import modpack
from modpack import hooks

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Collector:
    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        self.seen.append(output.sum().item())

    def note(self, grad: torch.Tensor) -> None:
        self.seen.append(grad.sum().item())


class NoDeepcopy:
    def __deepcopy__(self, memo: dict) -> None:
        raise TypeError("not this way")

    def __call__(self, module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
        return output * 2


def add(module: nn.Module, args: tuple, output: torch.Tensor, amount: float = 1.0) -> torch.Tensor:
    return output + amount


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def hooked() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model with hooks of many kinds; its collector and its handle are attributes."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.collector = Collector()
    weight, collector = model[2].weight, model.collector
    offset = torch.full((3,), 0.5)
    model[0].register_forward_hook(lambda module, args, output: output + weight.sum())
    model.handle = model[0].register_forward_hook(collector)
    model[0].register_forward_hook(functools.partial(add, amount=offset), prepend=True)
    model[2].register_full_backward_hook(lambda m, gi, go: collector.seen.append("full"))
    model[0].weight.register_hook(lambda grad: grad * 2)
    model[0].bias.register_hook(collector.note)
    model[2].bias.register_post_accumulate_grad_hook(lambda p: collector.seen.append("post"))
    tensors = [model[2].weight, model[0].weight]
    torch.autograd.graph.register_multi_grad_hook(tensors, lambda gs: collector.seen.append("all"))
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: collector.seen.append(opt))
    hooks.attach(model, hooks.OutputGrad("1", lambda grad: grad * weight.mean()))
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    optimizer.zero_grad()
    output = model(X)
    output.pow(2).sum().backward()
    optimizer.step()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    return [output.detach(), *grads, *(p.detach().clone() for p in model.parameters())]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.fixture
def lab(project):
    """A module with a model and hooks."""
    project(
        {
            "lab.py": """
            import torch
            from torch import nn
            def net():
                torch.manual_seed(0)
                return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
            class Scale:
                def __init__(self, weight): self.weight, self.by = weight, torch.tensor(3.)
                def __call__(self, module, args, output):
                    return output * self.weight.sum() * self.by
            def hook(model):
                model[0].register_forward_hook(Scale(model[1].weight))
                offset = torch.arange(2.)
                model[1].register_forward_hook(lambda module, args, output: output + offset)
                model[1].weight.register_hook(lambda grad: grad * offset[1] * 5)
            def run(model):
                model(torch.ones(1, 3)).sum().backward()
                return [p.grad.tolist() for p in model.parameters()]
            """
        }
    )
    import lab

    return lab


def test_restored_hooks_behave_same_on_fresh_model():
    model, optimizer = hooked()
    captured = hooks.capture(model, optimizer)
    fresh = net()
    fresh.collector = Collector()
    fresh_optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    handles = hooks.restore(fresh, captured, fresh_optimizer)
    assert list(handles) == [spec.name for spec in captured.specs]
    assert same(step(fresh, fresh_optimizer), step(model, optimizer))
    ours, theirs = model.collector.seen, fresh.collector.seen
    assert ours.pop() is optimizer and theirs.pop() is fresh_optimizer
    assert ours == theirs and len(ours) == 5


def test_restored_hooks_refer_to_their_model():
    model, _ = hooked()
    captured = hooks.capture(model)
    other = net(seed=1)
    other.collector = Collector()
    hooks.restore(other, captured)
    closure = [*other[0]._forward_hooks.values()][1].__closure__
    assert closure[0].cell_contents is other[2].weight
    assert [*other[0]._forward_hooks.values()][2] is other.collector
    output = other(X)
    assert model.collector.seen == []
    with torch.no_grad():
        other[2].weight.zero_()
    assert not torch.equal(other[0](X), other[0](X) + output.sum())


def test_restored_parameter_view_refers_to_new_model():
    model = net()
    row = model[0].weight.detach()[1]
    model[0].register_forward_hook(lambda module, args, output: output + row)
    other = net(seed=1)
    hooks.restore(other, hooks.capture(model))
    with torch.no_grad():
        other[0].weight[1] = 7
    expected = nn.functional.linear(X, other[0].weight, other[0].bias) + 7
    assert torch.equal(other[0](X), expected)


def test_capture_contains_tensors_of_hooks():
    table = torch.arange(6.0).reshape(3, 2).t()
    model = net()
    model[2].register_forward_hook(lambda module, args, output: output + table[0, :2])
    model[2].register_forward_hook(lambda module, args, output: output * table[1, :2])
    captured = hooks.capture(model)
    assert sum(map(len, captured.storages.values())) == 6 * 4
    table.zero_()
    other = net()
    hooks.restore(other, captured)
    assert torch.equal(other(X), (net()(X) + torch.tensor([0.0, 2.0])) * torch.tensor([1.0, 3.0]))


def test_capture_does_not_change_model():
    model, optimizer = hooked()
    before = [dict(m._forward_hooks) for m in model.modules()], dict(model.__dict__)
    hooks.capture(model, optimizer)
    assert ([dict(m._forward_hooks) for m in model.modules()], dict(model.__dict__)) == before
    twin, twin_optimizer = hooked()
    assert same(step(model, optimizer), step(twin, twin_optimizer))


def test_capture_is_frozen_and_shows_hooks():
    model, _ = hooked()
    captured = hooks.capture(model)
    assert captured == hooks.capture(model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        captured.specs = ()
    assert "0/forward/1: " in str(captured)
    assert "lambda module, args, output: output + weight.sum()" in str(captured)
    assert "hooks=b" not in repr(captured)
    assert str(hooks.capture(net())) == "no hooks"


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_capture_is_restored_in_another_process(way, tmp_path, lab, clean_python):
    model = lab.net()
    lab.hook(model)
    captured = hooks.capture(model)
    file = tmp_path / "hooks"
    file.write_bytes(pickle.dumps(captured)) if way == "pickle" else torch.save(captured, file)
    printed = clean_python(
        """
        import json, pickle, sys, torch
        sys.path.insert(0, str(root))
        import lab
        from modpack import hooks
        captured = (pickle.loads(file.read_bytes()) if way == "pickle"
                    else torch.load(file, weights_only=False))
        model = lab.net()
        hooks.restore(model, captured)
        print(json.dumps(lab.run(model)))
        """,
        way=way,
        root=Path(lab.__file__).parent,
        file=file,
    ).stdout
    assert json.loads(printed) == lab.run(model)


def test_restore_replaces_hooks_of_same_kinds():
    model, optimizer = hooked()
    captured = hooks.capture(model, optimizer)
    twin, twin_optimizer = hooked()
    handles = hooks.restore(model, captured, optimizer)
    hooks.restore(model, captured, optimizer)
    assert same(step(model, optimizer), step(twin, twin_optimizer))
    assert len(model.collector.seen) == len(twin.collector.seen)
    handles["0/forward/0"].remove()  # removing a dead handle has no effect
    assert len(model[0]._forward_hooks) == 3


def test_capture_and_restore_select_hooks():
    model, _ = hooked()
    captured = hooks.capture(model, hooks=lambda spec: spec.kind in ("forward", "tensor"))
    assert {spec.kind for spec in captured.specs} == {"forward", "tensor"}
    other = net()
    other.collector = Collector()
    handles = hooks.restore(other, captured, hooks=["0.weight/tensor/0"])
    assert list(handles) == ["0.weight/tensor/0"]
    assert not other[0]._forward_hooks
    with pytest.raises(ValueError, match=r"unknown hook names 'nothing'"):
        hooks.restore(other, captured, hooks=["nothing"])


def test_capture_includes_global_hooks_on_request_only(capsys):
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: print("global")
    )
    try:
        without, captured = hooks.capture(net()), hooks.capture(net(), global_hooks=True)
    finally:
        handle.remove()
    assert without.specs == () and captured.specs[0].kind == "global.forward"
    hooks.restore(net(), captured)
    nn.Identity()(X)
    assert capsys.readouterr().out == ""
    handles = hooks.restore(net(), captured, global_hooks=True)
    nn.Identity()(X)
    handles["global.forward/0"].remove()
    nn.Identity()(X)
    assert capsys.readouterr().out == "global\n"


def test_restore_reports_missing_part_of_model():
    model, optimizer = hooked()
    captured = hooks.capture(model)
    with pytest.raises(
        modpack.ModpackError, match=r"refer to model\.collector, but this model has no"
    ):
        hooks.restore(net(), captured)
    other = net()
    other.collector = Collector()
    with pytest.raises(modpack.ModpackError, match=r"Pass the optimizer argument"):
        hooks.restore(other, hooks.capture(model, optimizer))
    assert not any(module._forward_hooks for module in other.modules())


def test_restore_tolerates_missing_handle():
    model = net()
    model.handle = model[0].register_forward_hook(lambda module, args, output: output * 2)
    other = net()
    hooks.restore(other, hooks.capture(model))
    assert torch.equal(other(X), model(X))


def test_capture_reports_unsupported_hook():
    model, match = net(), re.match("a", "a")
    model[0].register_forward_hook(lambda module, args, output: match and None)
    with pytest.raises(
        modpack.PicklingError, match=r"hook '0/forward/0' -> match.*Save its groups"
    ):
        hooks.capture(model)


def test_capture_rejects_objects_that_need_an_exporter():
    model, traced = net(), torch.fx.symbolic_trace(nn.Linear(3, 3))
    model[0].register_forward_hook(lambda module, args, output: traced(output))
    with pytest.raises(modpack.PicklingError, match=r"hook '0/forward/0' -> traced.*an exporter"):
        hooks.capture(model)


def test_capture_contains_scripted_module_of_hook():
    model, scripted = net(), torch.jit.script(nn.Linear(3, 3))
    model[0].register_forward_hook(lambda module, args, output: scripted(output))
    other = net()
    hooks.restore(other, hooks.capture(model))
    assert torch.equal(other(X), model(X))


def test_capture_contains_hooks_of_module_in_hook():
    model, inner = net(), nn.Linear(3, 3)
    inner.register_forward_hook(lambda module, args, output: output * 3)
    model[0].register_forward_hook(lambda module, args, output: inner(output))
    other = net()
    hooks.restore(other, hooks.capture(model))
    assert torch.equal(other(X), model(X))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hooks.capture(3), "model must be a torch.nn.Module, not int"),
        (lambda: hooks.capture(net(), 3), "optimizer must be a torch.optim.Optimizer"),
        (lambda: hooks.restore(net(), b""), "captured must be a HookCapture, not bytes"),
    ],
)
def test_capture_and_restore_check_argument_types(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_restore_rejects_unknown_capture_version():
    captured = dataclasses.replace(hooks.capture(net()), version=99)
    with pytest.raises(modpack.ModpackError, match=r"version 99 are not .*\. Upgrade modpack"):
        hooks.restore(net(), captured)


def test_importing_modpack_hooks_imports_no_torch():
    code = "import sys, modpack.hooks as h; print('torch' in sys.modules, 'attach' in dir(h))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'"):
        modpack.hooks.nothing  # noqa: B018
    assert all(getattr(modpack.hooks, name) is not None for name in modpack.hooks.__all__)


def test_hooks_of_a_reloaded_model_are_captured_too(lab, tmp_path):
    model = lab.net()
    lab.hook(model)
    modpack.save(model, tmp_path / "net.modpack")
    loaded = modpack.load(tmp_path / "net.modpack")
    fresh = lab.net()
    fresh.load_state_dict(model.state_dict())
    hooks.restore(fresh, hooks.capture(loaded))
    assert lab.run(fresh) == lab.run(model)


def test_capture_contains_only_bytes_and_plain_values():
    """Auditors can inspect a capture, and it contains no part of the model."""
    model, optimizer = hooked()
    buffer = io.BytesIO()
    torch.save(hooks.capture(model, optimizer), buffer)
    assert b"Linear" not in buffer.getvalue() and b"SGD" not in buffer.getvalue()


class Pair(NamedTuple):
    function: Callable[[], list[int]]
    number: int


class Shared:
    """An object whose copies are the object itself."""

    def __deepcopy__(self, memo: dict) -> Shared:
        return self


class Counting(nn.Linear):
    """A module with functions that share closures with its hooks."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        count, state, seen = 0, {"n": 0}, []
        lock = threading.Lock()

        def hook(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
            nonlocal count
            with lock:
                count += 1
            state["n"] += 10
            seen.append(collector.seen)

        def counts() -> list[int]:
            return [count, state["n"], len(seen)]

        self.counts = counts
        self.holders = {
            "list": [lambda: state["n"]],
            "tuple": (counts,),
            "partial": partial(counts),
        }
        self.holders["named"] = Pair(counts, 1)
        self.shared = Shared()
        self.shared.counts = counts
        self.scaled = lambda x: self.weight.sum() * x
        self.apart = lambda: apart
        apart = [1]
        collector = Collector()
        self.note = collector.note
        self.register_forward_hook(hook)
        self.register_forward_hook(collector)
        self.register_forward_pre_hook(lambda module, args: self.scaled and None)

    def look(self) -> tuple[object, ...]:
        """Return the results of all its functions."""
        holders = self.holders
        from_holders = (holders["list"][0](), holders["tuple"][0](), holders["partial"]())
        assert holders["named"].function is holders["tuple"][0] is self.counts
        return (*self.counts(), *from_holders, len(self.note.__self__.seen))


def _doubled(self, inputs: tuple[torch.Tensor], output: torch.Tensor):
    return output * 2
