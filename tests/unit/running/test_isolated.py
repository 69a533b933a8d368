"""Virtual environments of packages, with an installer that installs nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import modpack
from modpack.core.environment import RecordedDistribution
from modpack.errors import IsolationError
from modpack.report.requirements import RequirementFacts
from modpack.running import isolated
from modpack.running.isolated import (
    find_requirements,
    install_commands,
    isolated_python,
    python_of,
    run_isolated,
)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("isolated") / "net.modpack"
    modpack.save(torch.nn.Linear(2, 1), path)
    return str(path)


@pytest.fixture
def installer(monkeypatch, tmp_path):
    """Replaces the commands of the installer, and collects them."""
    monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(isolated.shutil, "which", lambda name: None)
    found = SimpleNamespace(commands=[], status=0, output="")

    def run(command, **options):
        found.commands.append(command)
        if "venv" in command:
            (Path(command[-1]) / "lib" / "python3.x" / "site-packages").mkdir(parents=True)
        is_last = "install" in command
        status = found.status if is_last else 0
        if isinstance(status, BaseException):
            raise status
        return SimpleNamespace(returncode=status, stdout=found.output)

    known = SimpleNamespace(**{**vars(subprocess), "run": run})
    monkeypatch.setattr(isolated, "subprocess", known)
    return found


def test_requirements_pin_torch_and_include_those_of_modpack(package):
    found = find_requirements(package, ["numpy"])
    names = {each.partition("=")[0].partition(">")[0] for each in found.requirements}
    assert {"torch", "click", "rich", "packaging", "numpy"} == names
    version = torch.__version__.partition("+")[0]
    assert f"torch=={version}" in found.requirements
    if "+" in torch.__version__:
        assert any(note.startswith(f"torch was {torch.__version__}") for note in found.notes)


def test_environment_is_created_once_and_contains_modpack(package, installer):
    found = find_requirements(package)
    python = isolated_python(package, found)
    assert [("venv" in c, "install" in c) for c in installer.commands] == [
        (True, False),
        (False, True),
    ]
    assert installer.commands[1][-len(found.requirements) :] == list(found.requirements)
    (site,) = python.parents[1].glob("lib/*/site-packages")
    assert (site / "modpack" / "__main__.py").is_file()
    metadata = (site / f"modpack-{modpack.__version__}.dist-info" / "METADATA").read_text()
    assert f"Version: {modpack.__version__}" in metadata
    assert isolated_python(package, found) == python
    assert len(installer.commands) == 2


def test_other_requirements_have_another_environment(package, installer):
    first = isolated_python(package, find_requirements(package))
    assert isolated_python(package, find_requirements(package, ["numpy"])) != first


def test_environment_stays_while_this_process_runs(package, installer, tmp_path):
    python = isolated_python(package, find_requirements(package))
    command = [sys.executable, "-m", "modpack", "cache", "clear"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "(environment of --isolated) was not removed, because a process uses it" in done.stderr
    assert python.parents[1].is_dir()


def test_environment_gets_the_modpack_that_runs_without_installing(package, installer, tmp_path):
    found = find_requirements(package)
    python = isolated_python(package, found)
    (site,) = python.parents[1].glob("lib/*/site-packages")
    (site / "modpack").unlink()
    (site / "modpack").symlink_to(tmp_path / "removed")  # of another modpack
    (site / f"modpack-{modpack.__version__}.dist-info").rename(site / "modpack-0.dist-info")
    assert isolated_python(package, found) == python
    assert (site / "modpack").samefile(Path(modpack.__file__).parent)
    (metadata,) = site.glob("modpack-*.dist-info")
    assert modpack.__version__ in metadata.name
    assert len(installer.commands) == 2


@pytest.mark.parametrize("status", [1, KeyboardInterrupt()])
def test_failed_installation_leaves_no_environment(package, installer, tmp_path, status):
    installer.status = status
    installer.output = "\n".join(f"line {n}" for n in range(40)) + "\nNo matching distribution\n"
    with pytest.raises((IsolationError, KeyboardInterrupt)) as failure:
        isolated_python(package, find_requirements(package))
    if status == 1:
        text = str(failure.value)
        assert text.startswith(f"{package}: the isolated environment cannot be created: pip failed")
        assert "No matching distribution" in text and "line 3\n" not in text
    assert [each.suffix for each in (tmp_path / "cache/environments").iterdir()] == [".lock"]


def test_killed_installation_is_repeated(package, installer):
    found = find_requirements(package)
    python = isolated_python(package, found)
    (python.parents[1] / "modpack-environment.json").unlink()
    isolated_python(package, found)
    assert len(installer.commands) == 4


def test_concurrent_commands_create_one_environment(package, installer):
    found = find_requirements(package)
    threads = [threading.Thread(target=isolated_python, args=(package, found)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(installer.commands) == 2


def test_uv_is_used_if_it_is_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(isolated.shutil, "which", lambda name: "/usr/bin/uv")
    commands = install_commands(tmp_path, ["torch==2.13.0"])
    assert [command[:2] for command in commands] == [
        ["/usr/bin/uv", "venv"],
        ["/usr/bin/uv", "pip"],
    ]
    assert commands[1][-1] == "torch==2.13.0"


def test_distribution_that_pip_cannot_install_is_reported(package, monkeypatch):
    read = isolated.requirements_of

    def changed(path):
        found = read(path)
        odd = RequirementFacts.of(RecordedDistribution("shop", "1.0", editable=True))
        return replace(found, requirements=(odd,))

    monkeypatch.setattr(isolated, "requirements_of", changed)
    (omitted,) = find_requirements(package).omitted
    assert omitted.startswith("shop: ") and "editable" in omitted


def test_command_runs_with_exit_status_of_the_environment(tmp_path):
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport json, sys\n"
                      f"open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
                      "sys.exit(3)\n")  # fmt: skip
    script.chmod(0o755)
    assert run_isolated(script, ["run", "a.modpack"]) == 3
    assert json.loads((tmp_path / "seen").read_text()) == [
        "-I",
        "-m",
        "modpack",
        "run",
        "a.modpack",
    ]


def test_signal_ends_the_command_in_the_environment(tmp_path):
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(60)\n"
    )
    script.chmod(0o755)
    before = signal.getsignal(signal.SIGTERM)
    assert run_isolated(script, ["run"]) == 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_python_of_environment(tmp_path):
    assert python_of(tmp_path).name in ("python", "python.exe")
