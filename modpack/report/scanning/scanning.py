"""What a package could do to whoever loads it, found by reading its pickles and its sources."""

from __future__ import annotations

from modpack.archive.base import Archive
from modpack.archive.manifest import Manifest
from modpack.core.trust import TrustPolicy
from modpack.report.auditing.facts import Finding

__all__ = ["scan_package"]


def scan_package(
    archive: Archive, manifest: Manifest | None, policy: TrustPolicy | None = None
) -> tuple[Finding, ...]:
    """Everything in a package that reading alone shows to be, or to be possibly, harmful.

    Args:
        archive: an opened package.
        manifest: its manifest; None for a package of torch.package.
        policy: what the loader allows beyond the built-in list of names in pickles.
    """
    raise NotImplementedError
