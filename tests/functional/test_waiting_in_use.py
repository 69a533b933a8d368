"""Modules whose imports wait, used in ways that reach beyond their own code."""

from __future__ import annotations

import doctest
import multiprocessing
import os
import subprocess
import sys
import textwrap
import trace

import pytest
import torch

import modpack

SHOP = {
    "shop/__init__.py": "",
    "shop/till.py": "total = 3\nclass Till: ...\n",
    "user.py": """
        from shop.till import Till, total

        def read():
            \"\"\"Return the total.

            >>> read() + total
            6
            \"\"\"
            return total

        def make():
            return Till()
        """,
}
NET = {
    **SHOP,
    "net.py": """
        from shop.till import total
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
            def forward(self, x):
                return self.layer(x) * total
        """,
}
ONE = torch.ones(1, 2)


def waits(module):
    return type(module) is not type(sys)


@pytest.fixture
def net_file(project, tmp_path):
    """Save a model of a project; return the file and its output."""
    project({name: textwrap.dedent(text) for name, text in NET.items()})
    from net import Net

    model = Net()
    modpack.save(model, tmp_path / "net.modpack", intern=["net", "shop.**"])
    return str(tmp_path / "net.modpack"), model(ONE)


def test_star_import_takes_the_names_of_all(packaged):
    files = {
        "shop/__init__.py": "from .till import Till, total\n__all__ = ['total']\n",
        "shop/till.py": SHOP["shop/till.py"],
        "user.py": "from shop import *\n",
    }
    user = packaged(files, lazy=True).import_module("user")
    assert user.total == 3 and not hasattr(user, "Till")


def test_two_packages_keep_their_own_modules(packaged):
    first, second = (
        packaged({**SHOP, "shop/till.py": f"total = {total}\nclass Till: ...\n"}, lazy=True)
        for total in (1, 2)
    )
    users = [each.import_module("user") for each in (first, second)]
    assert all(waits(each) for each in users)
    assert [each.read() for each in users] == [1, 2]
    assert users[0].Till is not users[1].Till is type(users[1].make())


def test_same_package_loads_with_and_without_waiting(packaged):
    path = packaged(SHOP).filename
    eager = modpack.PackageImporter(path, lazy=False).import_module("user")
    lazy = modpack.PackageImporter(path, lazy=True).import_module("user")
    assert (waits(eager), waits(lazy)) == (False, True)
    assert eager.read() == lazy.read() == 3


def test_examples_in_docstrings_run(packaged):
    user = packaged(SHOP, lazy=True).import_module("user")
    assert waits(user)
    assert doctest.testmod(user) == (0, 1)


def test_lines_that_run_are_those_of_the_file(packaged):
    user = packaged(SHOP, lazy=True).import_module("user")
    tracer = trace.Trace(count=True, trace=False)
    assert tracer.runfunc(user.read) == 3
    lines = {line for file, line in tracer.results().counts if file == user.__file__}
    returning = textwrap.dedent(SHOP["user.py"]).splitlines().index("    return total") + 1
    assert lines == {returning, 2}, "the function's line, and the import that it executes"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_process_imports_what_waits(packaged):
    user = packaged(SHOP, lazy=True).import_module("user")
    child = os.fork()
    if not child:
        os._exit(0 if user.read() == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert waits(user) and user.read() == 3


def _output(model, results):
    results.put(model(ONE).tolist())


def test_spawned_process_loads_a_model_whose_imports_wait(net_file):
    file, output = net_file
    model = modpack.load(file, lazy=True)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_output, args=(model, results))
    process.start()
    assert results.get(timeout=120) == output.tolist()
    process.join()


def test_model_whose_imports_wait_is_exported_again(net_file, tmp_path):
    file, output = net_file
    model = modpack.load(file, lazy=True)
    modpack.save(model, tmp_path / "again.modpack")
    code = f"""
        import modpack, torch
        assert modpack.load("again.modpack")(torch.ones(1, 2)).tolist() == {output.tolist()}
        with modpack.PackageImporter("again.modpack") as importer:
            assert importer.import_module("shop.till").total == 3
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, check=True)
