"""The sources that the page shows, out of a package: text, nothing of it is run."""

from __future__ import annotations

import os
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import decode_source
from typing import Final

from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.core.actions import Action
from modpack.report.auditing.facts import AuditFacts
from modpack.report.facts import ModuleFacts
from modpack.report.html.drawn import depths_on_chains, previous_on_chains
from modpack.report.wording import human_size, printable

__all__ = ["PackagedSources", "nearest_sources", "packed", "read_sources"]

LARGEST: Final = 1 << 20
"""Bytes of one source that the page shows."""
MOST: Final = 48 << 20
"""Bytes of all sources together; compressed they are about a quarter of it."""
ROOM: Final = 600_000
"""Characters of the compressed sources: so the page of a large library's model has about 1.2 MB."""
_NO_ROOM: Final = "the page has room for those nearest to the model (--all-sources shows all)"


@dataclass(frozen=True)
class PackagedSources:
    """Sources of interned modules, as people read them.

    Attributes:
        texts: by module path.
        left_out: by module path: why its source is not shown.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


def read_sources(
    source: str | os.PathLike[str],
    modules: Iterable[ModuleFacts],
    largest: int = LARGEST,
    most: int = MOST,
) -> PackagedSources:
    """Read the sources of the interned modules of a package.

    Args:
        source: the package.
        modules: its modules.
        largest: bytes beyond which a source is left out.
        most: bytes of all sources beyond which the rest is left out.

    Raises:
        ArchiveError: it is no package, or a damaged one.
    """
    texts: dict[str, str] = {}
    left_out: dict[str, str] = {}
    with open_archive(source) as archive:
        manifest = read_manifest(archive)
        for module, record in _sources(modules):
            size = archive.size(record)
            if size > min(largest, most):
                left_out[module] = f"its {human_size(size)} are too many for this page"
                continue
            most -= size
            content = archive.read(record, verify=manifest)
            try:
                texts[module] = _readable(decode_source(content))
            except (SyntaxError, UnicodeError, LookupError) as failure:  # codecs raise them all
                left_out[module] = f"it is no source text: {failure}"
    return PackagedSources(texts, left_out)


def nearest_sources(
    sources: PackagedSources, audit: AuditFacts, room: int = ROOM
) -> PackagedSources:
    """Return the sources that a page has room for, in the order in which they matter.

    The code of no distribution comes first, which is one's own; then what is the fewest imports
    away from what was saved.

    Args:
        sources: what was read out of the package.
        audit: the audit of the package.
        room: characters that the compressed sources may take.
    """
    depths = depths_on_chains(previous_on_chains(audit.graph))
    others = {facts.module for facts in audit.modules if facts.distribution is not None}
    texts: dict[str, str] = {}
    left_out = dict(sources.left_out)
    for module in sorted(
        sources.texts, key=lambda each: (each in others, depths.get(each, len(depths)), each)
    ):
        size = len(packed(sources.texts[module]))
        if size > room:
            left_out[module] = _NO_ROOM
            continue
        texts[module] = sources.texts[module]
        room -= size
    return PackagedSources(texts, left_out)


def packed(text: str) -> str:
    """A text compressed (raw deflate, RFC 1951) and in base64, as the page unpacks it."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    content = compressor.compress(text.encode()) + compressor.flush()
    return b64encode(content).decode("ascii")


def _readable(text: str) -> str:
    """A source with everything escaped that could mislead. Line by line, which is fast."""
    return "\n".join(printable(line, keep="\t") for line in text.split("\n"))


def _sources(modules: Iterable[ModuleFacts]) -> Iterator[tuple[str, str]]:
    for facts in modules:
        if facts.action is Action.INTERN and facts.record and facts.record.endswith(".py"):
            yield facts.module, facts.record
