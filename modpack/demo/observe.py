"""Put a model to the test; the same code does it before the export and after the reload."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from modpack.demo.digits import Digits
from modpack.demo.facts import Observation

__all__ = ["SHOWN", "THREADS", "Model", "observe"]

THREADS = 1
"""The number of threads decides in which order floats are added, so both sides use the same.
One is fast enough for so small a network, and does not suffer where cores are busy."""
BATCH = 64
SHOWN = 8


class FeatureMaps(Protocol):
    """The hook that collects feature maps."""

    calls: int
    strengths: list[Tensor]

    def reset(self) -> None:
        """Forget what was collected."""


class Normalise(Protocol):
    """The hook that scales the pixels."""

    calls: int


class Model(Protocol):
    """What the demo needs to know of a network whose class it may not import."""

    feature_maps: FeatureMaps
    normalise: Normalise

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``(n, 8, 8)`` to log-probabilities ``(n, 10)``."""

    def eval(self) -> object:
        """Switch to inference."""

    def parameters(self) -> Iterable[Tensor]:
        """What is trained."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def report(self, losses: Sequence[float], accuracies: Sequence[float]) -> str:
        """Draw the curves of a training run."""


def observe(model: Model, test: Digits) -> Observation:
    """Run a model over the test images, and note its answers and what its hooks did.

    Args:
        model: the network; its hooks' counters start from 0.
        test: the test images and their labels.
    """
    model.eval()
    model.feature_maps.reset()
    model.normalise.calls = 0
    with torch.inference_mode():
        starts = range(0, len(test), BATCH)
        logits = torch.cat([model(test.images[at : at + BATCH]) for at in starts])
    read = logits.argmax(dim=1)
    return Observation(
        images=len(test),
        accuracy=(read == test.labels).double().mean().item(),
        logits=_digest([logits]),
        normalise_calls=model.normalise.calls,
        feature_map_calls=model.feature_maps.calls,
        feature_maps=_digest(model.feature_maps.strengths),
        refusal=_refusal(model),
        **_gradients(model, test),
        predictions=tuple(int(digit) for digit in read[:SHOWN]),
    )


def _gradients(model: Model, test: Digits) -> dict[str, Any]:
    """What one backward pass leaves on the parameters, after the hooks on them."""
    model.zero_grad()
    loss = nll_loss(model(test.images[:BATCH]), test.labels[:BATCH])
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    largest = max(gradient.abs().max().item() for gradient in gradients)
    model.zero_grad()
    return {"gradients": _digest(gradients), "largest_gradient": largest}


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def _refusal(model: Model) -> str:
    try:
        model(torch.zeros(1, 8, 9))
    except ValueError as error:
        return str(error)
    return ""
