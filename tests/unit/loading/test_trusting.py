"""Trust policies while objects are loaded."""

from __future__ import annotations

import pickle
import pickletools
import sys

import pytest
import torch

import modpack
from modpack import TrustPolicy
from modpack.errors import TrustError, UnpicklingError, UntrustedImportError


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
