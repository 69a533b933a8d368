"""The hooks that travel with the network."""

from torch import Tensor, nn


def refuse_wrong_shapes(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    """A forward pre-hook: nothing but stacks of 8 x 8 images gets through."""
    if args[0].shape[1:] != (8, 8):
        raise ValueError(f"expected images of shape (n, 8, 8), not {tuple(args[0].shape)}")


class Normalize:
    """A forward pre-hook that remembers the training data's mean and spread."""

    def __init__(self, training_images: Tensor) -> None:
        self.mean = training_images.mean()
        self.spread = training_images.std()
        self.calls = 0

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        """Replace the raw pixels by normalized ones."""
        self.calls += 1
        return ((args[0] - self.mean) / self.spread,)


class FeatureMaps:
    """A forward hook that collects how strongly each feature map lights up."""

    def __init__(self) -> None:
        self.strengths: list[Tensor] = []

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep one figure for each of the output's channels."""
        self.strengths.append(output.detach().mean(dim=(0, 2, 3)))

    @property
    def calls(self) -> int:
        """How often the hook has fired since the last reset."""
        return len(self.strengths)

    def reset(self) -> None:
        """Forget everything collected."""
        self.strengths.clear()
