"""How long the commands that look at a package take, on a large one, each as a process.

``make bench-commands`` builds the package, times every command beside a Python that does nothing,
looks whether it imported torch, and writes the reference page. ``--only`` and ``--keep`` are for
looking into one of them; nothing is written then.
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

from synthetic import Synthetic, build, known

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "command-speed.md"
REPETITIONS = 5

Arguments = Callable[[Synthetic], Sequence[str]]

COMMANDS: Mapping[str, Arguments] = {
    "inspect FILE": lambda made: ["inspect", str(made.first)],
    "inspect FILE --json": lambda made: ["inspect", str(made.first), "--json"],
    "audit FILE": lambda made: ["audit", str(made.first)],
    "audit FILE --json": lambda made: ["audit", str(made.first), "--json"],
    "why FILE MODULE": lambda made: ["why", str(made.first), made.deepest],
    "why FILE MODULE --all": lambda made: ["why", str(made.first), made.deepest, "--all"],
    "diff A B": lambda made: ["diff", str(made.first), str(made.second)],
    "requirements FILE": lambda made: ["requirements", str(made.first)],
    "sbom FILE": lambda made: ["sbom", str(made.first)],
    "report FILE": lambda made: ["report", str(made.first), "-o", os.devnull, "--force"],
}


@dataclass(frozen=True)
class Measured:
    """What came of one command.

    Attributes:
        name: the command.
        seconds: the median of its wall-clock times.
        imports_torch: whether it imported torch.
    """

    name: str
    seconds: float
    imports_torch: bool


def main() -> int:
    """Build, measure, write."""
    given = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        made = _built(folder)
        nothing = _median([sys.executable, "-c", "pass"])
        print(f"{'python -c pass':24} {nothing:6.3f} s", flush=True)
        results = []
        for name in given.only or COMMANDS:
            results.append(_measured(name, COMMANDS[name](made)))
            print(f"{name:24} {results[-1].seconds:6.3f} s", flush=True)
        if given.only is None:
            PAGE.write_text(_page(made, nothing, results), encoding="utf-8")
    return int(any(result.imports_torch for result in results))


def _built(folder: Path) -> Synthetic:
    """The package, from an earlier run if there is one."""
    if (folder / "second.modpack").exists():
        return known(folder)
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
    """Run a command to its end; a status of 1 is a finding, and fine."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    return done.stderr


def _imports_torch(arguments: Sequence[str]) -> bool:
    """Whether Python itself lists torch among what it imported for the command."""
    told = _run([sys.executable, "-X", "importtime", "-m", "modpack", *arguments])
    return any(line.rpartition("|")[2].strip() == "torch" for line in told.splitlines())


def _page(made: Synthetic, nothing: float, results: Sequence[Measured]) -> str:
    told = _TEXT.format(
        facts=_facts(made.first),
        nothing=nothing,
        torch=_median([sys.executable, "-c", "import torch"]),
        python=platform.python_version(),
        cores=os.cpu_count(),
        repetitions=REPETITIONS,
    )
    parts = [
        "# Command speed",
        textwrap.fill(told, 105).replace("~", " "),
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


#: A tilde is a blank at which no line ends.
_TEXT = (
    "Median wall-clock time of each command in {repetitions} new processes, on {cores} cores with "
    "Python {python}. The commands read a generated package with {facts}. For comparison, "
    "`python~-c~pass` takes {nothing:.2f} s, and `python~-c~'import~torch'` {torch:.2f} s. "
    "`make~bench-commands` generates this page."
)

_HEAD = """\
| command | time | imports torch |
|---|---:|---|
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/commands.py", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="COMMAND", choices=COMMANDS)
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="build there, or use what an earlier run built"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
