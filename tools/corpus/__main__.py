"""Package models of real libraries without rules, and load them without the libraries.

``make corpus`` creates an environment and runs all recipes. ``python tools/corpus --only NAME...``
runs some recipes in the current environment. The files and the log of a recipe are in
``build/corpus/NAME``, and its results in ``build/corpus/NAME.json``. ``--write`` generates the page
from all results. ``--trained`` saves each model after a training step, in another folder.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from page import rendered, told
from runner import Case, Result

ROOT = Path(__file__).parents[2]
RECIPES = Path(__file__).parent / "recipes"
PAGE = ROOT / "docs" / "reference" / "corpus.md"
#: Small models of libraries with few dependencies.
FAST = ("einops_layers", "entmax_sparse", "hydra_configured", "zuko_flow", "transformers_bert")


def main() -> int:
    """Run recipes. The exit status is 1 if any fails with modpack or, with --fast, is refused."""
    options = _arguments()
    names = options.only or (list(FAST) if options.fast else recipe_names())
    with ThreadPoolExecutor(options.jobs) as workers:
        results = list(workers.map(lambda name: _run(name, options), names))
    refused = [result for result in results if result.modpack.refusal]
    failed = [r for r in results if not r.modpack.passed and (options.fast or r not in refused)]
    passed = sum(result.modpack.passed for result in results)
    print(f"{passed} of {len(results)} passed, {len(refused)} refused")
    for line in told(results):
        print(line)
    if options.write:
        PAGE.write_text(rendered(_all_results(options.folder)), encoding="utf-8")
    return int(bool(failed))


def recipe_names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(file.stem for file in RECIPES.glob("[a-z]*.py"))


def _run(name: str, options: argparse.Namespace) -> Result:
    started = time.perf_counter()
    folder, file = options.folder / name, options.folder / f"{name}.json"
    previous = Result.from_json(file.read_text()) if file.exists() else None
    case = Case(name, folder, options.trained)
    result = case.run(with_torch_package=not (options.no_torch or options.trained))
    if options.no_torch and previous is not None:
        result.torch = previous.torch
    file.write_text(result.as_json())
    seconds = time.perf_counter() - started
    torch = "" if options.no_torch else f"; torch.package: {result.torch.failure or 'passed'}"
    refused = result.modpack.refusal and f"refused: {result.modpack.refusal}"
    print(
        f"{name}: {refused or result.modpack.failure or 'passed'}{torch} ({seconds:.0f} s)",
        flush=True,
    )
    for leftover in ("bare", "bare-torch", "cache"):
        shutil.rmtree(folder / leftover, ignore_errors=True)
    return result


def _all_results(folder: Path) -> list[Result]:
    """Return the results of each recipe, from this run or an earlier one."""
    files = (folder / f"{name}.json" for name in recipe_names())
    return [Result.from_json(file.read_text()) for file in files if file.exists()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tools/corpus", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=recipe_names())
    parser.add_argument("--fast", action="store_true", help=f"only {', '.join(FAST)}")
    parser.add_argument(
        "--no-torch", action="store_true", help="skip torch.package and keep its earlier results"
    )
    parser.add_argument(
        "--trained", action="store_true", help="save after a training step; without torch.package"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of recipes to run in parallel")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--folder", type=Path, help="folder for all files; default: build/corpus")
    options = parser.parse_args()
    default = ROOT / "build" / ("corpus-trained" if options.trained else "corpus")
    options.folder = (options.folder or default).resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
