"""Settings of torch that a model depends on: recorded, reported by save, compared by load."""

from __future__ import annotations

import warnings

import pytest
import torch

import modpack

SCALE = """
import torch
class Scale(torch.nn.Module):
    def forward(self, x):
        return x.double() * torch.full((2,), 0.1)
class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""

CHANGES = {
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
        "torch.set_default_dtype(torch.float64)",
    ),
    "default device": (
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_default_device(None),
        "torch.set_default_device('meta')",
    ),
    "float32 matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
        "torch.set_float32_matmul_precision('medium')",
    ),
    "deterministic algorithms": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
        "torch.use_deterministic_algorithms(True, warn_only=True)",
    ),
    "autocast": (
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.set_autocast_enabled("cpu", False),
        "with torch.autocast('cpu', torch.bfloat16): ...",
    ),
    "oneDNN": (
        lambda: setattr(torch.backends.mkldnn, "enabled", False),
        lambda: setattr(torch.backends.mkldnn, "enabled", True),
        "torch.backends.mkldnn.enabled = False",
    ),
}


@pytest.fixture
def changed():
    """Return a function that changes a setting of this process until the test ends."""
    undone = []

    def change(name: str) -> str:
        do, undo, statement = CHANGES[name]
        undone.append(undo)
        do()
        return statement

    yield change
    for undo in undone:
        undo()


@pytest.mark.parametrize("name", CHANGES)
def test_setting_is_reported_by_save_and_compared_by_load(name, changed, tmp_path):
    model = torch.nn.Linear(2, 2)
    statement = changed(name)
    with pytest.warns(modpack.ModpackWarning, match=name) as caught:
        modpack.save(model, tmp_path / "net.modpack", self_test=False)
    assert any(statement in str(each.message) for each in caught)
    with warnings.catch_warnings():  # this process has the setting
        warnings.simplefilter("error")
        modpack.load(tmp_path / "net.modpack")
    CHANGES[name][1]()
    with pytest.raises(modpack.EnvironmentMismatchError, match=name) as raised:
        modpack.load(tmp_path / "net.modpack", on_mismatch="error")
    assert statement in str(raised.value)
    modpack.load(tmp_path / "net.modpack", on_mismatch="ignore")


def test_default_settings_are_not_reported(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modpack.save(torch.nn.Linear(2, 2), tmp_path / "net.modpack", self_test=False)
        modpack.load(tmp_path / "net.modpack", on_mismatch="error")


def test_setting_that_example_outputs_depend_on_is_reported(project, changed, tmp_path):
    project({"scaled.py": SCALE})
    import scaled

    changed("default dtype")
    example = (torch.ones(2, dtype=torch.float32),)
    with pytest.warns(modpack.ModpackWarning, match="default dtype torch.float64"):
        modpack.save(
            scaled.Scale(), tmp_path / "net.modpack", example_inputs=example, self_test=True
        )
    CHANGES["default dtype"][1]()
    with pytest.warns(modpack.EnvironmentMismatchWarning, match="default dtype"):
        modpack.load(tmp_path / "net.modpack")


def test_setting_that_no_example_output_depends_on_is_not_reported(project, changed, tmp_path):
    project({"scaled.py": SCALE})
    import scaled

    changed("default dtype")
    example = (torch.ones(2, dtype=torch.float32),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modpack.save(
            scaled.Double(), tmp_path / "net.modpack", example_inputs=example, self_test=True
        )
    CHANGES["default dtype"][1]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modpack.load(tmp_path / "net.modpack")
