"""Attached hooks are on the graph of every forward pass, also after loading."""

from __future__ import annotations

import copy
import gc
import json
import threading
import weakref

import pytest
import torch
from torch import nn

import modpack
from modpack.hooks import (
    AfterBackward,
    CaptureGrad,
    MultiGrad,
    NodeHook,
    NodePreHook,
    OutputGrad,
    SavedTensors,
    attach,
)

X = torch.linspace(-1, 1, 6).reshape(2, 3)

# Each builds a hooked model whose hooks are lambdas, and a log that they write to.
LAB = """
import torch
from torch import nn
from modpack.hooks import *

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))

def note(log, name, *grads):
    grads = [g for g in grads if g is not None]
    log.append((name, [[round(v, 6) for v in g.flatten().tolist()] for g in grads]))

def specs(log, scale):
    return {
        "output_grad": [OutputGrad("1", lambda g: note(log, "grad", g) or g * scale)],
        "node": [NodeHook("1", lambda gi, go: note(log, "node", *gi, *go) or (gi[0] * scale,))],
        "node_pre": [NodePreHook("1", lambda go: note(log, "pre", *go) or (go[0] * scale,))],
        "saved_tensors": [SavedTensors("1", lambda t: note(log, "pack", t) or t * scale,
                                       lambda t: note(log, "unpack", t) or t)],
        "after_backward": [AfterBackward(lambda: note(log, "after")),
                           OutputGrad("0", lambda g: note(log, "grad"))],
        "multi_grad_all": [MultiGrad(("2", "0"), lambda gs: note(log, "all", *gs))],
        "multi_grad_any": [MultiGrad(("2", "0"), lambda g: note(log, "any", g), "any")],
        "capture_outputs": [CaptureGrad(("2", "0"))],
        "capture_inputs": [CaptureGrad(("2", "0"), of="inputs")],
        "two_orders": [OutputGrad("1", lambda g: g * scale), OutputGrad("1", lambda g: g + 1)],
    }

def build(kind):
    model = net()
    model.log, model.handles = [], []
    for spec in specs(model.log, model[0].bias.detach().sum() + 2)[kind]:
        model.handles.append(attach(model, spec))
    if kind.startswith("capture"):
        model.log = spec.store
    return model

def measure(model, x):
    results = []
    for _ in range(2):
        model.zero_grad()
        x = x.detach().clone().requires_grad_()
        model(x).pow(2).sum().backward()
        grads = [x.grad, *(p.grad for p in model.parameters())]
        results.append([[round(v, 6) for v in g.flatten().tolist()] for g in grads])
    log = model.log
    if isinstance(log, dict):
        log = {k: [[round(e, 6) for e in t.flatten().tolist()] for t in v] for k, v in log.items()}
    return [results, log]
"""
KINDS = [
    "output_grad",
    "node",
    "node_pre",
    "saved_tensors",
    "after_backward",
    "multi_grad_all",
    "multi_grad_any",
    "capture_outputs",
    "capture_inputs",
    "two_orders",
]


@pytest.fixture
def lab(project):
    project({"netlab.py": LAB})
    import netlab

    return netlab


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def backward(model: nn.Module, x: torch.Tensor = X) -> None:
    model(x).sum().backward()


def test_attached_hooks_behave_same_in_clean_process(lab, tmp_path, clean_python):
    path = tmp_path / "net.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.save_module("netlab")
        for kind in KINDS:
            exporter.save_model(kind, "model.pkl", lab.build(kind))
    before = {kind: lab.measure(lab.build(kind), X) for kind in KINDS}
    printed = clean_python(
        """
        import json, modpack, torch
        importer = modpack.PackageImporter(path)
        lab = importer.import_module("netlab")
        results = {}
        for kind in kinds:
            model = importer.load_model(kind, "model.pkl")
            results[kind] = lab.measure(model, torch.linspace(-1, 1, 6).reshape(2, 3))
            for spec in importer.hook_specs(kind, "model.pkl"):
                importer.hook_handles[spec.name].remove()
            count = len(model.log)
            lab.measure(model, torch.ones(2, 3))
            assert len(model.log) == count, f"{kind} fires after its handle was removed"
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        print(json.dumps(results))
        """,
        path=path,
        kinds=KINDS,
    ).stdout
    assert json.loads(printed) == json.loads(json.dumps(before))


