"""Asks ``modpack audit`` about a package that passed its self-test: nothing in it may be wrong.

``python -I auditing.py FOLDER`` audits ``net.modpack`` as a user does, compares what it says of
extern distributions with ``saved.json``, and writes ``audit.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from bare import foundation, normalized
from shared import Steps

del sys.path[0]


class AuditError(Exception):
    """The audit failed, found an error, or names other externs than the package needs."""


def main(folder: Path) -> None:
    """Take both steps, and write down what came of them."""
    saved = json.loads((folder / "saved.json").read_text())
    steps = Steps()
    audit = steps.take("audit", lambda: audited(folder / "net.modpack"))
    if audit is not None:
        steps.take("externs", lambda: compare(externs(audit), saved["extern"], foundation()))
    steps.write(folder / "audit.json")


def audited(package: Path) -> dict[str, Any]:
    """What the command says.

    Raises:
        AuditError: it did not succeed.
    """
    command = [sys.executable, "-I", "-m", "modpack", "audit", str(package), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise AuditError(f"exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    audit: dict[str, Any] = json.loads(done.stdout)
    require_no_errors(audit, done.returncode)
    return audit


def require_no_errors(audit: dict[str, Any], status: int) -> None:
    """Refuse an audit with errors among its findings.

    Raises:
        AuditError: there are some, or the exit status says so.
    """
    errors = [found for found in audit["findings"] if found["severity"] == "error"]
    if errors or status:
        told = "; ".join(f"{found['code']}: {found['text']}" for found in errors)
        raise AuditError(told or f"exit status {status}")


def externs(audit: dict[str, Any]) -> set[str]:
    """The distributions that must be installed where the package is loaded, by the audit."""
    return {normalized(found["name"]) for found in audit["distributions"] if found["extern"]}


def compare(told: set[str], owners: list[str], always: set[str]) -> None:
    """Refuse an audit that names others than the owners of the extern modules' files.

    Args:
        told: the distributions that the audit names.
        owners: those that list the files of extern modules as theirs.
        always: what every environment has; it does not matter who names it.

    Raises:
        AuditError: they differ.
    """
    missed, excess = set(owners) - told - always, told - set(owners) - always
    if missed or excess:
        lists = {"not told": missed, "not needed": excess}
        raise AuditError("; ".join(f"{k}: {', '.join(sorted(v))}" for k, v in lists.items() if v))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
