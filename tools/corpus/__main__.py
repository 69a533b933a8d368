"""Models of real libraries, packaged without a rule and loaded where the libraries are not.

``make corpus`` makes the environment and runs all recipes, one after the other.
``python tools/corpus --only NAME...`` runs some in the present environment. Everything of a
recipe, its log too, is in ``build/corpus/NAME``, and what came of it in
``build/corpus/NAME.json``. ``--write`` makes the page of all that is there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from page import rendered
from runner import Case, Result

ROOT = Path(__file__).parents[2]
RECIPES = Path(__file__).parent / "recipes"
PAGE = ROOT / "docs" / "reference" / "corpus.md"
#: Small, and of libraries that need few others.
FAST = ("einops_layers", "entmax_sparse", "hydra_configured", "zuko_flow", "transformers_bert")


def main() -> int:
    """Run recipes; the exit status is 1 if any fails with modpack, or is refused with --fast."""
    given = _arguments()
    names = given.only or (list(FAST) if given.fast else known())
    with ThreadPoolExecutor(given.jobs) as workers:
        results = list(workers.map(lambda name: _run(name, given), names))
    refused = [result for result in results if result.modpack.refusal]
    failed = [r for r in results if not r.modpack.passed and (given.fast or r not in refused)]
    passed = sum(result.modpack.passed for result in results)
    print(f"{passed} of {len(results)} passed, {len(refused)} refused")
    if given.write:
        PAGE.write_text(rendered(_all_results(given.folder)), encoding="utf-8")
    return int(bool(failed))


def known() -> list[str]:
    """The names of all recipes."""
    return sorted(file.stem for file in RECIPES.glob("[a-z]*.py"))


def _run(name: str, given: argparse.Namespace) -> Result:
    started = time.perf_counter()
    folder, file = given.folder / name, given.folder / f"{name}.json"
    known_before = Result.from_json(file.read_text()) if file.exists() else None
    result = Case(name, folder).run(beside_torch=not given.no_torch)
    if given.no_torch and known_before is not None:
        result.torch = known_before.torch
    file.write_text(result.as_json())
    took = time.perf_counter() - started
    torch = "" if given.no_torch else f"; torch.package: {result.torch.failure or 'passed'}"
    refused = result.modpack.refusal and f"refused: {result.modpack.refusal}"
    print(
        f"{name}: {refused or result.modpack.failure or 'passed'}{torch} ({took:.0f} s)", flush=True
    )
    for leftover in ("bare", "bare-torch", "cache"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
    return result


def _all_results(folder: Path) -> list[Result]:
    """What is known of each recipe, from this run or an earlier one."""
    files = (folder / f"{name}.json" for name in known())
    return [Result.from_json(file.read_text()) for file in files if file.exists()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tools/corpus", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=known())
    parser.add_argument("--fast", action="store_true", help=f"only {', '.join(FAST)}")
    parser.add_argument(
        "--no-torch", action="store_true", help="leave torch.package out; what is known of it stays"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many recipes at a time")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "corpus", help="for all files"
    )
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    given.folder.mkdir(parents=True, exist_ok=True)
    return given


if __name__ == "__main__":
    sys.exit(main())
