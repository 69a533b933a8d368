"""The page that holds the table."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Row", "rendered"]

_HEAD = """\
# Packages under torture

<!-- Made by `make torture`. Do not edit. -->

What was done to packages, how often, and what came of it. Each export runs in a process of its
own, which is interrupted at a random moment between its first instruction and a little after its
last; afterwards every byte of the target is compared with its manifest. A mutant is a good package
with bits, headers, lengths or whole regions changed. `modpack verify` must refuse it, or accept it
with the same records of the same contents; a loader must refuse it, or load what has the same
values and computes the same. Hostile archives are made by `fixtures/hostile`: each breaks one rule,
and every command that reads what is broken must refuse it in its own words, without a traceback,
and without anything of it having run. Memory is what a command takes beyond the interpreter itself,
and seconds are of processor time.

| what | times | what came of it | damaged or wrong |
|---|---|---|---|
"""


@dataclass
class Row:
    """One kind of torture.

    Attributes:
        what: what was done.
        tries: how often.
        result: what came of it.
        wrong: what was damaged, silent or wrong, one sentence each.
    """

    what: str
    tries: int
    result: str
    wrong: list[str] = field(default_factory=list)


def rendered(rows: Sequence[Row]) -> str:
    """The page, in Markdown."""
    lines = [f"| {r.what} | {r.tries:,} | {r.result} | {len(r.wrong)} |" for r in rows]
    made = f"Made with Python {platform.python_version()} on {platform.system()}."
    return _HEAD + "\n".join(lines) + f"\n\n{made}\n"
