"""What a process that loads a package does not have to do for that."""

from __future__ import annotations

import pytest
import torch

import modpack

SEARCHED = """
import gc
import modpack
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))
torch = __import__("torch")
import modpack.importer, modpack.loading.objects
gc.collect()
searched.clear()
modpack.load({file!r})
print(max(searched, default=0))
"""

IMPORTED = """
import sys
import torch, modpack
modpack.load({file!r})
rooms = [name for name, module in sys.modules.items() if hasattr(module, "__path__")]
names = [name for name in sys.modules if name.startswith("modpack.") and name not in rooms]
print(*names)
"""
MAX_MODULES = 29
"""Each takes 0.2 to 0.5 ms. One that a load without hooks, code and a policy can do without is
imported where it is used."""


@pytest.fixture
def package(tmp_path):
    file = tmp_path / "m.modpack"
    weights = torch.nn.ParameterList(torch.ones(4) for _ in range(2000))
    modpack.save(weights, file, extern="torch.**")
    return str(file)


def test_first_load_searches_no_old_objects_for_garbage(package, clean_python):
    assert clean_python(SEARCHED.format(file=package)).stdout == "0\n"


def test_first_load_of_a_small_model_imports_few_modules(tmp_path, clean_python):
    file = tmp_path / "m.modpack"
    modpack.save(torch.nn.Linear(2, 2), file, extern="torch.**")
    names = clean_python(IMPORTED.format(file=str(file))).stdout.split()
    assert len(names) <= MAX_MODULES, names


def test_packaged_code_is_imported_while_garbage_is_collected(tmp_path, monkeypatch):
    (tmp_path / "collecting.py").write_text(
        "import gc\nENABLED = gc.isenabled()\nclass Thing:\n    enabled = ENABLED\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import collecting  # type: ignore[import-not-found]

    file = tmp_path / "m.modpack"
    modpack.save(collecting.Thing(), file, intern="collecting")
    assert modpack.load(file).enabled is True
