"""Which record of a package holds what.

The layout is that of ``torch.package``, so that a package which uses only what torch.package
knows loads there too. What modpack adds lives under ``.data/modpack/``, where torch.package
does not look. All names are relative to the archive's one top-level folder.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BYTEORDER",
    "ENTRY",
    "ENVIRONMENT",
    "EXTERN_MODULES",
    "FORMAT_VERSION",
    "GRAPH",
    "LITTLE_ENDIAN",
    "MANIFEST",
    "MANIFEST_DIGEST",
    "MODPACK_PREFIX",
    "OUTSIDE",
    "OWN_FORM_FROM",
    "PYTHON_VERSION",
    "ROOT",
    "SERIALIZATION_ID",
    "SIGNATURE",
    "TENSORS",
    "TRIAL",
    "VERSION",
    "VERSIONS",
    "VERSION_CONTENT",
    "is_bounded",
    "is_internal",
    "is_storage",
    "storage_name",
]

FORMAT_VERSION: Final = 2
"""Version of what modpack adds to torch.package's format; stands in the manifest.

A reader refuses what is newer than itself. To bump it: (1) raise it only if a reader of the
old version would misread the new archives, since a reader ignores records under
``.data/modpack/`` that it does not know; (2) keep reading every older version; (3) add a golden
archive of the new version to ``fixtures/archives/``; (4) describe the difference in the
reference of the archive format and in the changelog.
"""

OWN_FORM_FROM: Final = 2
"""From this format on, every byte of the zip follows from the contents, and is compared."""

ROOT: Final = "archive"
"""The top-level folder. torch names it after the file, and so it in a buffer; a file's bytes would
then depend on its name."""

VERSION: Final = ".data/version"
VERSION_CONTENT: Final = b"6\n"
"""What torch 2.13 writes into :data:`VERSION`: its file format's version, not modpack's."""

VERSIONS: Final = (VERSION, "version")
"""Where a version may stand: the second is that of older archives and of ``torch.save``."""

EXTERN_MODULES: Final = ".data/extern_modules"
PYTHON_VERSION: Final = ".data/python_version"
SERIALIZATION_ID: Final = ".data/serialization_id"
BYTEORDER: Final = "byteorder"
LITTLE_ENDIAN: Final = b"little"

MODPACK_PREFIX: Final = ".data/modpack/"
MANIFEST: Final = MODPACK_PREFIX + "manifest.json"
MANIFEST_DIGEST: Final = MODPACK_PREFIX + "manifest.sha256"
GRAPH: Final = MODPACK_PREFIX + "graph.json"
ENVIRONMENT: Final = MODPACK_PREFIX + "environment.json"
ENTRY: Final = MODPACK_PREFIX + "entry.json"
TRIAL: Final = MODPACK_PREFIX + "trial.json"
TENSORS: Final = MODPACK_PREFIX + "tensors.json"
SIGNATURE: Final = MODPACK_PREFIX + "signature.json"
"""Who vouches for the manifest: beside the manifest's digest the only record outside of it."""
OUTSIDE: Final = (MANIFEST, MANIFEST_DIGEST, SIGNATURE)
"""Records that no manifest lists: it cannot hold its own digest, nor signatures of that. They are
the last ones, in this order."""

_STORAGES: Final = ".data/"
_STORAGE: Final = ".storage"
_SHORTER: Final = len(_STORAGES + _STORAGE)


RUNTIME_MODULE: Final = "_modpack_mock"
"""The top-level name under which the mock runtime is stored in every package that has mocks."""

def storage_name(key: int | str) -> str:
    """Name of the record that holds a tensor storage.

    >>> storage_name(3)
    '.data/3.storage'
    """
    return f".data/{key}.storage"


def is_storage(name: str) -> bool:
    """Whether a record holds a tensor storage.

    >>> is_storage(".data/3.storage"), is_storage("model/3.storage")
    (True, False)
    """
    is_named_so = name.startswith(_STORAGES) and name.endswith(_STORAGE)
    return is_named_so and "/" not in name[len(_STORAGES) :] and len(name) > _SHORTER


def is_internal(name: str) -> bool:
    """Whether a record belongs to the format, and not to the user's code or resources.

    >>> is_internal(".data/version"), is_internal("byteorder"), is_internal("pkg/version")
    (True, True, False)
    """
    return name.startswith(".data/") or name in (BYTEORDER, "version")


def is_bounded(name: str) -> bool:
    """Whether a record is code or one of the format's own, and no tensor storage.

    >>> is_bounded("pkg/mod.py"), is_bounded(".data/version"), is_bounded("pkg/words.bin")
    (True, True, False)
    """
    return name.endswith(".py") or (is_internal(name) and not is_storage(name))
