"""Work that the first save in a process avoids."""

from __future__ import annotations

import pytest

SAVED = """
import gc, sys
import modpack
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))
torch = __import__("torch")
gc.collect()
searched.clear()
modpack.save({{"weights": torch.ones(4)}}, {file!r})
unneeded = {{"modpack.importer", "modpack.loading.objects", "modpack.exporting.collecting"}}
print(sorted(unneeded & set(sys.modules)), 2 in searched)
"""

NAMED = "import sys; from modpack import {name}; print('torch' in sys.modules)"


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "m.modpack")


def test_first_save_imports_no_loading_code_and_runs_no_full_gc(file, clean_python):
    assert clean_python(SAVED.format(file=file)).stdout == "[] False\n"


@pytest.mark.parametrize("name", ["save", "load", "PackageExporter", "PackageImporter"])
def test_public_name_is_imported_without_torch(name, clean_python):
    assert clean_python(NAMED.format(name=name)).stdout == "False\n"
