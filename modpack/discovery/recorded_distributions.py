"""Recording of installed distributions and their requirements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from modpack.core.environment import RecordedDistribution
from modpack.core.names import normalized

if TYPE_CHECKING:
    from modpack.discovery.distributions import (
        DistributionIndex,
        InstalledDistribution,
        LazyDistribution,
    )


def recorded_closure(
    index: DistributionIndex, needed: Iterable[InstalledDistribution]
) -> Mapping[str, RecordedDistribution]:
    """Record installed distributions and their installed requirements.

    Args:
        index: Index of the installed distributions.
        needed: Distributions to start from.

    Returns:
        The recorded distributions by normalized name.
    """
    found = {normalized(each.name): each for each in needed}
    # Closures include indirect requirements, so the added ones need no visit of their own.
    for each in list(found.values()):
        for name in index.required_closure(each):
            required = index.named(name)
            if required is not None:
                found.setdefault(name, required)
    entries = {name: index.installation_of(found[name]) for name in sorted(found)}
    return {name: _recorded(entry, found[name]) for name, entry in entries.items()}


@lru_cache(maxsize=2048)
def _recorded(entry: LazyDistribution | None, found: InstalledDistribution) -> RecordedDistribution:
    """Record a distribution. Cached: a changed installation is a different object."""
    origin = entry.origin if entry is not None else {}
    return RecordedDistribution(
        found.name,
        found.version,
        found.editable,
        entry.license if entry is not None else None,
        tuple(sorted(found.requires)),
        _hashes(origin),
        _address(origin),
    )


def _hashes(origin: Mapping[str, object]) -> Mapping[str, str]:
    """Return the digests of the installed wheel or source distribution."""
    archive = _part(origin, "archive_info")
    hashes = {f"{name}={digest}" for name, digest in _part(archive, "hashes").items()}
    stated = sorted(hashes | {str(archive.get("hash"))})
    known = r"(sha256|sha384|sha512)=([0-9a-f]+)"
    matches = filter(None, (re.fullmatch(known, each) for each in stated))
    return {match[1]: match[2] for match in matches}


def _address(origin: Mapping[str, object]) -> str | None:
    """Return the URL to install the same distribution from a network, without credentials."""
    try:
        parts = urlsplit(str(origin.get("url", "")))
    except ValueError:
        return None
    if parts.scheme not in ("http", "https", "ssh"):
        return None
    folder = origin.get("subdirectory")
    fragment = f"subdirectory={folder}" if folder else ""
    # Passwords and tokens in the address must not get into the package.
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme == "ssh" and user:
        host = f"{user.partition(':')[0]}@{host}"  # the user name of SSH is not a secret
    plain = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    vcs = _part(origin, "vcs_info")
    if vcs:
        plain = f"{vcs.get('vcs')}+{plain}@{vcs.get('commit_id')}"
    elif not _part(origin, "archive_info"):
        return None
    return f"{plain}#{fragment}" if fragment else plain


def _part(whole: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = whole.get(key)
    return part if isinstance(part, dict) else {}
