"""A LightningModule after an epoch of training."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIBRARIES = ("lightning",)
OPERATORS = "torchvision"


class Regression(lightning.LightningModule):
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        """Return the estimates."""
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        """Return the loss."""
        x, y = batch
        return nn.functional.mse_loss(self(x), y)

    def configure_optimizers(self):
        """Return an SGD optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def build():
    """Return the model and its inputs."""
    model = Regression()
    data = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=4))
    return model, (torch.randn(2, 4),)
