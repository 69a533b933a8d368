"""Packages, their integrity check, and tallies, shared by all attacks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

import modpack
from modpack.archive.manifest import package_digest, read_manifest, verify_records
from modpack.archive.reader import open_archive


@dataclass
class Tally:
    """The results of one kind of attack.

    Attributes:
        tries: Number of attempts.
        wrong: One sentence per failure.
        counts: Number of attempts by their outcome.
    """

    tries: int = 0
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def model(seed: int, size: int = 512, layers: int = 8) -> torch.nn.Module:
    """Return a model of ``4 * layers * size**2`` bytes."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(layers)))


def write(path: Path, model: torch.nn.Module) -> None:
    """Package a model."""
    modpack.save(model, path)


def verified_digest(path: Path) -> str:
    """Return the digest of a package after comparing every record with the manifest.

    Raises:
        modpack.errors.ArchiveError: If a record differs.
        AssertionError: If the package has no manifest.
    """
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        if manifest is None:
            raise AssertionError(f"{path} has no manifest")
        verify_records(archive, manifest, archive.names())
        return package_digest(archive)