def test_each_attached_kind_has_an_effect(lab):
    """Without an effect, comparing before and after proves nothing."""
    plain = lab.measure(lab.build("after_backward"), X)[0]
    assert all(lab.measure(lab.build(kind), X)[1] for kind in KINDS if kind != "two_orders")
    for kind in ("output_grad", "node", "node_pre", "saved_tensors", "two_orders"):
        assert lab.measure(lab.build(kind), X)[0] != plain, kind


def test_handle_in_model_removes_loaded_attachment(lab, tmp_path):
    modpack.save(lab.build("saved_tensors"), tmp_path / "net.modpack")
    model = modpack.load(tmp_path / "net.modpack")
    model.handles[0].remove()
    backward(model)
    assert model.log == []
    assert not model[1]._forward_hooks and not model[1]._forward_pre_hooks


def test_attachment_has_one_spec_with_user_source(lab, tmp_path):
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.intern("netlab")
        for kind in KINDS[:8]:
            exporter.save_model(kind, "model.pkl", lab.build(kind))
        reported = [hook.name for hook in exporter.hook_report() if hook.spec is not None]
    importer = modpack.PackageImporter(tmp_path / "net.modpack")
    specs = {kind: importer.hook_specs(kind, "model.pkl") for kind in KINDS[:8]}
    assert [spec.name for kind in specs for spec in specs[kind]] == reported
    assert {kind: [spec.name for spec in specs[kind]] for kind in specs} == {
        "output_grad": ["1/graph.output_grad/0"],
        "node": ["1/graph.node/0"],
        "node_pre": ["1/graph.node_pre/0"],
        "saved_tensors": ["1/graph.saved_tensors/0"],
        "after_backward": ["graph.after_backward/0", "0/graph.output_grad/0"],
        "multi_grad_all": ["2+0/graph.multi_grad/0"],
        "multi_grad_any": ["2+0/graph.multi_grad/0"],
        "capture_outputs": ["2+0/graph.capture_grad/0"],
    }
    assert specs["multi_grad_any"][0].flags == {"mode": "any"}
    assert specs["multi_grad_any"][0].target == ("2", "0")
    assert specs["output_grad"][0].callable.source == 'lambda g: note(log, "grad", g) or g * scale'
    assert "# unpack\nlambda t:" in specs["saved_tensors"][0].callable.source
    assert specs["capture_outputs"][0].callable.name == "modpack.hooks.CaptureGrad"


def test_hooks_named_in_the_choice_are_restored_and_others_are_not(lab, tmp_path):
    modpack.save(lab.build("after_backward"), tmp_path / "net.modpack")
    model = modpack.load(tmp_path / "net.modpack", hooks=["0/graph.output_grad/0"])
    backward(model)
    assert [name for name, _ in model.log] == ["grad"]


def test_attachment_keeps_order_among_module_hooks(tmp_path):
    def build() -> nn.Module:
        model = net()
        attach(model, OutputGrad("0", lambda g: g * 0))  # on the layer's own result
        model[0].register_forward_hook(lambda module, args, output: output + module.weight.sum())
        return model

    def gradients(model: nn.Module) -> list[torch.Tensor]:
        backward(model)
        return [model[0].weight.grad, model[0].bias.grad]

    expected = gradients(build())
    assert expected[0].abs().sum() > 0 and expected[1].abs().sum() == 0


def test_saving_part_of_attachment_is_rejected(tmp_path):
    model = nn.Sequential(net(), net())
    attach(model, MultiGrad(("0", "1"), lambda grads: None))
    with pytest.raises(
        modpack.PicklingError, match=r"graph.multi_grad/0.*only a part of its model is saved"
    ):
        modpack.save(model[0], tmp_path / "half.modpack")


def test_hooks_on_live_graphs_are_not_captured(tmp_path):
    model = net()
    model.weights_out = nn.Identity()
    attach(model, OutputGrad("weights_out", lambda g: None))
    model.weights_out(model[0].weight)  # a leaf: its hooks are parameter hooks
    assert model[0].weight._backward_hooks
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.save_model("net", "model.pkl", model, hooks=lambda spec: False)
        assert [hook.name for hook in exporter.hook_report()] == ["weights_out/graph.output_grad/0"]


