"""The handwritten digits that the demo reads, as tensors."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from modpack.errors import ModpackError

__all__ = ["Digits", "load_digits"]

HERE = Path(__file__).parent
PLACES = (
    HERE / "data" / "digits.csv.gz",
    HERE.parent.parent / "fixtures" / "data" / "digits" / "digits.csv.gz",
)
"""Where the file lies in an installed modpack, and in its source tree."""


@dataclass(frozen=True)
class Digits:
    """Some images and what they show.

    Attributes:
        images: float32 of shape ``(n, 8, 8)``, each pixel from 0 (paper) to 16 (ink).
        labels: int64 of shape ``(n,)``, from 0 to 9.
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, wanted: Tensor) -> Digits:
        """The samples that a boolean mask of shape ``(n,)`` selects."""
        return Digits(self.images[wanted], self.labels[wanted])


def load_digits() -> tuple[Digits, Digits]:
    """Read the data set: four fifths to train on, every fifth sample to test with.

    Returns:
        The training part and the test part; always the same ones.

    Raises:
        ModpackError: if the data file is missing.
    """
    everything = _read(_data_file())
    tested = torch.arange(len(everything)) % 5 == 0
    return everything.where(~tested), everything.where(tested)


def _data_file() -> Path:
    for place in PLACES:
        if place.is_file():
            return place
    looked = " and ".join(str(place) for place in PLACES)
    raise ModpackError(f"the demo's data set is missing; looked for {looked}. Reinstall modpack")


def _read(file: Path) -> Digits:
    with gzip.open(file, "rt", encoding="ascii", newline="") as lines:
        rows = torch.tensor([[int(cell) for cell in row] for row in csv.reader(lines)])
    return Digits(rows[:, :64].float().reshape(-1, 8, 8), rows[:, 64])
