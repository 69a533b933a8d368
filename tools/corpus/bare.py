"""A virtual environment whose site-packages lack some distributions."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

#: Distributions that every loading process needs, in addition to their requirements.
FOUNDATION = ("modpack", "torch")


def bare_python(folder: Path, hidden: Iterable[str]) -> Path:
    """Create a virtual environment without some distributions, and symlinks to all others.

    Both code and metadata of hidden distributions are missing. modpack is linked separately, so
    that its checkout is not on the path.

    Args:
        folder: Folder of the environment. Must not exist.
        hidden: Names of distributions to hide.

    Returns:
        The path of its Python.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    bases = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", bases))
    unwanted = {file for name in hidden for file in _files(distribution(name))}
    unwanted |= {file for file in _files(distribution("modpack")) if file.suffix == ".pth"}
    link_all_but(unwanted, installed_in(), site)
    code = _modpack_code()
    if not (site / "modpack").exists():
        (site / "modpack").symlink_to(code)
    return Path(sysconfig.get_path("scripts", "venv", bases)) / "python"


def installed_in() -> Path:
    """Return the site-packages of this process."""
    return Path(sysconfig.get_path("purelib"))


def _modpack_code() -> Path:
    found = importlib.util.find_spec("modpack")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("modpack is not installed in this environment")
    return Path(found.origin).parent


def link_all_but(unwanted: set[Path], source: Path, target: Path) -> None:
    """Link all files of a folder except some.

    A folder without unwanted files becomes one link. Otherwise its remaining entries are linked.
    A folder without remaining entries is omitted.

    Args:
        unwanted: Paths of files, relative to ``source``.
        source: Folder to link to.
        target: Folder for the links. Created if needed.
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
    """Return the normalized names of the installed distributions that own any of these files.

    Args:
        files: Absolute paths. Files outside of site-packages have no owner.
    """
    site = installed_in()
    wanted = {file.relative_to(site) for file in files if file.is_relative_to(site)}
    return {
        normalized(dist.metadata["Name"])
        for dist in Distribution.discover(path=[str(site)])
        if wanted & {Path(file) for file in dist.files or ()}
    }


def foundation() -> set[str]:
    """Return modpack, torch, and their requirements, which every environment needs."""
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
    """Return the normalized name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
