"""Layout of a package: record names, limits on what it may claim, and safe names.

The layout is that of ``torch.package``, so that a package which uses only what torch.package
knows loads there too. What modpack adds lives under ``.data/modpack/``, where torch.package
does not look. All names are relative to the archive's one top-level folder.

A package must mean the same thing zipped and unzipped, on every file system: its names are
relative, and no two of them become one file where case or Unicode forms are folded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from modpack.core.names import MAX_COMPONENTS

FORMAT_VERSION: Final = 2
"""Version of what modpack adds to torch.package's format; stands in the manifest.

A reader refuses what is newer than itself. To bump it: (1) raise it only if a reader of the
old version would misread the new archives, since a reader ignores records under
``.data/modpack/`` that it does not know; (2) keep reading every older version; (3) add a golden
archive of the new version to ``fixtures/archives/``; (4) describe the difference in the
reference of the archive format and in the changelog.
"""

CANONICAL_ZIP_FROM: Final = 2
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
SELF_TEST: Final = MODPACK_PREFIX + "trial.json"
TENSORS: Final = MODPACK_PREFIX + "tensors.json"
SIGNATURE: Final = MODPACK_PREFIX + "signature.json"
"""Who vouches for the manifest: beside the manifest's digest the only record outside of it."""
UNLISTED: Final = (MANIFEST, MANIFEST_DIGEST, SIGNATURE)
"""Records that no manifest lists: it cannot hold its own digest, nor signatures of that. They are
the last ones, in this order."""

RUNTIME_MODULE: Final = "_modpack_mock"
"""The top-level name under which the mock runtime is stored in every package that has mocks."""


def storage_name(key: int | str) -> str:
    """Name of the record that holds a tensor storage.

    >>> storage_name(3)
    '.data/3.storage'
    """
    return f".data/{key}.storage"


def hook_records(record: str) -> tuple[str, str]:
    """Return the records with the specs and with the pickle of a saved object's hooks.

    >>> hook_records("net/model.pkl")[0]
    '.data/modpack/hooks/net/model.pkl.json'
    """
    return f".data/modpack/hooks/{record}.json", f".data/modpack/hooks/{record}.pkl"


def is_storage(name: str) -> bool:
    """Whether a record holds a tensor storage.

    >>> is_storage(".data/3.storage"), is_storage("model/3.storage")
    (True, False)
    """
    return (
        name.startswith(".data/")
        and name.endswith(".storage")
        and name.count("/") == 1
        and name != ".data/.storage"
    )


def is_internal(name: str) -> bool:
    """Whether a record belongs to the format, and not to the user's code or resources.

    >>> is_internal(".data/version"), is_internal("byteorder"), is_internal("pkg/version")
    (True, True, False)
    """
    return name.startswith(".data/") or name in (BYTEORDER, "version")


def has_size_limit(name: str) -> bool:
    """Whether a record is code or one of the format's own, and no tensor storage.

    >>> [has_size_limit(name) for name in ("pkg/mod.py", ".data/version", "pkg/words.bin")]
    [True, True, False]
    """
    return name.endswith(".py") or (is_internal(name) and not is_storage(name))


_RATIO_FREE_BYTES: Final = 1 << 20
_TOTAL_FREE_BYTES: Final = 1 << 26
_SMALL_ARCHIVE: Final = 10_000_000
_FREE_FOLDERS: Final = 50_000
_JSON_FREE_BYTES: Final = 96 << 20


