"""Packages that are tortured: an old one and a new one, and the check that one is whole."""

from __future__ import annotations

from pathlib import Path

import torch

import modpack
from modpack.archive.manifest import package_digest, read_manifest, verify_records
from modpack.archive.reader import open_archive

__all__ = ["digest_of_whole", "model", "write"]


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
