"""``reset_hook_state`` saves hooks without their collected state."""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import modpack

X = torch.linspace(-1, 1, 6).reshape(2, 3)
LAB = """
from collections import deque
from torch import nn

class Recorder:
    __slots__ = ("kept", "limits")
    def __init__(self): self.kept, self.limits = [], (0, 1)
    def __call__(self, module, args, output): self.kept.append(output)

class Wrapper:
    def __init__(self): self.maps, self.recent, self.scale = {}, deque(maxlen=3), 2.0
    def note(self, module, args, output):
        self.maps[module] = output
        self.recent.append(output)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sizes = [3, 2]
        self.layer = nn.Linear(*self.sizes)
        self.features = []
        self.layer.register_forward_hook(self.note)
    def forward(self, x): return self.layer(x) * len(self.sizes)
    def note(self, module, args, output): self.features.append(output)
"""


@pytest.fixture
def lab(project):
    project({"lab.py": LAB})
    import lab

    return lab


@pytest.fixture
def reload(tmp_path):
    """Save with reset_hook_state, load, and return the importer and the model."""

    def save_and_load(model: object, reset_hook_state: object = True, **given: object) -> tuple:
        path = tmp_path / "net.modpack"
        with modpack.PackageExporter(path) as exporter:
            exporter.extern("tests.**"), exporter.extern("test_*")
            exporter.intern("lab")
            exporter.save_model("net", "m.pkl", model, reset_hook_state=reset_hook_state, **given)
            report = {hook.name: hook.why for hook in exporter.hook_report()}
        importer = modpack.PackageImporter(path)
        importer.report = report
        return importer, importer.load_model("net", "m.pkl")

    return save_and_load


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def test_reset_hook_state_empties_saved_containers_only(reload):
    model = net()
    seen: list[torch.Tensor] = []
    by_name: dict[str, torch.Tensor] = {}
    recent: deque[torch.Tensor] = deque(maxlen=2)
    counts: Counter[str] = Counter()
    groups: defaultdict[str, list[object]] = defaultdict(list)
    ordered: OrderedDict[str, object] = OrderedDict()
    shapes: set[torch.Size] = set()

    def collect(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        for place in (seen, recent):
            place.append(output)
        by_name["out"] = ordered["out"] = output
        counts["calls"] += 1
        groups["calls"].append(output)
        shapes.add(output.shape)

    model[0].register_forward_hook(collect)
    model(X)
    importer, loaded = reload(model)
    state = importer.hook_state("0/forward/0")
    assert not any(state.values())
    assert {name: type(value) for name, value in state.items()} == {
        "by_name": dict,
        "counts": Counter,
        "groups": defaultdict,
        "ordered": OrderedDict,
        "recent": deque,
        "seen": list,
        "shapes": set,
    }
    assert state["recent"].maxlen == 2
    loaded(X)
    assert all(map(len, state.values())) and state["counts"]["calls"] == 1
    assert len(seen) == len(by_name) == len(groups["calls"]) == 1
    assert importer.report["0/forward/0"].endswith(
        "emptied: by_name, counts, groups, ordered, recent, seen, shapes"
    )


def test_collected_state_is_saved_by_default(reload):
    model, seen = net(), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    model(X)
    assert not seen[0].is_leaf
    importer, _ = reload(model, reset_hook_state=False)
    (kept,) = importer.hook_state("0/forward/0")["seen"]
    assert torch.equal(kept, seen[0]) and kept.is_leaf


def test_reset_hook_state_keeps_sharing_with_model(reload):
    model, seen = net(), []
    model.seen = seen
    for layer in model:
        layer.register_forward_hook(lambda module, args, output: seen.append(output))
        layer.weight.register_hook(lambda grad: seen.append(grad))
    model(X).sum().backward()
    importer, loaded = reload(model)
    states = [importer.hook_state(name)["seen"] for name in importer.hook_handles]
    assert len(states) == 4 and all(state is loaded.seen for state in states)
    assert loaded.seen == [] and len(seen) == 4


def test_reset_hook_state_empties_attributes_of_callables(lab, reload):
    model, recorder, wrapper = net(), lab.Recorder(), lab.Wrapper()
    model[0].register_forward_hook(recorder)
    model[0].register_forward_hook(wrapper.note)
    model(X)
    importer, loaded = reload(model)
    loaded_recorder = importer.hooks["0/forward/0"]
    assert loaded_recorder.kept == [] and loaded_recorder.limits == (0, 1)
    loaded_wrapper = importer.hook_state("0/forward/1")["self"]
    assert loaded_wrapper.maps == {} and loaded_wrapper.recent.maxlen == 3
    assert loaded_wrapper.scale == 2.0
    loaded(X)
    assert list(loaded_wrapper.maps) == [loaded[0]] and len(loaded_recorder.kept) == 1
    assert len(recorder.kept) == len(wrapper.maps) == 1


def test_reset_hook_state_empties_used_model_attributes_only(lab, reload):
    model = lab.Net()
    model(X)
    _, loaded = reload(model)
    assert loaded.features == [] and loaded.sizes == [3, 2]
    assert len(model.features) == 1
    assert torch.equal(loaded(X), model(X)) and len(loaded.features) == 1


def test_reset_hook_state_empties_arguments_and_defaults(lab, reload):
    model, place = net(), SimpleNamespace(seen=[])
    log: list[object] = []
    model[0].register_forward_hook(functools.partial(_append, log))
    model[0].register_forward_hook(lambda module, args, output, seen=[0]: seen.append(1))
    model[0].register_forward_hook(lambda module, args, output: place.seen.append(output))
    model[1].register_forward_hook(
        torch.no_grad()(lambda module, args, output: place.seen.append(output))
    )
    model(X)
    importer, _ = reload(model)
    assert importer.hook_state("0/forward/0")["args[0]"] == []
    assert importer.hooks["0/forward/1"].__defaults__ == ([],)
    assert importer.hook_state("0/forward/2")["place"].seen == []
    assert len(log) == 1 and len(place.seen) == 2


def _append(log: list[object], module: nn.Module, args: tuple, output: torch.Tensor) -> None:
    log.append(output)


@pytest.mark.parametrize(
    "choice",
    [
        ["0/forward/0"],
        "0/forward/0",
        {"0/forward/0"},
        lambda spec: spec.target == ("0",),
    ],
    ids=["names", "name", "set", "predicate"],
)
def test_reset_hook_state_accepts_names_and_predicates(choice, reload):
    model, first, second = net(), [], []
    model[0].register_forward_hook(lambda module, args, output: first.append(output))
    model[1].register_forward_hook(lambda module, args, output: second.append(output))
    model(X)
    importer, _ = reload(model, reset_hook_state=choice)
    assert importer.hook_state("0/forward/0")["first"] == []
    assert len(importer.hook_state("1/forward/0")["second"]) == 1


def test_reset_hook_state_covers_all_kinds_of_targets(reload):
    model, logs = net(), {name: ["old"] for name in ("tensor", "group", "optimizer")}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tensor, group, of_optimizer = logs.values()
    model[0].weight.register_hook(lambda grad: tensor.append(grad))
    weights = [model[0].weight, model[1].weight]
    torch.autograd.graph.register_multi_grad_hook(weights, lambda grads: group.append(grads))
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: of_optimizer.append(opt))
    capture = modpack.hooks.CaptureGrad("0")
    modpack.hooks.attach(model, capture)
    model(X).sum().backward()
    importer, loaded = reload(model, optimizer=optimizer)
    states = {name: importer.hook_state(name) for name in importer.hook_handles}
    containers = [value for state in states.values() for value in state.values()]
    assert len(containers) == 4 and not any(containers)
    assert list(capture.store) == ["0"]
    loaded(X).sum().backward()
    assert list(states["0/graph.capture_grad/0"]["store"]) == ["0"]


