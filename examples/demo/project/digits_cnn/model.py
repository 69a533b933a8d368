"""The network and its settings."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from . import plots
from .hooks import FeatureMaps, Normalize, reject_wrong_shapes


@dataclass(frozen=True)
class Settings:
    """The sizes of a :class:`DigitsNet`."""

    channels: int = 16
    hidden: int = 64
    dropout: float = 0.2
    classes: int = 10
    clip: float = 0.0625


class DigitsNet(nn.Module):
    """A small convolutional network for images of 8 x 8 pixels.

    Takes raw pixels, float32 of shape ``(n, 8, 8)``, and returns log-probabilities
    ``(n, classes)``. Without its hooks, its outputs would be wrong, and so would further training.
    """

    def __init__(self, settings: Settings, normalize: Normalize) -> None:
        super().__init__()
        self.settings = settings
        width = settings.channels
        self.features = nn.Sequential(
            nn.Conv2d(1, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * 4 * 4, settings.hidden),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(settings.hidden, settings.classes),
        )
        self.normalize = normalize
        self.feature_maps = FeatureMaps()
        self.register_forward_pre_hook(reject_wrong_shapes)
        self.register_forward_pre_hook(self.normalize)
        self.features.register_forward_hook(self.feature_maps)
        self.head.register_forward_hook(lambda head, args, scores: scores.log_softmax(dim=1))
        clip = settings.clip
        for parameter in self.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-clip, clip))

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each image and class."""
        scores: Tensor = self.head(self.features(images.unsqueeze(1)))
        return scores

    def report(self, losses: list[float], accuracies: list[float]) -> str:
        """Draw the training curves for a terminal."""
        return str(plots.TrainingSheet(losses, accuracies))
