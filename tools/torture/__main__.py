"""Packages under torture: interrupted exports, crowds, mutants, hostile archives.

``python tools/torture`` takes some minutes and prints a table; ``--write`` writes it to
``docs/reference/torture.md``; ``--fast`` does a tenth of the work. The exit status is 1 if anything
was damaged, silent or wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hostiles
import torch
from benign import benign
from crowds import cache_fills, readers_and_writers
from fuzzing import fuzz
from interruptions import Interrupted, exceptions, file_size_limits, full_disks, kills
from mutants import Mutants, loaded, verified
from page import Row, rendered

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "torture.md"


def main() -> int:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--fast", action="store_true", help="a tenth of the work")
    options = parser.parse_args()
    torch.set_num_threads(1)  # children are forked, which threads would not survive
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODPACK_CACHE"] = folder
        rows = list(_rows(10 if options.fast else 1))
    page = rendered(rows)
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        sys.stdout.reconfigure(encoding="utf-8")
        print(page, end="")
    for row in rows:
        for wrong in row.wrong[:10]:
            print(f"{row.what}: {wrong}", file=sys.stderr)
    return int(any(row.wrong for row in rows))


def _rows(share: int) -> list[Row]:
    rows = [_of_interruptions(kills(200 // share), "SIGKILL at random moments")]
    rows.append(_of_interruptions(exceptions(100 // share), "an interrupt at random moments"))
    rows.append(_of_interruptions(file_size_limits(20), "a limit on file sizes (EFBIG), 20 sizes"))
    full = full_disks(20)
    if full is None:
        rows.append(Row("a full disk (ENOSPC), 20 sizes", 0, "not tried: no right to mount one"))
    else:
        rows.append(_of_interruptions(full, "a full disk (ENOSPC), 20 sizes"))
    crowd = readers_and_writers(10_000 // share)
    result = f"{crowd.meanwhile} rewrites meanwhile"
    rows.append(Row("opening and loading while it is rewritten", crowd.tries, result, crowd.wrong))
    fills = cache_fills(16, 20 // share)
    rows.append(Row("16 processes that fill one cache", fills.tries, "", fills.wrong))
    times = 10_000 // share
    rows.append(_of_mutants(verified(times), "mutants of good packages, verified"))
    rows.append(_of_mutants(loaded(times, "all"), 'mutants, loaded with `verify="all"`'))
    rows.append(_of_mutants(loaded(times, "code"), "mutants, loaded (tensors' numbers aside)"))
    rows += _of_archives(share)
    fuzzed = fuzz(1_000_000 // share // (10 if share > 1 else 1))
    result = f"{fuzzed.accepted:,} made data, all others were refused"
    rows.append(Row("pickles made at random, loaded as data", fuzzed.tries, result, fuzzed.wrong))
    good = benign()
    rows.append(Row("good packages, verified", good.tries, "accepted", good.wrong))
    return rows


def _of_archives(share: int) -> Iterator[Row]:
    looking = hostiles.looking(share)
    result = f"refused for {len(looking.messages)} reasons, {_most(looking)}"
    yield Row("hostile archives before commands", looking.tries, result, looking.wrong)
    loading = hostiles.loading(share)
    result = "refused before any code ran"
    yield Row("hostile archives before loaders", loading.tries, result, loading.wrong)
    flooded = hostiles.flooded(share * 4 if share > 1 else 1)  # they take two seconds each
    result = f"answered within {_most(flooded)}"
    yield Row("archives of up to 10 MB made to exhaust", flooded.tries, result, flooded.wrong)


def _most(judged: hostiles.Judged) -> str:
    return f"{judged.peak >> 20} MiB and {judged.seconds:.1f} s at most"


def _of_mutants(found: Mutants, what: str) -> Row:
    return Row(what, found.tries, f"{found.refused} refused, {found.same} the same", found.wrong)


def _of_interruptions(found: Interrupted, what: str) -> Row:
    result = f"the old package {found.old} times, the new one {found.new} times, whole"
    return Row(what, found.tries, result, found.wrong)


if __name__ == "__main__":
    sys.exit(main())
