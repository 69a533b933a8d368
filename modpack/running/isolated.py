"""Virtual environments that contain a package's requirements, modpack, and nothing else.

An environment is in the folder ``environments`` of the cache, named by a digest of its
requirements. A file, which is written last, marks a complete environment; a lock lets only one
process create it. A process that uses an environment holds it, so that ``modpack cache clear``
keeps it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from modpack._version import __version__
from modpack.core.cache_dir import cache_folder, make_private, require_trusted_path
from modpack.core.environment import RecordedDistribution
from modpack.core.names import normalized
from modpack.core.process import handle_sigterm, phase
from modpack.errors import IsolationError
from modpack.loading.cache import ENVIRONMENT, environments_folder, hold
from modpack.report.requirements import Requirements, requirements_of

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where two processes may create it at once
    fcntl = None  # type: ignore[assignment]

_LOG_LINES: Final = 15
_OWN: Final = Path(__file__).parents[1]
"""The folder of the running modpack."""


class Installation(NamedTuple):
    """The contents of an environment.

    Attributes:
        requirements: Requirements for pip.
        omitted: Distributions that pip cannot install, each with the reason.
        notes: Distributions that are not installed exactly as recorded, each with the reason.
    """

    requirements: tuple[str, ...]
    omitted: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A digest of everything that determines the environment, except modpack itself."""
        # modpack is linked, so that all its versions share an environment.
        parts = (*self.requirements, sys.version, _base_python())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def find_requirements(package: str, extra: Sequence[str] = ()) -> Installation:
    """Return what must be installed to run a package.

    Args:
        package: The package.
        extra: Distributions that reading inputs and writing outputs requires.

    Raises:
        ArchiveError: If the file is not a package or is damaged.
    """
    found = requirements_of(package)
    wanted = {name: _installed_requirement(name) for name in extra}
    wanted.update(_own_requirements())
    wanted["torch"] = _installed_requirement("torch")  # unless the package names a version
    omitted: list[str] = []
    notes: list[str] = []
    for name, requirement, remark in _recorded(found):
        if requirement is None:
            omitted.append(f"{name}: {remark}" if remark else name)
        else:
            wanted[name] = requirement  # what the package names has precedence
            notes += [f"{name} {remark}"] if remark else []
    omitted += [f"{module}: its distribution is not recorded" for module in found.unrecorded]
    required = tuple(sorted(wanted.values()))
    return Installation(required, tuple(omitted), tuple(notes))


def _recorded(found: Requirements) -> Iterator[tuple[str, str | None, str]]:
    """Yield name, requirement, and remark of each distribution that the package names."""
    for each in found.requirements:
        if normalized(each.distribution) != "modpack":
            yield normalized(each.distribution), each.requirement, each.remark
    for imported in found.imported:
        yield normalized(imported.distribution), imported.requirement, ""


def _own_requirements() -> dict[str, str]:
    """Return the requirements of modpack itself except torch, which the package pins."""
    from packaging.requirements import Requirement

    try:
        texts = metadata.requires("modpack") or []
    except metadata.PackageNotFoundError:  # a source folder on the import path
        from modpack.core.json_values import read_toml

        project: Any = read_toml(_OWN.parent / "pyproject.toml").get("project")
        texts = project["dependencies"]
    parsed = (Requirement(text) for text in texts)
    return {each.name: str(each) for each in parsed if each.marker is None}


def _installed_requirement(name: str) -> str:
    try:
        return RecordedDistribution(name, metadata.version(name)).pin
    except metadata.PackageNotFoundError:
        return name