def test_deepcopy_of_an_attached_model_works_on_its_own():
    model = net()
    capture = CaptureGrad("1")
    attach(model, capture)
    twin = copy.deepcopy(model)
    backward(twin)
    assert capture.store == {}
    handles = [part.attachment.spec.store for part in twin[1]._forward_hooks.values()]
    assert handles[0]["1"][0].shape == (2, 3)


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Outputs()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        return out["a"].sum() + 2 * out["pair"][0].sum() + 3 * out["pair"][1][0].sum()


class Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        y = self.layer(x)
        return {"a": y + 0, "pair": (y + 0, [y + 0]), "none": None, "plain": x, "count": 3}


def test_output_grad_hooks_all_tensors_in_nested_outputs():
    model = Tree()
    seen: list[float] = []
    attach(model, OutputGrad("inner", lambda g: seen.append(g.mean().item())))
    capture = CaptureGrad("inner")
    attach(model, capture)
    backward(model)
    assert sorted(seen) == [1, 2, 3]
    assert [g.mean().item() for g in capture.store["inner"]] == [1, 2, 3]


@pytest.mark.parametrize(
    "spec",
    [
        OutputGrad("0", print),
        NodeHook("0", print),
        NodePreHook("0", print),
        AfterBackward(print),
        MultiGrad("0", print),
        CaptureGrad("0"),
    ],
    ids=lambda spec: spec.kind,
)
def test_outputs_without_gradient_are_skipped(spec, capsys):
    model = net()
    attach(model, spec)
    with torch.no_grad():
        model(X)
    model.requires_grad_(False)
    model(X)
    assert capsys.readouterr().out == ""


def test_passed_through_leaf_is_hooked_for_one_pass():
    model, x = nn.Sequential(nn.Identity()), X.clone().requires_grad_()
    seen: list[float] = []
    attach(model, OutputGrad("0", lambda g: seen.append(1)))
    for _ in range(3):
        backward(model, x)
    assert len(seen) == 3 and len(x._backward_hooks) == 1


def test_capture_grad_matches_autograd_grad():
    model, x = net(), X.clone().requires_grad_()
    outputs: list[torch.Tensor] = []
    model[0].register_forward_hook(lambda module, args, output: outputs.append(output))
    of_outputs, of_inputs = CaptureGrad("0"), CaptureGrad(("0", "2"), of="inputs")
    attach(model, of_outputs), attach(model, of_inputs)
    loss = model(x).pow(2).sum()
    expected = torch.autograd.grad(loss, [outputs[0], x], retain_graph=True)
    loss.backward()
    assert torch.equal(of_outputs.store["0"][0], expected[0])
    assert torch.equal(of_inputs.store["0"][0], expected[1])


def test_capture_grad_stores_none_for_unreached_tensors():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.used(x), self.unused(x)

    model, seen = Two(), []
    capture = CaptureGrad(("used", "unused"))
    attach(model, capture)
    attach(model, MultiGrad(("unused", "used"), lambda grads: seen.append(grads)))
    model(X)[0].sum().backward()
    assert capture.store["unused"] == [None] and capture.store["used"][0] is not None
    assert seen[0][0] is None and torch.equal(seen[0][1], torch.ones(2, 1))


def test_capture_grad_stores_shared_leaf_input_per_module():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(input=x)

    model, x = Both(), X.clone().requires_grad_()
    capture = CaptureGrad(("a", "b"), of="inputs")
    attach(model, capture)
    for _ in range(2):
        x.grad = None
        backward(model, x)
        assert torch.equal(capture.store["a"][0], x.grad)
        assert torch.equal(capture.store["b"][0], x.grad)


def test_output_hook_runs_inside_full_backward_pre_hooks(package):
    """A forward hook that registers hooks behaves as in torch, also after loading."""
    model = net()
    model[1].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 10,))
    model[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 100,))
    model.seen = []
    seen = model.seen
    attach(model, OutputGrad("1", lambda g: seen.append(g.sum().item())))
    twin = package(model).model()
    for each in (model, twin):
        backward(each)
    without = net()
    inner = CaptureGrad("1")
    attach(without, inner)
    backward(without)
    assert model.seen == twin.seen == [pytest.approx(10 * inner.store["1"][0].sum().item())]


