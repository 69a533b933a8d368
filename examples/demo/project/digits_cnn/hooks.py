"""The hooks of the network."""

from torch import Tensor, nn


def reject_wrong_shapes(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Reject inputs other than batches of 8 x 8 images. A forward pre-hook."""
    if args[0].shape[1:] != (8, 8):
        raise ValueError(f"expected images of shape (n, 8, 8), not {tuple(args[0].shape)}")


class Normalize:
    """A forward pre-hook with the mean and standard deviation of the training data."""

    def __init__(self, training_images: Tensor) -> None:
        self.mean = training_images.mean()
        self.std = training_images.std()
        self.calls = 0

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        """Normalize the pixels."""
        self.calls += 1
        return ((args[0] - self.mean) / self.std,)


class FeatureMaps:
    """A forward hook that collects the mean activation of each feature map."""

    def __init__(self) -> None:
        self.means: list[Tensor] = []

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        """Store the mean of each output channel."""
        self.means.append(output.detach().mean(dim=(0, 2, 3)))

    @property
    def calls(self) -> int:
        """The number of calls since the last reset."""
        return len(self.means)

    def reset(self) -> None:
        """Remove all collected values."""
        self.means.clear()
