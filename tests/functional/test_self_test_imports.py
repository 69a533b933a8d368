"""Undeclared distributions that extern code imports in the self-test."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

import modpack
from modpack.cli import cli
from modpack.report.package_info import package_facts

NET = """
import torch
import front
from front import value

class Net(torch.nn.Module):
    def forward(self, x):
        return x + value
"""


@pytest.fixture
def package(project, installed, tmp_path):
    installed(
        "Front", {"front/__init__.py": "import declared, back\nvalue = 1"}, requires=["declared"]
    )
    installed("declared", {"declared.py": ""})
    installed("back", {"back.py": "import below, spaces.inner"}, version="2.1", requires=["below"])
    installed("below", {"below.py": ""})
    installed("spaces-inner", {"spaces/inner/__init__.py": ""})
    project({"net.py": NET})
    from net import Net

    path = tmp_path / "net.modpack"
    modpack.save(Net(), path, example_inputs=(torch.ones(1),))
    return path


def run(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments))).output


def test_imports_of_externs_are_recorded_without_requirements(package):
    self_test = package_facts(package).self_test
    imported = [
        (i.distribution, i.version, i.module, i.by) for i in self_test.observations.distributions
    ]
    assert imported == [
        ("back", "2.1", "back", "front"),
        ("spaces-inner", "1.0", "spaces.inner", "back"),
    ]


def test_imports_of_externs_are_required(package):
    lines = run("requirements", package).splitlines()
    assert "Front==1.0" in lines and lines.index("back==2.1") > lines.index("Front==1.0")
    assert lines[lines.index("back==2.1") - 1] == "# back, by front"
    assert not [line for line in lines if line.startswith(("below", "declared", "numpy"))]
    document = json.loads(run("requirements", package, "--json"))
    assert document["imported"][0] == {
        "distribution": "back",
        "version": "2.1",
        "requirement": "back==2.1",
        "module": "back",
        "by": "front",
    }


def test_audit_lists_imports_of_externs(package):
    found = json.loads(run("audit", package, "--json"))["findings"]
    messages = [each["message"] for each in found if each["code"] == "self-test-imported"]
    assert messages[0] == "front imported back 2.1 in the self-test"


def test_model_with_torch_only_has_no_undeclared_imports(project, tmp_path):
    project({"alone.py": NET.replace("import front\nfrom front import value", "value = 1")})
    from alone import Net

    modpack.save(Net(), tmp_path / "net.modpack", example_inputs=(torch.ones(1),))
    assert package_facts(tmp_path / "net.modpack").self_test.observations.distributions == ()