def isolated_python(package: str, installation: Installation) -> Path:
    """Return the interpreter of an environment, which is created if it does not exist.

    The environment stays in the cache at least until this process ends.

    Raises:
        IsolationError: If it cannot be created. Nothing of it remains.
    """
    try:
        cache = cache_folder()
        folder = environments_folder(cache)
        make_private(folder)
        require_trusted_path(folder)
    except (OSError, RuntimeError) as failure:
        raise IsolationError(package, f"the cache folder cannot be used: {failure}") from failure
    target = folder / installation.digest
    hold(cache, target.name)
    with _locked(folder / f"{installation.digest}.lock"):
        try:
            if not (target / ENVIRONMENT).is_file():
                shutil.rmtree(target, ignore_errors=True)  # of a process that was killed
                with phase("installing the requirements", is_major=True):
                    for command in install_commands(target, installation.requirements):
                        _run(package, command)
                text = json.dumps(installation._asdict(), indent=2)
                (target / ENVIRONMENT).write_text(text, encoding="utf-8")
            _link_modpack(package, target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        # modpack cache sorts and clears environments by this time.
        os.utime(target / ENVIRONMENT)
    return python_of(target)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("a") as stream:
        if fcntl is not None:
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def python_of(environment: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    if os.name == "nt":
        return environment / "Scripts" / "python.exe"
    return environment / "bin" / "python"


def _base_python() -> str:
    """Return the interpreter that this environment was made from."""
    return getattr(sys, "_base_executable", None) or sys.executable


def install_commands(target: Path, requirements: Sequence[str]) -> list[list[str]]:
    """Return the commands that create an environment: uv if there is one, otherwise venv and pip.

    Args:
        target: The folder of the environment.
        requirements: Requirements for pip.
    """
    python = os.fspath(python_of(target))
    uv = shutil.which("uv")
    if uv is not None:
        return [
            [uv, "venv", "--quiet", "--python", _base_python(), os.fspath(target)],
            [uv, "pip", "install", "--quiet", "--python", python, *requirements],
        ]
    # -I: modules in the current folder must not shadow those of pip and venv.
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    return [
        [_base_python(), "-I", "-m", "venv", os.fspath(target)],
        [*pip, "install", "--quiet", *requirements],
    ]


def _run(package: str, command: list[str]) -> None:
    """Run a command of the installer.

    Raises:
        IsolationError: If it fails; with the end of its output.
    """
    try:
        # Without stdin, an installer that asks for a password fails instead of waiting.
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as failure:
        raise IsolationError(package, f"{command[0]} cannot be started: {failure}") from failure
    if done.returncode:
        log = "\n".join(done.stdout.strip().splitlines()[-_LOG_LINES:])
        program = "uv" if Path(command[0]).stem == "uv" else f"{command[3]}"
        raise IsolationError(
            package,
            f"the isolated environment cannot be created: {program} failed with status "
            f"{done.returncode}",
            log,
            hint=f"List the requirements with: modpack requirements {package}",
        )


def _link_modpack(package: str, target: Path) -> None:
    """Link the running modpack into an environment, with the metadata of its version."""
    libraries = [each for each in target.glob("[Ll]ib*/**/site-packages") if not each.is_symlink()]
    if not libraries:
        raise IsolationError(package, f"{target} has no site-packages folder")
    link, info = libraries[0] / "modpack", libraries[0] / f"modpack-{__version__}.dist-info"
    if info.is_dir() and link.is_symlink() and link.samefile(_OWN):
        return  # another command may be importing from it
    for old in libraries[0].glob("modpack-*.dist-info"):
        shutil.rmtree(old)
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(_OWN, target_is_directory=True)
    except OSError as failure:  # on Windows, this is a privilege
        reason = f"{link} cannot become a symlink: {failure.strerror}"
        raise IsolationError(package, reason) from failure
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: modpack\nVersion: {__version__}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    (info / "INSTALLER").write_text("modpack\n", encoding="utf-8")


def run_isolated(python: Path, arguments: Sequence[str]) -> int:
    """Run a modpack command in an environment and return its exit status.

    stdin, stdout, and stderr are those of this process. A signal that ends this process ends the
    command.

    Args:
        python: The interpreter of the environment.
        arguments: The command and its arguments.
    """
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: object) -> None:
        for each in started:
            each.send_signal(number)

    with handle_sigterm(forward):
        child = subprocess.Popen([os.fspath(python), "-I", "-m", "modpack", *arguments])
        started.append(child)
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue  # the terminal has also interrupted the child, which cleans up
