"""The loader that a package can contain: modpack's runtime layers, which need torch only."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Final

from modpack._version import __version__
from modpack.archive import layout
from modpack.archive.manifest import canonical_json
from modpack.archive.zip_format import MAX16, MAX32
from modpack.core.process import stacklevel_outside_package
from modpack.errors import ModpackError, ModpackWarning
from modpack.writing.writer import ArchiveWriter

if TYPE_CHECKING:
    from importlib.abc import Traversable

LAYERS: Final = (
    "api",
    "archive",
    "bundled",
    "core",
    "diagnostics",
    "environment",
    "errors",
    "examples",
    "hooks",
    "importer",
    "loading",
    "options",
    "packages",
    "pickling",
    "predicting",
    "reopening",
    "services",
    "trust",
)
"""The runtime layers, which the contract of the linter lists, too."""
RELEASES: Final[Mapping[str, str]] = {}
"""The digest of the loader of each released version, which its release adds."""
_PLACES: Final = {
    "modpack/bundled/face.py": "modpack/__init__.py",
    "modpack/bundled/start.py": "__main__.py",
}
"""The names in a package of those files that have another place there."""
_ZIP64_SINCE: Final = (3, 13)
"""The Python version from which on Python imports from zip64 archives."""


def loader_files() -> dict[str, bytes]:
    """Return the files of the loader by their names in a package."""
    found = {}
    # Sorted, because folders list files in any order, and packages are reproducible.
    for name, file in sorted(_runtime_files(resources.files("modpack"))):
        found[_PLACES.get(name, name)] = file.read_bytes()
    return found


def _runtime_files(folder: Traversable) -> Iterator[tuple[str, Traversable]]:
    """Yield the files of all runtime layers, and what they read and import besides."""
    for name in ("_version.py", "diagnostic_codes.json"):
        yield f"modpack/{name}", folder / name
    for layer in LAYERS:
        module = folder / f"{layer}.py"
        if module.is_file():
            yield f"modpack/{layer}.py", module
        else:
            for file in (folder / layer).iterdir():
                if file.name.endswith(".py"):
                    yield f"modpack/{layer}/{file.name}", file


def loader_digest(digests: Mapping[str, str]) -> str:
    """Return a digest of a loader.

    Args:
        digests: The SHA-256 of each of its files by name, in hex.
    """
    return hashlib.sha256(canonical_json(dict(digests))).hexdigest()


def is_known_loader(version: str, digests: Mapping[str, str]) -> bool:
    """Return whether a loader has the files of a release, or of this installation.

    Args:
        version: The version that the package states.
        digests: The SHA-256 of each of its files by name, in hex.
    """
    digest = loader_digest(digests)
    if version != __version__:
        return RELEASES.get(version) == digest
    own = {name: hashlib.sha256(data).hexdigest() for name, data in loader_files().items()}
    return digest in (loader_digest(own), RELEASES.get(version))


def write_loader(writer: ArchiveWriter) -> None:
    """Write the loader as the last records of a package.

    Warns if only later Pythons can run it.

    Raises:
        ModpackError: If Python could not run the loader, because the package is too large.
    """
    for name, content in loader_files().items():
        writer.write(layout.LOADER_FILES + name, content, compress=True)
    record = {"version": layout.LOADER_VERSION, "modpack": __version__}
    writer.write(layout.LOADER, canonical_json(record))
    checkpoint = writer.checkpoint()
    # The manifest, the directory, and a signature follow. Each has at most this much per record.
    following = sum(2 * len(name.encode()) + 400 for name in writer.names()) + (1 << 16)
    if checkpoint.records + len(layout.UNLISTED) >= MAX16:
        reason = f"Python before 3.13 does not import from zip archives of {MAX16:,} records"
    elif checkpoint.position + following >= MAX32:
        reason = "Python before 3.13 does not import from zip archives of 4 GiB"
    else:
        return
    if sys.version_info >= _ZIP64_SINCE:
        text = f"{writer.path}: the loader works in Python 3.13 and newer only: {reason}"
        warnings.warn(text, ModpackWarning, stacklevel_outside_package())
        return
    raise ModpackError(
        f"{writer.path}: the package is too large for a loader: {reason}",
        hint="Save it without bundle_loader=True (--bundle-loader), and install modpack where it "
        "is loaded.",
    )
