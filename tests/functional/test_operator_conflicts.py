"""Packages whose code defines torch operators, loaded repeatedly in a process."""

from __future__ import annotations

import importlib
import itertools
import textwrap

import pytest

import modpack

NET = """
class Net(torch.nn.Module):
    def forward(self, x): return torch.ops.{name}.twice(x)
"""
WAYS = {
    "library": """
import torch
lib = torch.library.Library("{name}", "DEF")
lib.define("twice(Tensor x) -> Tensor")
lib.impl("twice", lambda x: x * 2, "CPU")
""",
    "fragment": """
import torch
lib = torch.library.Library("{name}", "FRAGMENT")
lib.define("twice(Tensor x) -> Tensor")
lib.impl("twice", lambda x: x * 2, "CPU")
""",
    "define": """
import torch
torch.library.define("{name}::twice", "(Tensor x) -> Tensor")
torch.library.impl("{name}::twice", "CPU", lambda x: x * 2)
""",
    "custom_op": """
import torch
@torch.library.custom_op("{name}::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor: return x * 2
@twice.register_fake
def _(x): return torch.empty_like(x)
class Pair: pass
torch.utils._pytree.register_pytree_node(
    Pair, lambda p: ([], None), lambda c, _: Pair(), serialized_type_name="{name}.Pair")
torch.serialization.add_safe_globals([Pair])
""",
}
_numbers = itertools.count()


@pytest.fixture(params=list(WAYS))
def way(request):
    return request.param


@pytest.fixture
def saved(way, project, tmp_path):
    """A package whose code defines an operator, and its original module."""
    name = f"conflicting{next(_numbers)}"
    root = project({f"{name}.py": (WAYS[way] + NET).format(name=name)})
    module = importlib.import_module(name)
    modpack.save(module.Net(), tmp_path / "net.modpack")
    return tmp_path / "net.modpack", name, root


def told(code, saved, clean_python) -> str:
    file, name, root = saved
    setup = """
        import modpack, sys, torch
        def load():
            try: print(modpack.load(path)(torch.ones(1)).item())
            except modpack.errors.OperatorConflictError as failure: print(failure)
        """
    code = textwrap.dedent(setup) + textwrap.dedent(code)
    return clean_python(code, path=file, name=name, root=str(root)).stdout


def test_second_load_works_or_names_first_definition(way, saved, clean_python):
    file, name, _ = saved
    first, second = told("\n        load()\n        load()\n", saved, clean_python).splitlines()
    assert first == "2.0"
    if way == "custom_op":
        assert second == "2.0"
        return
    assert f"packaged code at {name}:" in second and "Load the package once per process" in second
    assert (f" of {file} has" in second) == (way != "define")
    assert ("other code in this process" in second) == (way == "define")


def test_load_next_to_project_works_or_names_the_project(way, saved, clean_python):
    code = """
        sys.path.insert(0, root)
        __import__(name)
        load()
        """
    text = told(code, saved, clean_python)
    if way == "custom_op":
        assert text == "2.0\n"
        return
    assert "defines the operator" in text
    assert (f"{saved[1]}.py:" in text) == (way != "define")


def test_import_of_packaged_module_explains_conflict(way, saved, clean_python):
    code = """
        load()
        try: modpack.PackageImporter(path).import_module(name)
        except RuntimeError as failure: print(type(failure).__name__, failure.name)
        """
    text = told(code, saved, clean_python)
    assert ("OperatorConflictError" in text) == (way != "custom_op")
