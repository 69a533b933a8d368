"""What the sources of a package do to the world around them when they are imported."""

from __future__ import annotations

from collections.abc import Iterator

from modpack.core.imports import ScanFailure
from modpack.discovery.effects import read_effects
from modpack.report.auditing.facts import Finding
from modpack.report.auditing.findings import finding

__all__ = ["source_effects"]


def source_effects(record: str, source: bytes) -> Iterator[Finding]:
    """What a module does when it is imported, as far as its source shows.

    Args:
        record: the record that holds it.
        source: its content.
    """
    effects = read_effects(source)
    if isinstance(effects, ScanFailure):
        place = f"{record}:{effects.line}" if effects.line is not None else record
        text = f"what {record} does when it is imported is unknown: {effects.reason}"
        yield finding("source-unreadable", record, text, place)
        return
    for effect in effects:
        where = f" in {effect.within}" if effect.within else ""
        text = f"{record} calls {effect.call}{where} when it is imported"
        place = f"{record}:{effect.line}"
        yield finding(f"import-effect-{effect.kind.value}", effect.call, text, place)
