"""Hooks are kept in every container and with every way of saving."""

import dataclasses
import io
import re
import warnings

import pytest
import torch

import modpack

X = torch.tensor([[1.0, -2.0]])


def hooked():
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, args, output: output * 2)
    layer.weight.register_hook(lambda grad: grad * 3)
    return layer


@dataclasses.dataclass
class Bundle:
    """A user object that contains models."""

    model: torch.nn.Module
    note: str = ""


class Slotted:
    __slots__ = ("model",)

    def __init__(self, model):
        self.model = model


CONTAINERS = {
    "dict": (lambda m: {"student": m}, lambda c: c["student"], "['student']"),
    "list": (lambda m: [1, m], lambda c: c[1], "[1]"),
    "tuple": (lambda m: (m,), lambda c: c[0], "[0]"),
    "dataclass": (Bundle, lambda c: c.model, "model"),
    "slots": (Slotted, lambda c: c.model, "model"),
    "nested": (lambda m: {"a": [Bundle(m)]}, lambda c: c["a"][0].model, "['a'][0].model"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_save_pickle_keeps_the_hooks_of_modules_in_containers(package, same, name):
    wrap, unwrap, path = CONTAINERS[name]
    saved = package(wrap(hooked()), pickled=True)
    loaded = unwrap(saved.importer.load_pickle("net", "model.pkl"))
    assert same(loaded, hooked())
    assert saved.names == [f"{path}/forward/0", f"{path}.weight/tensor/0"]
    assert {status.status for status in saved.report} == {"captured"}


def test_save_and_load_keep_hooks(tmp_path, same):
    modpack.save(hooked(), tmp_path / "m.modpack", extern="**")
    assert same(modpack.load(tmp_path / "m.modpack"), hooked())


def test_bare_tensors_keep_their_hooks(package):
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda grad: grad * 2)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad * 3))
    saved = package({"t": tensor, "p": parameter}, pickled=True)
    loaded = saved.importer.load_pickle("net", "model.pkl")
    (loaded["t"].sum() + loaded["p"].sum()).backward()
    assert loaded["t"].grad.tolist() == [2.0, 2.0]
    assert loaded["p"].grad.tolist() == [3.0, 3.0]


def test_saved_tensor_keeps_its_hook(package):
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda grad: grad * 2)
    saved = package(tensor, pickled=True)
    loaded = saved.importer.load_pickle("net", "model.pkl")
    loaded.sum().backward()
    assert loaded.grad.tolist() == [2.0, 2.0]
    assert saved.names == ["tensor/0"]


def test_saving_hooked_tensors_does_not_warn(package):
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda grad: grad * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package({"t": tensor}, pickled=True)


def test_hooks_on_intermediate_tensor_are_reported(package):
    intermediate = torch.ones(2, requires_grad=True) * 2
    intermediate.register_hook(lambda grad: grad * 2)
    with pytest.warns(modpack.ModpackWarning, match=r"\['t'\]/tensor.*is registered on a graph"):
        saved = package({"t": intermediate}, pickled=True)
    (status,) = saved.report
    assert status.status == "left out"


def test_multi_grad_hook_on_intermediate_tensors_is_reported(package):
    leaf = torch.ones(2, requires_grad=True)
    torch.autograd.graph.register_multi_grad_hook([leaf, leaf * 2], lambda grads: None)
    with pytest.warns(modpack.ModpackWarning, match=r"\['t'\]/multi_grad"):
        saved = package({"t": leaf}, pickled=True)
    assert saved.importer.load_pickle("net", "model.pkl")["t"]._backward_hooks in (None, {})


def test_optimizers_in_containers_keep_their_hooks(package):
    model = hooked()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.register_step_post_hook(lambda opt, args, kwargs: opt.steps.append(1))
    optimizer.steps = None
    saved = package({"model": model, "optimizer": optimizer}, pickled=True)
    loaded = saved.importer.load_pickle("net", "model.pkl")
    loaded["optimizer"].steps = []
    loaded["model"](X).sum().backward()
    loaded["optimizer"].step()
    assert loaded["optimizer"].steps == [1]
    assert loaded["optimizer"].param_groups[0]["params"][0] is loaded["model"].weight