class Limits(NamedTuple):
    """Bounds that an archive's own claims are held against.

    Attributes:
        max_records: records in an archive.
        max_directory_bytes: bytes of the zip's central directory.
        max_name_bytes: bytes of one record's name in UTF-8, the top-level folder included.
        max_code_record_bytes: bytes of one compressed record once inflated, and of one that holds
            code or belongs to the format. Other stored records, which tensors always are, are
            bounded by the file's own size.
        max_ratio: how many times larger than its compressed form a record of more than 1 MiB
            may be. Deflate itself ends near 1032; a bomb lives off that.
        max_total_ratio: how many times larger than the archive all its compressed records
            together may be, beyond 64 MiB.
        max_json_ratio: how many times larger than the archive the values of one JSON record may
            be in memory, beyond 96 MiB.
        max_components: components of one record's name.
        min_folder_bytes: bytes of an archive for each folder that its names have, beyond 50,000.
        min_module_bytes: bytes of an archive for each module that it tells of; it is taken to have
            10,000,000 bytes if it has fewer.
    """

    max_records: int = 1_000_000
    max_directory_bytes: int = 1 << 28
    max_name_bytes: int = 4096
    max_code_record_bytes: int = 1 << 30
    max_ratio: int = 200
    max_total_ratio: int = 16
    max_json_ratio: int = 6
    max_components: int = MAX_COMPONENTS
    min_folder_bytes: int = 100
    min_module_bytes: int = 300

    def allows_inflating(self, compressed: int, size: int) -> bool:
        """Whether ``compressed`` bytes may be inflated to ``size`` bytes.

        >>> Limits().allows_inflating(100, 5_000), Limits().allows_inflating(1_000, 1 << 30)
        (True, False)
        """
        if size > self.max_code_record_bytes:
            return False
        return size <= max(_RATIO_FREE_BYTES, compressed * self.max_ratio)

    def allows_total(self, archive: int, sizes: int) -> bool:
        """Whether compressed records of ``archive`` bytes may be ``sizes`` bytes in all.

        >>> Limits().allows_total(1_000, 60 << 20), Limits().allows_total(1_000, 70 << 20)
        (True, False)
        """
        return sizes <= max(_TOTAL_FREE_BYTES, archive * self.max_total_ratio)

    def max_folders(self, archive: int) -> int:
        """How many folders the names of an archive may have.

        >>> Limits().max_folders(1_000), Limits().max_folders(1_000_000_000)
        (50000, 10000000)
        """
        return max(_FREE_FOLDERS, archive // self.min_folder_bytes)

    def max_modules(self, archive: int) -> int:
        """How many modules an archive may tell of.

        >>> Limits().max_modules(1_000), Limits().max_modules(1_000_000_000)
        (33333, 3333333)
        """
        return self.max_items(archive, self.min_module_bytes)

    def max_items(self, archive: int, item_bytes: int) -> int:
        """How many items of a kind an archive may list, if each is worth so many bytes of it."""
        return max(_SMALL_ARCHIVE, archive) // item_bytes

    def max_json_bytes(self, archive: int) -> int:
        """How many bytes of memory one JSON record of an archive may take.

        >>> Limits().max_json_bytes(1_000) >> 20, Limits().max_json_bytes(1 << 30) >> 30
        (96, 6)
        """
        return max(_JSON_FREE_BYTES, archive * self.max_json_ratio)


DEFAULT_LIMITS: Final = Limits()


_LONGEST_COMPONENT: Final = 255
"""Bytes of a file's name that every file system takes."""
_DEVICES: Final = r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[0-9\u00b9\u00b2\u00b3])"
"""What Windows takes for devices, in whatever folder and with whatever suffix."""
_USUAL: Final = re.compile(
    rf"(?!/)(?:(?:^|/)(?!{_DEVICES}(?:[./]|$))[a-z0-9_.+-]{{0,62}}[a-z0-9_+-]){{1,10}}",
    re.IGNORECASE,
)
"""Safe names, and nearly all there are."""


def check_record_name(name: str) -> str | None:
    r"""Return what is wrong with a record's name, or None if nothing is.

    >>> check_record_name("pkg/data.txt")
    >>> check_record_name("../data.txt")
    "the name has a '..' component"
    """
    if name.isascii() and _USUAL.fullmatch(name):
        return None
    if "\\" in name:
        return "the name has a backslash; components are separated by '/'"
    if re.search(r"[\x00-\x1f\x7f]", name):
        return "the name has a NUL or another control character"
    if name.startswith("/"):
        return "the name is absolute"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "the name cannot be written as UTF-8"
    components = name.split("/")
    if len(components) > DEFAULT_LIMITS.max_components:
        return f"the name has more than {DEFAULT_LIMITS.max_components} components"
    return next(filter(None, map(_why_unsafe_component, components)), None)


