"""What a process that loads a package does not have to do for that."""

from __future__ import annotations

import pytest
import torch

import modpack

LOADED = """
import gc, sys
import modpack
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))
torch = __import__("torch")
import modpack.api, modpack.loading.objects
gc.collect()
searched.clear()
modpack.load({file!r})
unneeded = {{"modpack.exporter", "modpack.archive.writer", "modpack.hooks.kinds",
             "modpack.report.scanning", "modpack.planning", "modpack.core.plan",
             "modpack.core.selftest"}}
print(sorted(unneeded & set(sys.modules)), max(searched, default=0))
"""


@pytest.fixture
def package(tmp_path):
    file = tmp_path / "m.modpack"
    weights = torch.nn.ParameterList(torch.ones(4) for _ in range(2000))
    modpack.save(weights, file, extern="torch.**")
    return str(file)


def test_it_imports_nothing_for_saving_and_searches_no_old_objects(package, clean_python):
    assert clean_python(LOADED.format(file=package)).stdout == "[] 0\n"


def test_packaged_code_is_imported_while_garbage_is_collected(tmp_path, monkeypatch):
    (tmp_path / "collecting.py").write_text(
        "import gc\nENABLED = gc.isenabled()\nclass Thing:\n    enabled = ENABLED\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import collecting  # type: ignore[import-not-found]

    file = tmp_path / "m.modpack"
    modpack.save(collecting.Thing(), file, intern="collecting")
    assert modpack.load(file).enabled is True
