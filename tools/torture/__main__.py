"""Packages under torture: interrupted exports, crowds, mutants, hostile archives.

``python tools/torture`` takes some minutes and prints a table; ``--write`` writes it to
``docs/reference/torture.md``; ``--fast`` does a tenth of the work. The exit status is 1 if anything
was damaged, silent or wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hostiles
import torch
from benign import benign
from crowds import cache_fills, readers_and_writers
from fuzzing import fuzz
from interruptions import exceptions, file_size_limits, full_disks, kills
from mutants import loaded, verified
from packages import Tally

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "torture.md"
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
_WHOLE = "the old package {old} times, the new one {new} times, whole"
_JUDGED = "{refused} refused, {same} the same"

Row = tuple[str, Tally, str]
"""What was done, what came of it, and that in words, with counts in braces."""


def main() -> int:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--fast", action="store_true", help="a tenth of the work")
    options = parser.parse_args()
    torch.set_num_threads(1)  # children are forked, which threads would not survive
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODPACK_CACHE_DIR"] = folder
        rows = list(_rows(10 if options.fast else 1))
    page = rendered(rows)
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        sys.stdout.reconfigure(encoding="utf-8")
        print(page, end="")
    for what, found, _ in rows:
        for wrong in found.wrong[:10]:
            print(f"{what}: {wrong}", file=sys.stderr)
    return int(any(found.wrong for _, found, _ in rows))


def rendered(rows: list[Row]) -> str:
    """The page, in Markdown."""
    lines = (
        f"| {what} | {found.tries:,} | {told.format_map(found.counts)} | {len(found.wrong)} |\n"
        for what, found, told in rows
    )
    made = f"Made with Python {platform.python_version()} on {platform.system()}."
    return f"{_HEAD}{''.join(lines)}\n{made}\n"


def _rows(share: int) -> Iterator[Row]:
    yield "SIGKILL at random moments", kills(200 // share), _WHOLE
    yield "an interrupt at random moments", exceptions(100 // share), _WHOLE
    yield "a limit on file sizes (EFBIG), 20 sizes", file_size_limits(20), _WHOLE
    full = full_disks(20)
    told = "not tried: no right to mount one" if full is None else _WHOLE
    yield "a full disk (ENOSPC), 20 sizes", full or Tally(), told
    crowd = readers_and_writers(10_000 // share)
    yield "opening and loading while it is rewritten", crowd, "{rewrites} rewrites meanwhile"
    yield "16 processes that fill one cache", cache_fills(16, 20 // share), ""
    times = 10_000 // share
    yield "mutants of good packages, verified", verified(times), _JUDGED
    yield 'mutants, loaded with `verify="full"`', loaded(times, "all"), _JUDGED
    yield "mutants, loaded (tensors' numbers aside)", loaded(times, "code"), _JUDGED
    looking = hostiles.looking(share)
    told = f"refused for {len(looking.messages)} reasons, {_most(looking)}"
    yield "hostile archives before commands", looking, told
    loading = hostiles.loading(share)
    yield "hostile archives before loaders", loading, "refused before any code ran"
    flooded = hostiles.flooded(share * 4 if share > 1 else 1)  # they take two seconds each
    told = f"answered within {_most(flooded)}"
    yield "archives of up to 10 MB made to exhaust", flooded, told
    fuzzed = fuzz(1_000_000 // share // (10 if share > 1 else 1))
    told = "{accepted:,} made data, all others were refused"
    yield "pickles made at random, loaded as data", fuzzed, told
    yield "good packages, verified", benign(), "accepted"


def _most(judged: hostiles.Judged) -> str:
    return f"{judged.peak >> 20} MiB and {judged.seconds:.1f} s at most"


if __name__ == "__main__":
    sys.exit(main())