def _why_unsafe_component(component: str) -> str | None:
    if component in ("", ".", ".."):
        return f"the name has a {component!r} component"
    if re.match("[A-Za-z]:", component):
        return "the name has a drive"
    if component.endswith((".", " ")):
        return f"{component!r} ends with a dot or a blank, which Windows leaves out"
    if re.fullmatch(_DEVICES + r"(?:\..*)?", component, re.IGNORECASE):
        return f"{component!r} is a device's name on Windows"
    if len(component.encode("utf-8")) > _LONGEST_COMPONENT:
        return f"the name has a component of more than {_LONGEST_COMPONENT} bytes"
    return None


def find_name_problem(names: Collection[str]) -> tuple[str, str] | None:
    """Return the first unsafe name, or else one that collides, and the reason; or None."""
    return find_unsafe_name(names) or find_collision(names)


def find_unsafe_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first unsafe name and what is wrong with it, or None."""
    reasons = ((name, check_record_name(name)) for name in names)
    return next(((name, reason) for name, reason in reasons if reason), None)


def fold(name: str) -> str:
    """What a name becomes on a file system that ignores case and Unicode forms.

    >>> fold("pkg/README") == fold("PKG/readme")
    True
    """
    if name.isascii():
        return name.lower()
    import unicodedata  # seldom needed

    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def find_collision(names: Collection[str]) -> tuple[str, str] | None:
    """A name that cannot be unzipped next to the others, and the reason, or None."""
    # In an order in which the separator comes first, what lies in a folder follows its name.
    # Names are folded as one text: they have no line breaks, or are unsafe (benchmark row open).
    ordered = sorted(fold("\n".join(names)).replace("/", "\0").split("\n"))
    if not any(
        later.startswith(name) and later[len(name) : len(name) + 1] in ("", "\0")
        for name, later in itertools.pairwise(ordered)
    ):
        return None  # the registry names the culprit, but its folders take much more memory
    registry = NameRegistry()
    refused = ((name, registry.add(name)) for name in names)
    return next(((name, reason) for name, reason in refused if reason), None)


class NameRegistry:
    """Names that arrive one at a time, each checked against all before it."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add(self, name: str) -> str | None:
        """Takes a name in; returns the reason instead if it collides with an earlier one."""
        folded = fold(name)
        twin = self._files.get(folded)
        if twin is not None:
            return "it is there twice" if twin == name else f"it differs only in form from {twin!r}"
        if folded in self._folders:
            return f"it would have to be a folder too, for {self._folders[folded]!r}"
        parents = _parents(folded)
        if parents and parents[0] not in self._folders:  # otherwise all of them are known folders
            for parent in parents:
                if parent in self._files:
                    return f"{self._files[parent]!r} would have to be a folder too"
            for parent in parents:
                self._folders.setdefault(parent, name)
        self._files[folded] = name
        return None

    def forget_after(self, count: int) -> None:
        """Forgets every name but the first ``count`` that were taken in."""
        for folded in list(self._files)[count:]:
            del self._files[folded]
        kept = set(self._files.values())
        self._folders = {folder: of for folder, of in self._folders.items() if of in kept}


def count_folders(names: Collection[str]) -> int:
    """How many folders some names have in all; counted for each name where that is few.

    >>> count_folders(["a/b/c", "a/b/d", "e"])
    4
    """
    at_most = sum(name.count("/") for name in names)
    if at_most <= _FREE_FOLDERS:
        return at_most
    folders = sorted(folder.split("/") for folder in {name.rpartition("/")[0] for name in names})
    shared = itertools.starmap(_shared, itertools.pairwise(folders))
    return sum(map(len, folders)) - sum(shared) - folders.count([""])


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many components two paths have in common at their beginnings."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _parents(name: str) -> list[str]:
    parents = []
    while name := name.rpartition("/")[0]:
        parents.append(name)
    return parents
