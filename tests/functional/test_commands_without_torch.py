"""Commands that look at a package start fast: none of them imports torch, or runs anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modpack import PackageExporter
from modpack.security.signing_keys import generate, write_pair

HEAVY = {"torch", "numpy"}


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, str]:
    """Two packages of modpack's and one of torch.package's, all with a module that must not run."""
    folder = tmp_path_factory.mktemp("packages")
    source = "import torch\nimport unheavyspy\nraise RuntimeError('it was run')\n"
    found = {"folder": str(folder)}
    for name, width in (("a", 2), ("b", 3)):
        found[name] = str(folder / f"{name}.modpack")
        with PackageExporter(found[name]) as exporter:
            exporter.mock("unheavyspy")
            exporter.save_source_string("unheavy", source)
            exporter.save_model("model", "model.pkl", torch.nn.Linear(width, 2))
    found["key"] = str(folder / "key")
    write_pair(generate(), found["key"])
    found["old"] = str(folder / "old.pt")
    with torch.package.PackageExporter(found["old"]) as exporter:
        exporter.save_source_string("unheavy", source.replace("import unheavyspy\n", ""))
        exporter.save_text("texts", "a.txt", "hello")
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "inspect {a}",
        "inspect {a} --json",
        "inspect {a} --source unheavy",
        "inspect {old}",
        "audit {a}",
        "audit {a} --json",
        "audit {old}",
        "why {a} torch",
        "why {old} torch",
        "diff {a} {b}",
        "diff {a} {old} --json",
        "requirements {a}",
        "requirements {a} --lock",
        "requirements {a} --check",
        "requirements {old}",
        "sbom {a}",
        "report {a} -o {folder}/a.html --force",
        "keygen {folder}/made --force",
        "sign {a} --key {key} -o {folder}/signed.modpack",
        "sign {a} --key {key} --detached --json",
        "report {old} -o {folder}/old.html --force",
    ],
)
def test_command_does_not_import_torch_or_run_code(packages, arguments):
    given = [each.format(**packages) for each in arguments.split()]
    code = (
        "import sys\n"
        "from modpack.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        f"    loaded = {HEAVY!r} & set(sys.modules)\n"
        "    print(f'status {end.code}, loaded {sorted(loaded)}', file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, *given]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(packages["folder"]))
    assert done.stderr.splitlines()[-1] in (
        "status 0, loaded []",
        "status 1, loaded []",
    ), done.stderr
    assert "it was run" not in done.stderr
