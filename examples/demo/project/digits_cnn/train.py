"""The training loop. The network does not import it, so the package does not contain it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .model import DigitsNet


def fit(
    model: DigitsNet, images: Tensor, labels: Tensor, epochs: int, batch: int = 32
) -> Iterator[tuple[float, float]]:
    """Train, and yield each epoch's mean loss and accuracy on the training data."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=8e-3, total_steps=epochs * -(-len(images) // batch)
    )
    for _ in range(epochs):
        model.train()
        loss_sum, right = 0.0, 0
        for indices in torch.randperm(len(images)).split(batch):
            logits = model(images[indices])
            loss = nn.functional.cross_entropy(logits, labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            loss_sum += loss.item() * len(indices)
            right += int((logits.argmax(dim=1) == labels[indices]).sum())
        yield loss_sum / len(images), right / len(images)