def test_reset_hook_state_covers_captured_global_hooks(reload):
    calls = ["old"]
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: calls.append(output)
    )
    try:
        importer, _ = reload(net(), global_hooks=True)
    finally:
        handle.remove()
    importer.load_model("net", "m.pkl", global_hooks=True)
    importer.hook_handles["global.forward/0"].remove()
    assert importer.hook_state("global.forward/0") == {"calls": []} and calls == ["old"]


def test_reset_hook_state_covers_hooks_behind_hooks(reload):
    model, inner, seen = net(), nn.Linear(3, 3), ["old"]
    inner.register_forward_hook(lambda module, args, output: seen.append(output))
    model[0].weight.register_hook(lambda grad: inner(grad))
    importer, _ = reload(model)
    (state,) = [s for s in map(importer.hook_state, importer.hooks) if "seen" in s]
    assert state["seen"] == []


def test_reset_hook_state_drops_unpicklable_contents(reload):
    model, seen = net(), [(number for number in range(3))]
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    with pytest.raises(modpack.PicklingError, match=r"hook '0/forward/0' -> seen\[0\]"):
        reload(model, reset_hook_state=False)
    importer, _ = reload(model)
    assert importer.hook_state("0/forward/0")["seen"] == []


def test_reset_hook_state_empties_notebook_globals(tmp_path, clean_python):
    printed = clean_python(
        """
        import modpack, torch
        features = {}
        limits = (0, 1)
        def collect(module, args, output): features["out"] = output
        model = torch.nn.Linear(2, 2)
        model.register_forward_hook(collect)
        model(torch.ones(1, 2))
        modpack.save(model, path, reset_hook_state=True)
        importer = modpack.PackageImporter(path)
        loaded = importer.load_model("__model__", "model.pkl")
        print(importer.hook_state("forward/0"), list(features))
        loaded(torch.ones(1, 2))
        print(list(importer.hook_state("forward/0")["features"]))
        """,
        path=tmp_path / "net.modpack",
    ).stdout
    assert printed == "{'features': {}} ['out']\n['out']\n"


def test_reset_hook_state_rejects_unknown_names_and_types(reload):
    with pytest.raises(ValueError, match=r"unknown hook names 'nothing'; known names: none"):
        reload(net(), reset_hook_state=["nothing"])
    with pytest.raises(TypeError):
        reload(net(), reset_hook_state=3)


def test_hook_state_of_unknown_name_raises(reload):
    model = net()
    model[0].register_forward_hook(lambda module, args, output: None)
    importer, _ = reload(model)
    with pytest.raises(
        modpack.ModpackError, match=r"no hook named 'x' is registered.*'0/forward/0'"
    ):
        importer.hook_state("x")
