"""What a process that saves a package does not have to do for that."""

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
unneeded = {{"modpack.importer", "modpack.core.notebook", "modpack.discovery._scanning",
             "modpack.discovery.mockuse", "modpack.packing.scripts", "modpack.trial"}}
print(sorted(unneeded & set(sys.modules)), 2 in searched)
"""


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "m.modpack")


def test_it_imports_nothing_for_loading_scripts_mocks_or_trials_and_searches_no_old_objects(
    file, clean_python
):
    assert clean_python(SAVED.format(file=file)).stdout == "[] False\n"
