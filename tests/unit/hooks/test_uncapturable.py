"""Hooks that cannot be captured are reported with a hint."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import nn

import modpack


class Holder:
    def __init__(self, value: object) -> None:
        self.inner = [{"value": value}]

    def __call__(self, *args: object) -> None:
        return None

    def method(self, *args: object) -> None:
        return None


def class_from_nowhere() -> object:
    namespace: dict[str, object] = {"__name__": "nowhere"}
    exec("class Local:\n    def __call__(self, *args): return None", namespace)
    return namespace["Local"]()


def without_source() -> object:
    namespace: dict[str, object] = {"__name__": "nowhere"}
    exec("def hook(module, args, output): return output", namespace)
    return namespace["hook"]


def closing_over(value: object) -> object:
    def outer(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        inner()

    def inner() -> object:
        return value

    return outer


def a_match() -> object:
    return re.match("a", "a")


def generator() -> object:
    return (number for number in range(3))


@pytest.mark.parametrize(
    ("hook", "place", "reason"),
    [
        (closing_over(a_match()), " -> inner -> value", "Match.*Save what you need"),
        (
            closing_over(Holder(a_match())),
            r" -> inner -> value\.inner\[0\]\['value'\]",
            "Save what you need",
        ),
        (Holder(generator()), r" -> inner\[0\]\['value'\]", "generator.*Save the function"),
        (Holder(a_match()).method, r" -> self\.inner\[0\]\['value'\]", "Match.*Save"),
        (functools.partial(Holder(0), a_match()), r" -> args\[0\]", "Match.*Save"),
        (
            class_from_nowhere(),
            "",
            "Local'> is not found.*its code was run by exec. Write the code into a file",
        ),
        (closing_over(class_from_nowhere()), " -> inner -> value", "Write the code"),
        (without_source(), "", "no source.*Define it with def at the top level"),
    ],
    ids=[
        "closure",
        "attribute of an object in a closure",
        "attribute",
        "bound method",
        "partial",
        "class from nowhere",
        "object of a class from nowhere",
        "no source",
    ],
)
@pytest.mark.parametrize("save", ["save_model", "save_pickle"])
def test_unsupported_hook_is_reported_with_path_and_hint(hook, place, reason, save):
    model = nn.ModuleDict({"layer1": nn.Linear(2, 2)})
    model["layer1"].register_forward_hook(lambda module, args, output: None)
    model["layer1"].register_forward_hook(hook)
    with modpack.PackageExporter(None) as exporter:
        with pytest.raises(modpack.PicklingError) as caught:
            getattr(exporter, save)("net", "model.pkl", model)
        exporter.extern("**")
    assert caught.match(rf"\(at hook 'layer1/forward/1'{place}\): .*{reason}")
    assert caught.value.path.startswith("hook 'layer1/forward/1'")


def test_hint_for_unsupported_hook_works(tmp_path):
    model = nn.Linear(2, 2)
    model.weight.register_hook(closing_over(a_match()))
    with modpack.PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.extern("**")
        with pytest.raises(modpack.PicklingError, match=r"hooks=lambda spec: spec.name") as caught:
            exporter.save_model("net", "model.pkl", model)
        advice = str(caught.value).partition(" hooks=")[2].removesuffix(".")
        exporter.save_model("net", "model.pkl", model, hooks=eval(advice))
        (status,) = exporter.hook_report()
    assert (status.name, status.status) == ("weight/tensor/0", "left out")


def test_unsupported_optimizer_and_graph_hooks_are_reported():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_pre_hook(closing_over(a_match()))
    with modpack.PackageExporter(None) as exporter:
        with pytest.raises(modpack.PicklingError, match=r"/optimizer.step_pre/0' -> inner"):
            exporter.save_model("net", "model.pkl", model, optimizer)
        modpack.hooks.attach(model, modpack.hooks.OutputGrad("", closing_over(a_match())))
        with pytest.raises(modpack.PicklingError, match=r"'graph.output_grad/0' -> inner -> v"):
            exporter.save_model("net", "model.pkl", model)


def test_unsupported_object_outside_hooks_is_reported_with_path():
    model = nn.Linear(2, 2)
    model.match = a_match()
    model.register_forward_hook(closing_over(model))
    with modpack.PackageExporter(None) as exporter:
        with pytest.raises(modpack.PicklingError, match=r"\(at model\.match\)"):
            exporter.save_model("net", "model.pkl", model)
        optimizer = torch.optim.SGD(model.parameters())
        optimizer.param_groups[0]["match"] = a_match()
        with pytest.raises(modpack.PicklingError, match=r"at optimizer\.param_groups\[0\]"):
            exporter.save_model("net", "model.pkl", nn.Linear(2, 2), optimizer)


def test_unsupported_script_global_is_reported_with_hook(clean_python):
    printed = clean_python(
        """
        import modpack, re, torch
        found = {"match": re.match("a", "a")}
        model = torch.nn.Linear(2, 2)
        model.register_forward_hook(lambda module, args, output: print(found))
        try:
            modpack.save(model, None)
        except modpack.PicklingError as failure:
            print(failure)
        """
    ).stdout
    assert "(at hook 'forward/0' -> found['match'])" in printed
    assert "exclude the hook: hooks=lambda spec: spec.name != 'forward/0'." in printed
