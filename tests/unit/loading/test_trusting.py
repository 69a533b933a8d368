"""Trust policies while objects are loaded."""

from __future__ import annotations

import pickle
import pickletools
import sys

import pytest
import torch

import modpack
from modpack import TrustPolicy
from modpack.errors import ModpackWarning, TrustError, UnpicklingError, UntrustedImportError
from modpack.hooks.restoring import iter_hook_kinds
from modpack.loading.checks import require_hook_kinds


@pytest.fixture
def trusting():
    """A policy that allows unsigned code."""
    with pytest.warns(ModpackWarning):
        return TrustPolicy(allow_code=True, allow_hook_kinds="forward")


def test_kinds_of_hooks_are_found_on_live_modules():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert list(iter_hook_kinds(model)) == []
    model[0].register_forward_pre_hook(print)
    model[1].register_full_backward_hook(print)
    torch.nn.utils.parametrizations.orthogonal(model[0])
    assert {kind for kind, _ in iter_hook_kinds({"m": [model]})} == {
        "forward_pre",
        "full_backward",
        "parametrization",
    }


def test_kinds_of_hooks_are_found_on_live_tensors_and_optimizers():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    assert list(iter_hook_kinds((model, optimizer))) == []
    model.weight.register_hook(print)
    model.bias.register_post_accumulate_grad_hook(print)
    optimizer.register_step_pre_hook(print)
    assert set(iter_hook_kinds((model, {"optimizer": optimizer}))) == {
        ("tensor", "Parameter"),
        ("post_accumulate_grad", "Parameter"),
        ("optimizer.step_pre", "SGD"),
    }
    others = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    torch.autograd.graph.register_multi_grad_hook(others, print)
    assert {kind for kind, _ in iter_hook_kinds(others)} == {"multi_grad"}


def test_hooks_of_other_kinds_are_refused(packaged, trusting):
    importer = packaged({"shop.py": ""})
    require_hook_kinds(importer.filename, trusting, [("forward", "a")])
    with pytest.raises(TrustError, match=r"of kind 'tensor'.*'b', 'c'"):
        hooks = [("forward", "a"), ("tensor", "b"), ("tensor", "c")]
        require_hook_kinds(importer.filename, trusting, hooks)


def test_externs_are_still_refused_when_they_are_imported(packaged, installed):
    installed("yaml2", {"yaml2.py": "class Loader: pass"})
    importer = packaged({"shop.py": ""}, extern=["yaml2"])
    policy, roots = TrustPolicy(allow_externs=()), frozenset({"yaml2"})
    importer._namespace.use(importer._index._replace(policy=policy, extern_roots=roots))
    with pytest.raises(UntrustedImportError, match="'yaml2'"):
        importer.import_module("yaml2")


def test_data_loads_with_a_policy_that_allows_no_code(tmp_path):
    state = {"model": torch.nn.Linear(2, 2).state_dict(), "step": 3}
    modpack.save(state, tmp_path / "a.modpack")
    again = modpack.load(tmp_path / "a.modpack", policy=TrustPolicy())
    assert again["step"] == 3 and torch.equal(again["model"]["weight"], state["model"]["weight"])


def test_model_is_rejected_before_unpickling(tmp_path):
    modpack.save(torch.nn.Linear(2, 2), tmp_path / "a.modpack")
    with pytest.raises(TrustError, match=r"torch\.nn\.modules\.linear\.Linear") as caught:
        modpack.load(tmp_path / "a.modpack", policy=TrustPolicy())
    assert "set allow_code to true" in str(caught.value)


def test_unlisted_pickle_is_loaded_as_data(tmp_path):
    """A record that is not declared and does not look like a pickle."""
    hidden = b"N0" + pickletools.optimize(pickle.dumps(sys.exit, 0))
    with modpack.PackageExporter(tmp_path / "a.modpack") as exporter:
        exporter.save_binary("data", "hidden.bin", hidden)
    importer = modpack.PackageImporter(tmp_path / "a.modpack", policy=TrustPolicy())
    with importer, pytest.raises(UnpicklingError, match=r"the name 'sys\.exit' is not allowed"):
        importer.load_pickle("data", "hidden.bin")
