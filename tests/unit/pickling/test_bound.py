from __future__ import annotations

import torch

from modpack import PackageExporter, PackageImporter
from modpack.trust.pickle_names import read_pickle


def test_pybind11_functions_are_saved_without_eval(tmp_path):
    with PackageExporter(tmp_path / "a.modpack") as exporter:
        exporter.save_pickle("values", "a.pkl", {"ask": torch._C._is_tracing})
    with PackageImporter(tmp_path / "a.modpack") as importer:
        named = [str(name) for name in read_pickle(importer.load_binary("values", "a.pkl")).names]
        loaded = importer.load_pickle("values", "a.pkl")
    assert "torch._C" in named and "builtins.eval" not in named
    assert loaded["ask"] is torch._C._is_tracing
