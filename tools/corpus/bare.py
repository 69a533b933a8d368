"""An interpreter whose site-packages really lack some distributions."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

#: What a process that loads a package needs itself, with whatever these require.
FOUNDATION = ("modpack", "torch")


def bare_python(folder: Path, hidden: Iterable[str]) -> Path:
    """Make an environment that lacks distributions, with symbolic links for all others.

    Neither the code nor the metadata of a hidden distribution is there. The present environment
    is the model; modpack is linked by itself, so that its checkout is not on the path.

    Args:
        folder: where to make it; it must not exist.
        hidden: names of distributions.

    Returns:
        Its Python.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    places = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", places))
    unwanted = {file for name in hidden for file in _files(distribution(name))}
    unwanted |= {file for file in _files(distribution("modpack")) if file.suffix == ".pth"}
    link_all_but(unwanted, installed_in(), site)
    code = _modpack_code()
    if not (site / "modpack").exists():
        (site / "modpack").symlink_to(code)
    return Path(sysconfig.get_path("scripts", "venv", places)) / "python"


def installed_in() -> Path:
    """The site-packages of this process."""
    return Path(sysconfig.get_path("purelib"))


def _modpack_code() -> Path:
    found = importlib.util.find_spec("modpack")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("modpack is not installed in this environment")
    return Path(found.origin).parent


def link_all_but(unwanted: set[Path], source: Path, target: Path) -> None:
    """Fill a folder with links to all of another folder but some of its files.

    A folder without unwanted files is one link; a folder that several distributions share is
    made, and its entries are linked; a folder of which nothing is left is left out.

    Args:
        unwanted: paths of files, relative to ``source``.
        source: the folder to link to.
        target: the folder to fill; made if there is anything to link.
    """
    below: dict[str, set[Path]] = {}
    for file in unwanted:
        below.setdefault(file.parts[0], set()).add(Path(*file.parts[1:]))
    for entry in sorted(source.iterdir()):
        files = below.get(entry.name)
        if files is not None and entry.is_dir():
            link_all_but(files, entry, target / entry.name)
        elif files is None and entry.name != "__pycache__":
            target.mkdir(parents=True, exist_ok=True)
            (target / entry.name).symlink_to(entry)


def _files(dist: Distribution) -> set[Path]:
    listed = dist.files
    if listed is None:
        raise FileNotFoundError(f"{dist.metadata['Name']} does not list its files")
    return {Path(file) for file in listed if ".." not in file.parts}


def owners_of(files: Iterable[Path]) -> set[str]:
    """The installed distributions, by normalized name, that list any of these files.

    Args:
        files: absolute paths; those outside of site-packages belong to none.
    """
    site = installed_in()
    wanted = {file.relative_to(site) for file in files if file.is_relative_to(site)}
    return {
        normalized(dist.metadata["Name"])
        for dist in Distribution.discover(path=[str(site)])
        if wanted & {Path(file) for file in dist.files or ()}
    }


def foundation() -> set[str]:
    """The distributions that no environment can lack: modpack, torch, and their requirements."""
    found: set[str] = set()
    waiting = [*FOUNDATION]
    while waiting:
        name = normalized(waiting.pop())
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        wanted = [Requirement(text) for text in requires]
        waiting += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def normalized(name: str) -> str:
    """The name of a distribution as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()
