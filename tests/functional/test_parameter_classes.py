"""Parameters of user-defined classes."""

from __future__ import annotations

import textwrap

import pytest
import torch
import torch.package

import modpack
from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.report.audit_findings import pickle_findings
from modpack.trust.code_listing import list_code

SOURCE = """
import torch

class Weight(torch.nn.Parameter):
    def scaled(self):
        return self.data * self.factor

def double(grad):
    return grad * 2

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Weight(torch.arange(3.0))
        self.first.factor, self.first.owner = 2.0, self
        self.first.register_hook(double)
        self.second = self.first
        self.frozen = Weight(torch.arange(2), requires_grad=False)
        self.table = torch.eye(2).to_sparse().requires_grad_()
        self.memory = self.first.detach().untyped_storage()
"""
CHECKED = """
net, optimizer = loaded
weight = net.first
assert type(weight).__name__ == "Weight" and isinstance(weight, torch.nn.Parameter)
assert weight is net.second and optimizer.param_groups[0]["params"][0] is weight
assert weight.is_leaf and weight.requires_grad and weight.owner is net
assert type(net.frozen) is type(weight) and not net.frozen.requires_grad
assert net.table.requires_grad and net.table.is_leaf
assert list(dict(net.named_parameters())) == ["first", "frozen"]
assert weight.scaled().tolist() == [0.0, 2.0, 4.0]
weight.sum().backward()
assert weight.grad.tolist() == [2.0, 2.0, 2.0]
optimizer.step()
assert weight.tolist() == [-2.0, -1.0, 0.0]
assert type(net.memory) is torch.UntypedStorage
assert net.memory.data_ptr() == weight.data_ptr()
"""


def saved(project, path, **options):
    project({"net.py": SOURCE})
    from net import Net

    net = Net()
    with modpack.PackageExporter(path) as exporter:
        exporter.intern("net")
        optimizer = torch.optim.SGD([net.first], 1.0)
        exporter.save_pickle("model", "model.pkl", (net, optimizer), **options)
    return path


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_parameter_classes_are_kept_in_package(project, tmp_path, clean_python, namespace):
    path = saved(project, tmp_path / "net.modpack")
    head = """
        import modpack, torch
        importer = modpack.PackageImporter(path, namespace=namespace)
        loaded = importer.load_pickle("model", "model.pkl")
    """
    clean_python(textwrap.dedent(head) + CHECKED, path=path, namespace=namespace)


def test_parameter_classes_of_script_are_kept(tmp_path, clean_python):
    script = """
        import modpack
        net = Net()
        kept = Weight(torch.ones(1))
        def of_global():
            return kept
        with modpack.PackageExporter(path) as exporter:
            loaded = (net, torch.optim.SGD([net.first], 1.0))
            exporter.save_pickle("model", "model.pkl", (*loaded, of_global))
    """
    clean_python(SOURCE + textwrap.dedent(script), path=tmp_path / "net.modpack")
    head = """
        import modpack, torch
        *loaded, of_global = modpack.PackageImporter(path).load_pickle("model", "model.pkl")
        assert type(of_global()) is type(loaded[0].first)
    """
    clean_python(textwrap.dedent(head) + CHECKED, path=tmp_path / "net.modpack")


def test_torch_package_reads_parameter_classes(project, tmp_path):
    project({"net.py": SOURCE})
    from net import Weight

    weight = Weight(torch.arange(3.0))
    weight.factor = 2.0
    with modpack.PackageExporter(tmp_path / "w.pt") as exporter:
        exporter.intern("net")
        table = torch.eye(2).to_sparse().requires_grad_()
        exporter.save_pickle("m", "w.pkl", (weight, weight, table), pickle_protocol=3)
    importer = torch.package.PackageImporter(str(tmp_path / "w.pt"))
    loaded, again, table = importer.load_pickle("m", "w.pkl")
    assert type(loaded).__name__ == "Weight" and loaded is again and loaded.is_leaf
    assert loaded.requires_grad and loaded.scaled().tolist() == [0.0, 2.0, 4.0]
    assert table.requires_grad and table.is_leaf


def test_parameter_classes_have_no_pickle_findings(project, tmp_path):
    path = saved(project, tmp_path / "net.modpack")
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        code = list_code(archive, manifest)
        assert list(pickle_findings(archive, manifest, code)) == []
        assert "net.Weight" in [str(name) for names in code.names().values() for name in names]


def test_parameter_classes_are_saved_reproducibly(project, tmp_path):
    content = set()
    for _ in range(2):
        content.add(saved(project, tmp_path / "net.modpack").read_bytes())
    assert len(content) == 1
