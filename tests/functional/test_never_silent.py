"""Cases that once lost data, or used data from the wrong place, without a warning."""

from __future__ import annotations

import importlib
import io
import json
import types

import pytest
import torch

import modpack
from modpack.archive.reader import open_archive
from modpack.writing.writer import ArchiveWriter

THIS = __name__
X = torch.ones(1, 2)
NET = """
import torch
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x)
"""


def reloaded(model):
    buffer = io.BytesIO()
    modpack.save(model, buffer, extern=THIS)
    buffer.seek(0)
    return modpack.load(buffer)


def test_forward_bound_to_instance_is_included(project):
    project({"boundnet.py": NET.format(name="Net")})
    model = importlib.import_module("boundnet").Net()
    model.forward = types.MethodType(lambda self, x: self.fc(x) * 3, model)
    assert torch.equal(reloaded(model)(X), model(X))
    assert not torch.equal(model(X), type(model).forward(model, X))


def test_imports_of_script_function_are_packaged(project, clean_python, tmp_path):
    folder = project({"scripthelper.py": "value = 'packaged'"})
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch, modpack\n"
        "def hook(module, args, output):\n"
        "    import scripthelper\n"
        "    return output * 0 + len(scripthelper.value)\n"
        "model = torch.nn.Linear(2, 2)\n"
        "model.register_forward_hook(hook)\n"
        "print(modpack.save(model, sys.argv[2]).modules(modpack.Action.INTERN))\n"
        "scripthelper = __import__('scripthelper'); scripthelper.value = 'the host has another'\n"
        "print(modpack.load(sys.argv[2])(torch.ones(1, 2)).tolist())\n"
    )
    run = "import runpy, sys; sys.argv = argv; runpy.run_path(argv[0], run_name='__main__')"
    package = tmp_path / "net.modpack"
    done = clean_python(run, argv=[str(script), str(folder), str(package)])
    assert done.stdout.splitlines() == ["['script_definitions', 'scripthelper']", "[[8.0, 8.0]]"]


def test_hooks_on_rebuilt_parts_are_reported(project):
    source = NET.format(name="Net") + (
        "    def __reduce__(self):\n        return rebuild, (self.state_dict(),)\n"
        "def rebuild(state):\n    net = Net()\n    net.load_state_dict(state)\n    return net\n"
    )
    project({"rebuiltnet.py": source})
    model = importlib.import_module("rebuiltnet").Net()
    model.fc.register_forward_hook(lambda module, args, output: output * 0)
    model.fc.weight.register_hook(lambda gradient: gradient * 0)
    with modpack.PackageExporter(io.BytesIO()) as exporter:
        exporter.use_preset("pinned")
        with pytest.warns(modpack.ModpackWarning, match="Register it again after loading"):
            exporter.save_model("m", "m.pkl", model)
        statuses = {hook.name: hook.status for hook in exporter.hook_report()}
    assert statuses == {"fc/forward/0": "unsupported", "fc.weight/tensor/0": "unsupported"}


@pytest.mark.parametrize(
    "call",
    [
        "pkgutil.resolve_name('anchorhost:V')",
        "pkgutil.get_data('anchorhost', 'd.txt')",
        "importlib.resources.files('anchorhost')",
    ],
)
def test_string_import_cannot_reach_undeclared_host_module(project, call):
    files = {
        "anchoruser.py": f"import pkgutil, importlib.resources\ndef use(): return {call}",
        "anchorhost/__init__.py": "V = 1",
        "anchorhost/d.txt": "data",
    }
    project(files)
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.save_module("anchoruser")
    buffer.seek(0)
    module = modpack.PackageImporter(buffer).import_module("anchoruser")
    with pytest.raises(ModuleNotFoundError, match="Intern or extern 'anchorhost'"):
        module.use()


def test_hook_with_oddly_indented_string_is_saved():
    def make():
        def hook(module, args, output):
            """first
            second"""
            return output * 3

        return hook

    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(make())
    assert torch.equal(reloaded(model)(X), model(X))


def test_group_with_tensor_of_hook_only_loads():
    model, extra = torch.nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    tensors = [model.weight, extra]
    torch.autograd.graph.register_multi_grad_hook(tensors, lambda gradient: None, mode="any")
    model.register_forward_hook(lambda module, args, output: output + extra)
    assert torch.equal(reloaded(model)(X), model(X))


def test_inconsistent_specs_and_hooks_are_rejected(tmp_path):
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda module, args, output: output * 2)
    modpack.save(model, tmp_path / "good.modpack", extern=THIS)
    forged = tmp_path / "forged.modpack"
    with open_archive(tmp_path / "good.modpack") as archive, ArchiveWriter(forged) as writer:
        for name in archive.names():
            content = archive.read(name)
            if name.endswith(".pkl.json"):
                specs = json.loads(content)
                specs["hooks"][0]["name"] = "elsewhere/forward/0"
                content = json.dumps(specs).encode()
            if not name.startswith(".data/modpack/manifest"):
                writer.write(name, content)
        writer.commit()
    with pytest.raises(
        modpack.ModpackError, match="disagree about the hooks 'elsewhere/forward/0'"
    ):
        modpack.load(forged)
