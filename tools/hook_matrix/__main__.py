"""The matrix of hooks: every kind in every shape, packaged and loaded again.

``python tools/hook_matrix`` prints the page that holds the table, ``--write`` writes it to
``docs/reference/hook-matrix.md``. It takes about half a minute.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from matrix import run
from page import rendered

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hook-matrix.md"


def main() -> int:
    """Run it; the exit status is 1 if anything came out otherwise than it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    write = parser.parse_args().write
    cells = run()
    page = rendered(cells)
    if write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        sys.stdout.reconfigure(encoding="utf-8")
        print(page, end="")
    return int(any("**" in cell.outcome for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
