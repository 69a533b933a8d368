"""Check that ``modpack audit`` finds no errors in a package that passed its self-test.

``python -I auditing.py FOLDER`` audits ``net.modpack`` at the command line, compares the extern
distributions with ``saved.json``, and writes ``audit.json``.
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
    """The audit failed, found an error, or lists the wrong extern distributions."""


def main(folder: Path) -> None:
    """Run both steps, and write their results."""
    saved = json.loads((folder / "saved.json").read_text())
    steps = Steps()
    audit = steps.take("audit", lambda: run_audit(folder / "net.modpack"))
    if audit is not None:
        steps.take("externs", lambda: compare(externs(audit), saved["extern"], foundation()))
    steps.write(folder / "audit.json")


def run_audit(package: Path) -> dict[str, Any]:
    """Return the output of ``modpack audit``.

    Raises:
        AuditError: If the command failed or found an error.
    """
    command = [sys.executable, "-I", "-m", "modpack", "audit", str(package), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise AuditError(f"exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    audit: dict[str, Any] = json.loads(done.stdout)
    require_no_errors(audit, done.returncode)
    return audit


def require_no_errors(audit: dict[str, Any], status: int) -> None:
    """Reject an audit with errors.

    Raises:
        AuditError: If a finding is an error, or the exit status is not 0.
    """
    errors = [found for found in audit["findings"] if found["severity"] == "error"]
    if errors or status:
        text = "; ".join(f"{found['code']}: {found['message']}" for found in errors)
        raise AuditError(text or f"exit status {status}")


def externs(audit: dict[str, Any]) -> set[str]:
    """Return the extern distributions that the audit lists."""
    return {normalized(found["name"]) for found in audit["distributions"] if found["extern"]}


def compare(listed: set[str], owners: list[str], always: set[str]) -> None:
    """Require that an audit lists exactly the owners of the extern modules' files.

    Args:
        listed: Distributions that the audit lists.
        owners: Distributions that own files of extern modules.
        always: Distributions of every environment, which are ignored.

    Raises:
        AuditError: If they differ.
    """
    missing, excess = set(owners) - listed - always, listed - set(owners) - always
    if missing or excess:
        lists = {"missing": missing, "not needed": excess}
        raise AuditError("; ".join(f"{k}: {', '.join(sorted(v))}" for k, v in lists.items() if v))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
