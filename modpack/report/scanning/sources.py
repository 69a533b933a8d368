"""What the sources of a package do to the world around them when they are imported."""

from __future__ import annotations

from collections.abc import Iterator

from modpack.discovery.effects import import_effects
from modpack.report.auditing.facts import Finding
from modpack.report.auditing.findings import finding

__all__ = ["source_effects"]


def source_effects(record: str, source: bytes) -> Iterator[Finding]:
    """What a module does when it is imported, as far as its source shows.

    Args:
        record: the record that holds it.
        source: its content.
    """
    for effect in import_effects(source):
        where = f" in {effect.within}" if effect.within else ""
        text = f"{record} calls {effect.call}{where} when it is imported"
        place = f"{record}:{effect.line}"
        yield finding(f"import-effect-{effect.kind.value}", effect.call, text, place)