def packing(log: list[str], name: str) -> SavedTensors:
    module = name.split("-")[0].strip("*")
    return SavedTensors(module, lambda t: log.append(name) or t, lambda t: t)


def in_force(log: list[str]) -> bool:
    """Return whether a logging pair is active in this thread, outside any call."""
    before = len(log)
    X.clone().requires_grad_().tanh()
    return len(log) > before


def test_saved_tensors_innermost_pair_applies():
    model, log = nn.Sequential(nn.Tanh(), nn.Sequential(nn.Tanh())), []
    for path in ("", "1", "1.0"):
        attach(model, packing(log, path))
    model(X.clone().requires_grad_())
    assert log == ["", "1.0"]
    assert not in_force(log)


def test_saved_tensors_last_attached_pair_applies():
    model, log = nn.Sequential(nn.Tanh()), []
    attach(model, packing(log, "0-first"))
    last = attach(model, packing(log, "0-last"))
    model(X.clone().requires_grad_())
    last.remove()
    model(X.clone().requires_grad_())
    assert log == ["0-last", "0-first"]
    assert not in_force(log)


def test_saved_tensors_pair_ends_before_other_hooks():
    model, log = nn.Sequential(nn.Tanh()), []
    model[0].register_forward_hook(lambda module, args, output: output.tanh())
    attach(model, packing(log, "0"))
    model(X.clone().requires_grad_())
    assert log == ["0"]  # the layer's own result, not the hook's


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")


def test_saved_tensors_pair_ends_if_forward_raises():
    model, log = nn.Sequential(nn.Tanh(), Fails()), []
    attach(model, packing(log, ""))
    attach(model, packing(log, "1"))
    with pytest.raises(ValueError, match=r"on purpose"):
        model(X.clone().requires_grad_())
    assert not in_force(log)


def test_saved_tensors_pair_not_entered_is_not_left():
    """If an earlier pre-hook raises, the inner call never enters its pair."""

    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 1) -> torch.Tensor:
            if depth:
                with pytest.raises(ValueError, match=r"too deep"):
                    self(x, depth - 1)
            return x.tanh()

    def refuse(module: nn.Module, args: tuple) -> None:
        if len(args) == 2 and args[1] == 0:
            raise ValueError("too deep")

    model, log = Recursive(), []
    model.register_forward_pre_hook(refuse)
    attach(model, packing(log, ""))
    model(X.clone().requires_grad_())
    assert log == [""]
    assert not in_force(log)


def test_saved_tensors_nested_calls_are_balanced():
    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
            return self(x.tanh(), depth - 1).tanh() if depth else x

    model, log = Recursive(), []
    attach(model, packing(log, ""))
    model(X.clone().requires_grad_())
    assert log == [""] * 6
    assert not in_force(log)


def test_saved_tensors_interrupted_call_ends_at_next_call():
    """torch runs no hooks for a BaseException."""

    class Interrupted(nn.Module):
        ready = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                raise KeyboardInterrupt
            return x.tanh()

    model, log = Interrupted(), []
    attach(model, packing(log, ""))
    with pytest.raises(KeyboardInterrupt):
        model(X)
    model.ready = True
    model(X.clone().requires_grad_())
    assert log == [""]
    assert not in_force(log)


def test_attachments_are_independent_per_thread():
    inside, release = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                assert release.wait(30)
            return x.tanh()

    model, log = Waits(), []
    handle = attach(model, packing(log, ""))
    thread = threading.Thread(target=lambda: model(X.clone().requires_grad_()))
    thread.start()
    assert inside.wait(30)
    assert not in_force(log)  # it is active in the other thread only
    model(X.clone().requires_grad_())
    handle.remove()
    model(X.clone().requires_grad_())
    release.set()
    thread.join()
    assert log == ["", ""]
    assert not model._forward_hooks  # the last call removed it


