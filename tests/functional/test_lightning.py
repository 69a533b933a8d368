"""A loaded LightningModule that Lightning trains is saved again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import lightning, torch

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(x)

    def training_step(self, batch, index):
        return (self(batch[0]) - 1).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
SAVE = """
import modpack, nets, torch
modpack.save(nets.Net(), "net.modpack", example_inputs=torch.eye(2))
"""
FIT = """
import lightning, modpack, torch
from torch.utils.data import DataLoader, TensorDataset

model = modpack.load("net.modpack")
data = DataLoader(TensorDataset(torch.eye(2)), batch_size=2)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, default_root_dir="runs")
trainer.fit(model, data)
modpack.save(model, "tuned.modpack", example_inputs=torch.eye(2))
"""
RESUME = """
import glob, lightning, modpack, torch

tuned = modpack.load("tuned.modpack")
(checkpoint,) = glob.glob("**/*.ckpt", recursive=True)
state = torch.load(checkpoint, weights_only=False)["state_dict"]
assert tuned.state_dict().keys() == state.keys()
assert all(torch.equal(tuned.state_dict()[key], state[key]) for key in state)
first = modpack.load("net.modpack")
assert not torch.equal(first.linear.weight, tuned.linear.weight)
print(type(tuned).__name__, isinstance(tuned, lightning.LightningModule))
"""


def test_model_that_lightning_has_trained_is_saved_again(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="make corpus installs lightning")
    (tmp_path / "nets.py").write_text(MODULE)
    for script in SAVE, FIT, RESUME:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        (tmp_path / "nets.py").unlink(missing_ok=True)
    assert done.stdout == "Net True\n"
