"""The behavior of the demo's model on the test images, observed and compared."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from modpack import Action

MIN_ACCURACY = 0.95
"""The lowest test accuracy of a model worth packaging."""
CLIP = 0.0625
"""The gradient clip of the sample project."""

_BATCH = 64
_DATA = Path(__file__).parents[2] / "fixtures" / "data" / "digits" / "digits.csv.gz"


class Digits(NamedTuple):
    """Images and their labels.

    Attributes:
        images: float32 of shape ``(n, 8, 8)``, each pixel from 0 (paper) to 16 (ink).
        labels: int64 of shape ``(n,)``, from 0 to 9.
    """

    images: Tensor
    labels: Tensor


def load_digits() -> tuple[Digits, Digits]:
    """Read the data set, with every fifth sample for testing.

    Returns:
        The training set and the test set, which are always the same.
    """
    with gzip.open(_DATA, "rt", encoding="ascii", newline="") as lines:
        rows = torch.tensor([[int(cell) for cell in row] for row in csv.reader(lines)])
    images, labels = rows[:, :64].float().reshape(-1, 8, 8), rows[:, 64]
    tested = torch.arange(len(rows)) % 5 == 0
    return Digits(images[~tested], labels[~tested]), Digits(images[tested], labels[tested])


class Observation(NamedTuple):
    """The behavior of a model on the test images.

    Attributes:
        logits: All logits.
        accuracy: Accuracy, from 0 to 1.
        normalize_calls: Number of calls of the pre-hook that scales pixels.
        feature_maps: The values that the hook on the features collected, one of each call.
        rejection: Error message of the hook that checks shapes. Empty if it raised no error.
        gradients: All gradients after one backward pass.
    """

    logits: Tensor
    accuracy: float
    normalize_calls: int
    feature_maps: Sequence[Tensor]
    rejection: str
    gradients: Sequence[Tensor]

    @property
    def hooks(self) -> str:
        """The hook calls, on one line."""
        shapes = "1 wrong shape rejected" if self.rejection else "wrong shape accepted"
        calls = f"normalize {self.normalize_calls}, feature maps {len(self.feature_maps)}"
        return f"{calls}, {shapes}"


def observe(model: Any, test: Digits) -> Observation:
    """Run a model on the test images, and return its outputs and hook calls.

    Args:
        model: The network. The counters of its hooks are reset.
        test: The test images and their labels.
    """
    model.eval()
    model.feature_maps.reset()
    model.normalize.calls = 0
    with torch.inference_mode():
        logits = torch.cat([model(batch) for batch in torch.split(test.images, _BATCH)])
    normalized, maps = model.normalize.calls, list(model.feature_maps.means)
    model.zero_grad()
    nll_loss(model(test.images[:_BATCH]), test.labels[:_BATCH]).backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return Observation(
        logits,
        (logits.argmax(dim=1) == test.labels).double().mean().item(),
        normalized,
        maps,
        error_message(ValueError, lambda: model(torch.zeros(1, 8, 9))),
        gradients,
    )


def error_message(expected: type[Exception], do: Callable[[], object]) -> str:
    """Return the message of the exception that a function raises; empty if it raises none."""
    try:
        do()
    except expected as error:
        return str(error)
    return ""


class Check(NamedTuple):
    """An expectation, whether it is met, and the evidence."""

    expectation: str
    passed: bool
    evidence: str


def compare(
    trained: Observation,
    reloaded: Observation,
    mocked: str,
    decided: Mapping[str, Action],
    announced: Sequence[tuple[Action, str]],
) -> tuple[Check, ...]:
    """Compare the reloaded model with the trained one.

    Args:
        trained: The observation of the trained model.
        reloaded: The observation of the reloaded model.
        mocked: Error message of a mocked class. Empty if using it raised no error.
        decided: The decision about each module.
        announced: The calls of the match hooks.
    """
    largest = max(gradient.abs().max().item() for gradient in reloaded.gradients)
    fired = reloaded.normalize_calls and reloaded.feature_maps and reloaded.rejection
    same_calls = (reloaded.normalize_calls, reloaded.rejection) == (
        trained.normalize_calls,
        trained.rejection,
    )
    return (
        Check(
            f"test accuracy is above {MIN_ACCURACY:.0%}",
            reloaded.accuracy > MIN_ACCURACY,
            f"{reloaded.accuracy:.1%} of {len(reloaded.logits)}",
        ),
        Check(
            "predictions are bit-identical",
            _are_equal([reloaded.logits], [trained.logits]),
            f"{reloaded.logits.numel()} logits",
        ),
        Check(
            "the hooks fire and collect the same values",
            bool(fired) and same_calls and _are_equal(reloaded.feature_maps, trained.feature_maps),
            reloaded.hooks,
        ),
        Check(
            "gradients are clipped and bit-identical",
            _are_equal(reloaded.gradients, trained.gradients) and largest <= CLIP,
            f"{len(reloaded.gradients)} gradients, the largest value is {largest:.3f}",
        ),
        Check("the mock raises an error only when used", bool(mocked), mocked or "no error"),
        Check(
            "each module is announced once to its match hook",
            sorted(announced) == sorted((action, module) for module, action in decided.items()),
            f"{len(announced)} calls for {len(decided)} modules",
        ),
    )


def _are_equal(found: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    pairs = zip_longest(found, expected, fillvalue=torch.empty(0))
    return all(torch.equal(each, other) for each, other in pairs)