def test_handle_removed_in_forward_still_leaves_pair():
    model, log = nn.Sequential(nn.Tanh(), nn.Tanh()), []
    handle = attach(model, packing(log, ""))
    model[0].register_forward_hook(lambda module, args, output: handle.remove())
    model(X.clone().requires_grad_())
    assert not in_force(log)
    assert not model._forward_hooks and not model._forward_pre_hooks
    model(X.clone().requires_grad_())
    assert log == ["", ""]


def test_after_backward_runs_once_after_other_hooks():
    model, log = net(), []
    attach(model, AfterBackward(lambda: log.append("after")))
    attach(model, AfterBackward(lambda: log.append("after the first layer"), module="0"))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
    backward(model)
    backward(model)
    assert log == ["accumulated", "after", "after the first layer"] * 2


def test_after_backward_runs_once_for_several_outputs():
    model, log = Tree(), []
    attach(model, AfterBackward(lambda: log.append("after"), module="inner"))
    backward(model)
    assert log == ["after"]


def test_after_backward_error_propagates_once():
    model, log = net(), []
    failing = iter([True, False])

    def finish() -> None:
        log.append("called")
        if next(failing):
            raise ValueError("on purpose")

    attach(model, AfterBackward(finish))
    with pytest.raises(ValueError, match=r"on purpose"):
        backward(model)
    backward(model)
    assert log == ["called", "called"]


@pytest.mark.parametrize("kind", KINDS)
def test_removing_attachment_disables_live_graphs(kind, lab):
    model = lab.build(kind)
    loss = model(X.clone().requires_grad_()).sum()
    for handle in model.handles:
        handle.remove()
        handle.remove()
    before = list(model.log)
    if kind == "saved_tensors":  # packed tensors must still be unpacked
        loss.backward()
        assert [name for name, _ in model.log] == ["pack", "unpack"]
        return
    loss.backward()
    assert [name for name in model.log] == before or model.log == {"2": [None], "0": [None]}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_attach_handle_is_context_manager():
    model, seen = net(), []
    with attach(model, OutputGrad("1", lambda g: seen.append(1))) as handle:
        backward(model)
        assert handle.spec.module == "1"
    backward(model)
    assert seen == [1]


def test_removed_attachment_is_not_saved(tmp_path):
    model = net()
    attach(model, MultiGrad(("0", "1"), lambda grads: None)).remove()
    modpack.save(model, tmp_path / "net.modpack")
    importer = modpack.PackageImporter(tmp_path / "net.modpack")
    assert importer.hook_specs("__model__", "model.pkl") == ()


def test_attachment_does_not_keep_model_alive():
    model = net()
    for spec in (OutputGrad("1", lambda g: g), CaptureGrad("1"), packing([], "1")):
        attach(model, spec)
    backward(model)
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_attach_suggests_close_module_path():
    model = nn.ModuleDict({"layer1": nn.Linear(1, 1), "layer2": nn.Linear(1, 1)})
    with pytest.raises(ValueError, match=r"no module 'layer'\. Did you mean 'layer2', 'layer1'"):
        attach(model, OutputGrad("layer", print))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: OutputGrad("0", 3), TypeError, "OutputGrad: hook must be callable, not 3"),
        (lambda: OutputGrad(0, print), TypeError, "module must be a module path"),
        (lambda: SavedTensors("0", print, None), TypeError, "unpack must be callable"),
        (lambda: MultiGrad((), print), ValueError, "one or more different paths"),
        (lambda: MultiGrad(("0", "0"), print), ValueError, "one or more different paths"),
        (lambda: MultiGrad(3, print), TypeError, "modules must be module paths"),
        (lambda: MultiGrad("0", print, "some"), ValueError, "mode must be 'all' or 'any'"),
        (lambda: CaptureGrad("0", "weights"), ValueError, "of must be 'outputs' or 'inputs'"),
        (lambda: CaptureGrad("0", store=[]), TypeError, "store must be a mutable mapping"),
        (lambda: attach(net(), print), TypeError, "spec must be one of OutputGrad"),
        (lambda: attach(print, OutputGrad("0", print)), TypeError, "model must be a torch.nn"),
    ],
)
def test_graph_specs_validate_arguments(make, error, text):
    with pytest.raises(error, match=text):
        make()
