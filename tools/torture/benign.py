"""Good packages of many kinds; ``modpack verify`` must accept all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mutants import good_packages
from packages import Tally

from modpack.diagnostics import Severity
from modpack.errors import ModpackError
from modpack.report.verify import verify_package

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
MATRIX = ROOT / "tools" / "hook_matrix"


def verify_good_packages() -> Tally:
    """Verify all good packages."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for package in _packages(Path(folder)):
            tally.tries += 1
            tally.wrong += _false_alarms(package)
    return tally


def _packages(folder: Path) -> Iterator[Path]:
    """Yield paths of stored archives and of new packages with all kinds of models and hooks."""
    archives = FIXTURES / "archives"
    yield from sorted((archives / "torch_package").rglob("*.pt"))
    yield from sorted((archives / "modpack").rglob("*.modpack"))
    models = FIXTURES / "reproducible"
    _run(models / "project", models / "export.py", folder)
    yield from sorted(folder.glob("*.modpack"))
    for name, data in good_packages().items():
        (folder / name).write_bytes(data)
        yield folder / name
    hooks = [folder / "hooks", folder / "notes.json"]
    _run(f"{MATRIX / 'project'}{os.pathsep}{MATRIX}", MATRIX / "project" / "train.py", *hooks)
    yield hooks[0]


def _run(path: object, script: Path, *arguments: Path) -> None:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(path)}
    command = [sys.executable, "-W", "ignore", script, *arguments]
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)


def _false_alarms(package: Path) -> Iterator[str]:
    try:
        facts = verify_package(package)
    except ModpackError as error:
        yield f"{package.name}: {error}"
        return
    for finding in facts.findings:
        if finding.severity is Severity.ERROR:
            yield f"{package.name}: {json.dumps([finding.code, finding.subject, finding.message])}"
