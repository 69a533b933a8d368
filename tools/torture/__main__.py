"""Torture tests: interrupted exports, full disks, concurrent access, hostile archives.

``python tools/torture`` takes some minutes and prints a table. ``--write`` writes it to
``docs/explanation/what-a-package-may-do.md``. ``--fast`` runs a tenth of the attempts. The exit
status is 1 if anything was damaged or wrong. Random packages and pickles are the work of
``tests/property``.
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
from crowds import fill_cache, read_while_writing
from interruptions import fill_disks, interrupt_exports, kill_exports, limit_file_sizes
from packages import Tally

sys.path.append(str(Path(__file__).parents[1]))

from marks import replaced

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "what-a-package-may-do.md"
_HEAD = """\
Attempts to break packages, and their results.

- **Interrupted exports:** Each export runs in a new process, which is interrupted at a random
  moment. Then every byte of the target is compared with its manifest.
- **Hostile archives** each break one rule of the format. Every command that reads the broken part
  has to reject it with an error message, and no code of the archive may run.

| attack | attempts | result | damaged or wrong |
|---|---|---|---|
"""
_FOOT = """
Memory is counted without the interpreter's own. Seconds are CPU time. A *parse* is the time in
which Python parses 256 KiB of source at that moment; a command may take 40 of them.
`fixtures/hostile` generates the archives. `make torture` also runs the property tests, with fifty
times as many examples as `make test`: packages with changed bits, headers, lengths, or regions must
be rejected or equivalent to the good package, and random pickles load as data or not at all.

"""
_COMPLETE = "old package {old} times, new package {new} times, always complete"

Row = tuple[str, Tally, str]
"""Name of an attack, its tally, and a result text with counts in braces."""


def main() -> int:
    """Run all attacks and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--fast", action="store_true", help="run a tenth of the attempts")
    options = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive the forks of the children
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODPACK_CACHE_DIR"] = folder
        rows = list(_rows(10 if options.fast else 1))
    part = rendered(rows)
    if options.write:
        PAGE.write_text(replaced(PAGE, "make torture", part), encoding="utf-8")
    else:
        sys.stdout.reconfigure(encoding="utf-8")
        print(part, end="")
    for attack, tally, _ in rows:
        for failure in tally.wrong[:10]:
            print(f"{attack}: {failure}", file=sys.stderr)
    return int(any(tally.wrong for _, tally, _ in rows))


def rendered(rows: list[Row]) -> str:
    """Return the part of the page as Markdown."""
    lines = (
        f"| {attack} | {tally.tries:,} | {text.format_map(tally.counts)} | {len(tally.wrong)} |\n"
        for attack, tally, text in rows
    )
    footer = f"Measured with Python {platform.python_version()} on {platform.system()}."
    return f"{_HEAD}{''.join(lines)}{_FOOT}{footer}\n"


def _rows(share: int) -> Iterator[Row]:
    yield "SIGKILL at a random moment", kill_exports(200 // share), _COMPLETE
    yield "KeyboardInterrupt at a random moment", interrupt_exports(100 // share), _COMPLETE
    yield "file size limit (EFBIG), 20 sizes", limit_file_sizes(20), _COMPLETE
    full = fill_disks(20)
    result = "skipped: mounting a disk is not permitted" if full is None else _COMPLETE
    yield "full disk (ENOSPC), 20 sizes", full or Tally(), result
    rewritten = read_while_writing(10_000 // share)
    yield "open and load a package while it is rewritten", rewritten, "{rewrites} rewrites"
    yield "16 processes fill one cache", fill_cache(16, 20 // share), ""
    inspected = hostiles.run_commands(share)
    result = f"rejected with {len(inspected.messages)} different messages, {_resources(inspected)}"
    yield "run commands on hostile archives", inspected, result
    yield "load hostile archives", hostiles.run_loaders(share), "rejected before any code ran"
    flooded = hostiles.run_commands_on_floods(share * 4 if share > 1 else 1)  # two seconds each
    name = "run commands on archives of up to 10 MB that exhaust resources"
    yield name, flooded, _resources(flooded)


def _resources(tally: hostiles.HostileTally) -> str:
    parses = f" ({tally.parses:.1f} parses)" if tally.parses else ""
    return f"at most {tally.peak >> 20} MiB and {tally.seconds:.1f} s{parses}"


if __name__ == "__main__":
    sys.exit(main())