def test_module_referenced_by_hook_only_keeps_hooks(package):
    teacher = hooked()
    student = torch.nn.Linear(2, 2)
    student.register_forward_hook(lambda module, args, output: output - teacher(*args))
    saved = package(student)
    loaded = saved.model()
    assert torch.equal(loaded(X), student(X))
    assert len(saved.names) == 3
    assert len(set(saved.names)) == 3


def test_two_unreachable_targets_have_two_names(package):
    one, two = hooked(), hooked()

    def closing(module, args, output):
        return one(output) + two(output)

    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(closing)
    saved = package(model)
    assert len(set(saved.names)) == len(saved.specs) == 5
    assert torch.equal(saved.model()(X), model(X))


class WithGetstate(torch.nn.Linear):
    def __getstate__(self):
        state = self.__dict__.copy()
        state["version"] = 2
        return state


class WithTuple(torch.nn.Linear):
    def __getstate__(self):
        return ("all", self.__dict__.copy())

    def __setstate__(self, state):
        super().__setstate__(state[1])


class WithReduce(torch.nn.Linear):
    def __reduce__(self):
        return type(self), (2, 2)


class WithReduceAndHook(torch.nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_forward_hook(self.halve)

    def halve(self, module, args, output):
        return output / 2

    def __reduce__(self):
        return type(self), (2, 2), {"_parameters": self._parameters}


class WithSetstate(torch.nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.register_forward_hook(self.halve)

    def halve(self, module, args, output):
        return output / 2

    def __setstate__(self, state):
        super().__setstate__(state)
        self._forward_hooks.clear()
        self.register_forward_hook(self.halve)


@pytest.mark.parametrize(
    "kind", [WithGetstate, WithTuple, WithReduce, WithReduceAndHook, WithSetstate]
)
def test_modules_with_own_reduction_keep_hooks_once(package, kind):
    model = kind(2, 2)
    model.register_forward_hook(lambda module, args, output: output * 2 + 1)
    loaded = package(model).model()
    assert len(loaded._forward_hooks) == len(model._forward_hooks)
    if kind is not WithReduce:  # that class creates new weights
        assert torch.equal(loaded(X), model(X))
    without = package(model).model(hooks=False)
    assert not without._forward_hooks


class Optimizing(torch.optim.SGD):
    def __getstate__(self):
        return self.__dict__.copy()


def test_optimizer_that_pickles_hook_tables_has_hooks_once(package):
    model = torch.nn.Linear(2, 2)
    optimizer = Optimizing(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    _, loaded = package(model, optimizer=optimizer).model(with_optimizer=True)
    assert len(loaded._optimizer_step_pre_hooks) == 1


class Traced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x).relu()


def test_graph_modules_keep_their_hooks(package, same):
    graph = torch.fx.symbolic_trace(Traced())
    graph.register_forward_hook(lambda module, args, output: output * 2)
    graph.layer.register_forward_hook(lambda module, args, output: output + 1)
    graph.layer.weight.register_hook(lambda grad: grad * 3)
    saved = package(graph)
    loaded = saved.model()
    assert isinstance(loaded, torch.fx.GraphModule)
    assert same(loaded, graph)
    assert sorted(saved.names) == ["forward/0", "layer.weight/tensor/0", "layer/forward/0"]
    again = saved.model(hooks=False)
    assert not again._forward_hooks and not again.layer._forward_hooks


def test_excluded_graph_module_hook_may_be_unpicklable(package):
    graph = torch.fx.symbolic_trace(Traced())
    match = re.match("a", "a")
    graph.register_forward_hook(lambda *_: match)
    loaded = package(graph, hooks=False).model()
    assert torch.equal(loaded(X), graph.forward(X))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_script_modules_keep_the_hooks_of_their_parameters(package):
    """They reject module hooks; torch loses tensor hooks of their parameters."""
    script = torch.jit.script(Traced())
    weight = script.layer.weight
    weight.register_hook(lambda grad: grad * 3)
    optimizer = torch.optim.SGD(script.parameters(), lr=0.1)
    saved = package(script, optimizer=optimizer)
    loaded, its_optimizer = saved.model(with_optimizer=True)
    for each in (script, loaded):
        each(torch.ones(1, 2)).sum().backward()
    assert torch.equal(loaded.layer.weight.grad, script.layer.weight.grad)
    assert its_optimizer.param_groups[0]["params"][0] is loaded.layer.weight
    assert saved.names == ["layer.weight/tensor/0"]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_torch_package_loads_hooks_that_are_functions_of_modules(project, tmp_path):
    project(
        {
            "plain.py": """
                import torch
                def double(module, args, output): return output * 2
                def before(module, args, kwargs): return (args[0] + 1,), kwargs
                class Net(torch.nn.Linear): pass
                """
        }
    )
    import plain

    model = plain.Net(2, 2)
    model.register_forward_hook(plain.double)
    model.register_forward_pre_hook(plain.before, with_kwargs=True)
    with modpack.PackageExporter(tmp_path / "p.pt") as exporter:
        exporter.intern("plain")
        exporter.save_model("net", "model.pkl", model)
    loaded = torch.package.PackageImporter(tmp_path / "p.pt").load_pickle("net", "model.pkl")
    assert torch.equal(loaded(X), model(X))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_torch_package_reads_no_excluded_hooks(project, tmp_path):
    project({"plain.py": "def double(module, args, output): return output * 2\n"})
    import plain

    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(plain.double)
    with modpack.PackageExporter(tmp_path / "p.pt") as exporter:
        exporter.intern("plain")
        exporter.save_model("net", "model.pkl", model, hooks=False)
    loaded = torch.package.PackageImporter(tmp_path / "p.pt").load_pickle("net", "model.pkl")
    assert not loaded._forward_hooks


def test_saving_twice_gives_the_same_bytes(tmp_path):
    model = hooked()
    model.handle = model.register_forward_hook(lambda *_: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), lambda grads: None)
    written = []
    for _ in range(2):
        buffer = io.BytesIO()
        with modpack.PackageExporter(buffer) as exporter:
            exporter.extern("**")
            exporter.save_model("net", "model.pkl", model, optimizer=optimizer)
        written.append(buffer.getvalue())
    assert written[0] == written[1]


def test_reexported_hook_specs_name_package_modules(project, tmp_path):
    project(
        {
            "zoo/__init__.py": "",
            "zoo/hooks.py": """
                def double(module, args, output): return output * 2
                def made(factor): return lambda module, args, output: output * factor
                class Adder:
                    def __call__(self, module, args, output): return output + 1
                    def method(self, module, args, output): return output + 2
                """,
        }
    )
    from zoo import hooks

    model = torch.nn.Linear(2, 2)
    for hook in (hooks.double, hooks.made(3), hooks.Adder(), hooks.Adder().method):
        model.register_forward_hook(hook)
    with modpack.PackageExporter(tmp_path / "one.modpack") as exporter:
        exporter.intern("zoo.**")
        exporter.save_model("net", "model.pkl", model)
    one = modpack.PackageImporter(tmp_path / "one.modpack")
    loaded = one.load_model("net", "model.pkl")
    with modpack.PackageExporter(
        tmp_path / "two.modpack", importer=[one, modpack.sys_importer]
    ) as exporter:
        exporter.intern("zoo.**")
        exporter.save_model("net", "model.pkl", loaded)
    two = modpack.PackageImporter(tmp_path / "two.modpack")
    assert torch.equal(two.load_model("net", "model.pkl")(X), model(X))
    first, second = (each.hook_specs("net", "model.pkl") for each in (one, two))
    assert first == second
    assert [spec.callable.name for spec in second] == [
        "zoo.hooks.double",
        "zoo.hooks.made.<locals>.<lambda>",
        "instance of zoo.hooks.Adder",
        "zoo.hooks.Adder.method (bound)",
    ]
