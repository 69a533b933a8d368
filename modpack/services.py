"""Services of the authoring layers that a load offers where those layers are installed.

The runtime, which loads packages, imports torch and the standard library only. Three things that
it offers need more: signatures are verified by a cryptographic library, URLs are read by fsspec,
and progress is shown by a terminal library. The runtime asks for them here. ``modpack/__init__``
installs them; a runtime without that module has the ones below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modpack.errors import ArchiveError, ModpackError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from modpack.archive.base import Archive
    from modpack.core.policy import Signer

_NO_URLS = "this runtime opens files, and this is a URL"
_INSTALL = "Install modpack: pip install 'modpack[remote]'."


class Services:
    """The services of a runtime without the authoring layers."""

    def check_signatures(
        self, archive: Archive, signers: Sequence[Signer], path: str | None
    ) -> None:
        """Check that one of the signers has signed a package.

        Args:
            archive: The open package.
            signers: The signers.
            path: The package's file or folder, which can have a detached signature next to it.

        Raises:
            ModpackError: Always: a package is not loaded if its signature cannot be verified.
        """
        raise ModpackError(
            f"{archive.path}: the trust policy requires a signature, which this runtime cannot "
            "verify",
            hint="Install modpack: pip install 'modpack[sign]'.",
        )

    def open_remote(self, url: str) -> Archive:
        """Open the package at a URL for reading in ranges.

        Raises:
            ArchiveError: Always: without the other layers, packages are files.
        """
        raise ArchiveError(url, _NO_URLS, hint=_INSTALL)

    def downloaded(self, url: str) -> str:
        """Return the path of the downloaded package at a URL.

        Raises:
            ArchiveError: Always: without the other layers, packages are files.
        """
        raise ArchiveError(url, _NO_URLS, hint=_INSTALL)

    def working(self, task: str, progress: bool | None) -> AbstractContextManager[None]:
        """Return a context that shows the progress of a task; here, one that shows none."""
        from contextlib import nullcontext

        return nullcontext()


installed = Services()
"""The services in this process. The module ``modpack`` replaces them when it is imported."""
