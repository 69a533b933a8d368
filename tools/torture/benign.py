"""Good packages of many kinds, of which ``modpack verify`` must accept every one."""

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


def benign() -> Tally:
    """Verify them all."""
    found = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for package in _made(Path(folder)):
            found.tries += 1
            found.wrong += _alarms(package)
    return found


def _made(folder: Path) -> Iterator[Path]:
    """Where they are: archives kept from before, models of all kinds, hooks of all kinds."""
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


def _alarms(package: Path) -> Iterator[str]:
    try:
        facts = verify_package(package)
    except ModpackError as failure:
        yield f"{package.name}: {failure}"
        return
    for finding in facts.findings:
        if finding.severity is Severity.ERROR:
            yield f"{package.name}: {json.dumps([finding.code, finding.subject, finding.message])}"
