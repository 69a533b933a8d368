"""What a package records of the distributions that it needs where it is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

from modpack.core.environment import RecordedDistribution
from modpack.resolution.distributions import Distribution, DistributionIndex, normalised
from modpack.resolution.importpath import ORIGIN
from modpack.resolution.installation import Installation

__all__ = ["recorded_closure"]

_DIGEST = re.compile(r"(sha256|sha384|sha512)=([0-9a-f]+)")


def recorded_closure(
    index: DistributionIndex, needed: Iterable[Distribution]
) -> Mapping[str, RecordedDistribution]:
    """Some installed distributions and all that they require, as far as installed.

    Args:
        index: the installed distributions.
        needed: those to begin with.

    Returns:
        What there is to know of each, by its normalised name.
    """
    found = {normalised(each.name): each for each in needed}
    for each in list(found.values()):
        for name in index.required_closure(each):
            required = index.named(name)
            if required is not None:
                found.setdefault(name, required)
    entries = {name: index.installation_of(found[name]) for name in sorted(found)}
    return {name: _recorded(entry, found[name]) for name, entry in entries.items()}


@lru_cache(maxsize=2048)
def _recorded(entry: Installation | None, found: Distribution) -> RecordedDistribution:
    """Kept for the next export: an installation that changes is another object."""
    origin = _origin(entry.text(ORIGIN) if entry is not None else "")
    return RecordedDistribution(
        found.name,
        found.version,
        found.editable,
        entry.licence if entry is not None else None,
        tuple(sorted(found.requires)),
        _hashes(origin),
        _address(origin),
    )


def _origin(direct_url: str) -> Mapping[str, object]:
    """What pip was given to install a distribution (PEP 610); empty if it came from an index."""
    try:
        origin = json.loads(direct_url or "{}")
    except ValueError:  # not as PEP 610 has it
        return {}
    return origin if isinstance(origin, dict) else {}


def _hashes(origin: Mapping[str, object]) -> Mapping[str, str]:
    """The digests of the archive that was installed: a wheel, or a source distribution."""
    archive = _part(origin, "archive_info")
    hashes = {f"{name}={digest}" for name, digest in _part(archive, "hashes").items()}
    stated = sorted(hashes | {str(archive.get("hash"))})
    matches = filter(None, map(_DIGEST.fullmatch, stated))
    return {match[1]: match[2] for match in matches}


def _address(origin: Mapping[str, object]) -> str | None:
    """What to give to pip to install the same again from a network; without any credentials."""
    try:
        parts = urlsplit(str(origin.get("url", "")))
    except ValueError:
        return None
    if parts.scheme not in ("http", "https", "ssh"):
        return None
    folder = origin.get("subdirectory")
    fragment = f"subdirectory={folder}" if folder else ""
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme == "ssh" and user:
        host = f"{user.partition(':')[0]}@{host}"  # whom to log in as is no secret there
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
