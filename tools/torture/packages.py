"""What all kinds of torture share: packages, the check that one is whole, and a tally."""

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
    """What came of one kind of torture.

    Attributes:
        tries: how often it was done.
        wrong: what was damaged, silent or wrong, one sentence each.
        counts: what came of the others, by a word.
    """

    tries: int = 0
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Count what came of others as well."""
        self.tries += other.tries
        self.wrong += other.wrong
        self.counts += other.counts


def model(seed: int, size: int = 512, layers: int = 8) -> torch.nn.Module:
    """A model of some megabytes (``layers`` times 4 ``size`` squared bytes), by its seed."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(*(torch.nn.Linear(size, size) for _ in range(layers)))


def write(path: Path, made: torch.nn.Module) -> None:
    """Package a model."""
    modpack.save(made, path)


def digest_of_whole(path: Path) -> str:
    """The digest of a package in which every byte of every record is as its manifest says.

    Raises:
        modpack.ArchiveError: it is not.
    """
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        if manifest is None:
            raise AssertionError(f"{path} has no manifest")
        verify_records(archive, manifest, archive.names())
        return package_digest(archive)
