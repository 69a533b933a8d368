"""What a process that saves a package does not have to do for that."""

from __future__ import annotations

import pytest
import torch

import modpack

SAVED = """
import gc, sys
import modpack
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))
torch = __import__("torch")
gc.collect()
searched.clear()
modpack.save({{"weights": torch.ones(4)}}, {file!r})
unneeded = {{"modpack.importer", "modpack.core.plan", "modpack.discovery.import_scanner",
             "modpack.discovery.mockuse", "modpack.exporting.script", "modpack.trial"}}
print(sorted(unneeded & set(sys.modules)), 2 in searched)
"""

NAMED = """
import sys
{before}
from modpack import {name}
before = set(sys.modules)
{use}
new = set(sys.modules) - before
print("torch" in before, sorted(name for name in new if name.startswith("modpack.")))
"""
SAVE = "save(torch.nn.Linear(2, 2), {file!r})"
LOAD = "load({file!r})"
EXPORT = """
with PackageExporter({file!r}) as exporter:
    exporter.extern("torch.**")
    exporter.save_pickle("data", "data.pkl", torch.nn.Linear(2, 2))
"""
IMPORT = "PackageImporter({file!r}).load_pickle('__model__', 'model.pkl')"


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "m.modpack")


def test_it_imports_nothing_for_loading_scripts_mocks_or_trials_and_searches_no_old_objects(
    file, clean_python
):
    assert clean_python(SAVED.format(file=file)).stdout == "[] False\n"


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("save", SAVE),
        ("load", LOAD),
        ("PackageExporter", EXPORT),
        ("PackageImporter", IMPORT),
    ],
)
def test_where_torch_is_there_what_an_object_needs_comes_with_the_name(
    file, name, use, clean_python
):
    modpack.save(torch.nn.Linear(2, 2), file)
    code = NAMED.format(before="import torch", name=name, use=use.format(file=file))
    assert clean_python(code).stdout == "True []\n"


@pytest.mark.parametrize("name", ["save", "load", "PackageExporter", "PackageImporter"])
def test_no_name_brings_torch(name, clean_python):
    code = NAMED.format(before="", name=name, use="")
    assert clean_python(code).stdout == "False []\n"
