"""Measure the time of the commands that read a package, as processes on a large package.

``make bench-commands`` builds the package, times every command and an empty Python process, checks
whether the command imports torch, and writes a part of a page. ``--only`` measures some commands
and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from synthetic import Synthetic, build, files_in

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from marks import replaced

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "performance.md"
REPETITIONS = 5

Arguments = Callable[[Synthetic], Sequence[str]]

COMMANDS: Mapping[str, Arguments] = {
    "inspect FILE": lambda package: ["inspect", str(package.first)],
    "inspect FILE --json": lambda package: ["inspect", str(package.first), "--json"],
    "audit FILE": lambda package: ["audit", str(package.first)],
    "audit FILE --json": lambda package: ["audit", str(package.first), "--json"],
    "why FILE MODULE": lambda package: ["why", str(package.first), package.deepest],
    "diff A B": lambda package: ["diff", str(package.first), str(package.second)],
    "requirements FILE": lambda package: ["requirements", str(package.first)],
    "sbom FILE": lambda package: ["sbom", str(package.first)],
    "report FILE": lambda package: ["report", str(package.first), "-o", os.devnull, "--force"],
}


@dataclass(frozen=True)
class Measured:
    """The result of one command.

    Attributes:
        name: Name and arguments of the command.
        seconds: Median of its wall-clock times.
        imports_torch: Whether it imported torch.
    """

    name: str
    seconds: float
    imports_torch: bool


def main() -> int:
    """Build the package, measure the commands, and write the part of the page."""
    options = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        package = _build(folder)
        empty = _median([sys.executable, "-c", "pass"])
        print(f"{'python -c pass':24} {empty:6.3f} s", flush=True)
        results = []
        for name in options.only or COMMANDS:
            results.append(_measured(name, COMMANDS[name](package)))
            print(f"{name:24} {results[-1].seconds:6.3f} s", flush=True)
        if options.only is None:
            part = _part(package, empty, results)
            PAGE.write_text(replaced(PAGE, "make bench-commands", part), encoding="utf-8")
    return int(any(result.imports_torch for result in results))


def _build(folder: Path) -> Synthetic:
    """Build the package, or return that of an earlier run."""
    if (folder / "second.modpack").exists():
        return files_in(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return build(folder)


def _measured(name: str, arguments: Sequence[str]) -> Measured:
    command = [sys.executable, "-m", "modpack", *arguments]
    return Measured(name, _median(command), _imports_torch(arguments))


def _median(command: Sequence[str]) -> float:
    return statistics.median(_seconds(command) for _ in range(REPETITIONS))


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    _run(command)
    return time.perf_counter() - started


def _run(command: Sequence[str]) -> str:
    """Run a command. An exit status of 1 means findings and is valid."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    return done.stderr


def _imports_torch(arguments: Sequence[str]) -> bool:
    """Return whether ``-X importtime`` lists torch for a command."""
    log = _run([sys.executable, "-X", "importtime", "-m", "modpack", *arguments])
    return any(line.rpartition("|")[2].strip() == "torch" for line in log.splitlines())


def _part(package: Synthetic, empty: float, results: Sequence[Measured]) -> str:
    text = _TEXT.format(
        facts=_facts(package.first),
        empty=empty,
        torch=_median([sys.executable, "-c", "import torch"]),
        python=platform.python_version(),
        cores=os.cpu_count(),
        repetitions=REPETITIONS,
    )
    parts = [
        textwrap.fill(text, 105).replace("~", " "),
        _HEAD + "".join(map(_row, results)),
    ]
    return "\n\n".join(parts)


def _row(result: Measured) -> str:
    torch = "yes" if result.imports_torch else "no"
    return f"| `modpack {result.name}` | {result.seconds:.2f} s | {torch} |\n"


def _facts(file: Path) -> str:
    from modpack.core.rules import Action
    from modpack.report.package_info import package_facts

    facts = package_facts(file)
    count = {action: sum(m.action is action for m in facts.modules) for action in Action}
    imports = sum(len(module.importers) for module in facts.modules)
    return (
        f"{count[Action.INTERN]:,} interned, {count[Action.MOCK]} mocked, and "
        f"{count[Action.EXTERN]} extern modules, {imports:,} import edges, "
        f"{len(facts.hooks)} hooks, and {facts.size_bytes / 1e6:.1f} MB"
    )


#: A tilde is a space without a line break.
_TEXT = (
    "Median wall-clock time of each command in {repetitions} new processes, on {cores} cores with "
    "Python {python}. The commands read a generated package with {facts}. For comparison, "
    "`python~-c~pass` takes {empty:.2f} s, and `python~-c~'import~torch'` {torch:.2f} s."
)

_HEAD = """\
| command | time | imports torch |
|---|---:|---|
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/commands.py", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="COMMAND", choices=COMMANDS)
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="build in this folder, or reuse its package",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
