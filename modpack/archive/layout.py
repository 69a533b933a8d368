"""Layout of a package: record names, safety rules for names, and limits on sizes.

The layout is that of ``torch.package``. A package that uses only torch.package's features loads
there too. modpack's own records are under ``.data/modpack/``, which torch.package ignores. All
names are relative to the archive's single top-level folder.

A package has the same meaning zipped and unzipped, on every file system. Names are therefore
relative, and no two names may collide where case or Unicode forms are folded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Final

from modpack.core.names import MAX_COMPONENTS

FORMAT_VERSION: Final = 2
"""Version of modpack's additions to torch.package's format, stored in the manifest.

A reader rejects newer versions, and version 1, which was never released. To raise the version:
(1) do so only if readers of the old version would misread new archives, because they ignore
unknown records under
``.data/modpack/``; (2) keep reading all older versions; (3) add a golden archive of the new
version to ``fixtures/archives/``; (4) document the difference in the archive format reference
and in the changelog.
"""

ROOT: Final = "archive"
"""The top-level folder. torch names it after the file, and uses this name for buffers. A fixed name
makes the bytes of a package independent of its file name."""

VERSION: Final = ".data/version"
VERSION_CONTENT: Final = b"6\n"
"""The content that torch 2.13 writes: the version of torch's file format, not of modpack's."""

VERSIONS: Final = (VERSION, "version")
"""Possible version records. Older archives and ``torch.save`` use the second one."""

EXTERN_MODULES: Final = ".data/extern_modules"
PYTHON_VERSION: Final = ".data/python_version"
SERIALIZATION_ID: Final = ".data/serialization_id"
MODPACK_ONLY: Final = "modpack-only"
NOTICE: Final = MODPACK_ONLY + "/load this package with modpack.load"
"""The record of packages that torch.package cannot restore completely. ``extern_modules`` lists its
folder: torch.package refuses records of extern modules, with an error that quotes the name."""
BYTEORDER: Final = "byteorder"
LITTLE_ENDIAN: Final = b"little"

MODPACK_PREFIX: Final = ".data/modpack/"
MANIFEST: Final = MODPACK_PREFIX + "manifest.json"
MANIFEST_DIGEST: Final = MODPACK_PREFIX + "manifest.sha256"
GRAPH: Final = MODPACK_PREFIX + "graph.json"
ENVIRONMENT: Final = MODPACK_PREFIX + "environment.json"
ENTRY: Final = MODPACK_PREFIX + "entry.json"
SELF_TEST: Final = MODPACK_PREFIX + "self_test.json"
WAITING: Final = MODPACK_PREFIX + "waiting.json"
"""The imports that may wait, found by the self-test."""
SELF_TESTS: Final = MODPACK_PREFIX + "self_test/"
SELF_TEST_TENSORS: Final = ".data/self-test-"
HOOKS: Final = MODPACK_PREFIX + "hooks/"
CALL_SIGNATURE: Final = MODPACK_PREFIX + "call_signature.json"
TENSORS: Final = MODPACK_PREFIX + "tensors.json"
TORCHSCRIPT: Final = MODPACK_PREFIX + "torchscript/"
"""The prefix of archives of TorchScript modules that no module of the model contains."""
TORCH_PACKAGE_SCRIPTS: Final = ".data/ts_code/"
"""The prefix of all TorchScript in archives of torch.package."""
SIGNATURE: Final = MODPACK_PREFIX + "signature.json"
"""The signature of the manifest."""
SHARDS: Final = MODPACK_PREFIX + "shards.json"
"""The files next to the package that contain its storages, and which storage is where."""
SHARDS_VERSION: Final = 1
"""Version of that record."""
DETACHED_SIGNATURE: Final = ".sig"
"""The end of the name of a file that contains a signature, next to the package."""
MAX_SIGNATURE_BYTES: Final = 1 << 20
LOADER: Final = MODPACK_PREFIX + "loader.json"
"""The version of the loader that the package contains."""
LOADER_VERSION: Final = 1
"""Version of that record. Raise it if a reader of the old version would misread the new record."""
LOADER_FILES: Final = MODPACK_PREFIX + "loader/"
"""The prefix of that loader's records. Their files are next to the top-level folder, where Python
finds them: ``__main__.py`` and the folder ``modpack``."""
HIDDEN_LOADER: Final = "the files of a loader are next to the top-level folder, not in it"
"""The reason of an error about such a record in the top-level folder."""
UNLISTED: Final = (MANIFEST, MANIFEST_DIGEST, SIGNATURE)
"""Records that a manifest cannot list: itself, its digest, and signatures of the digest. They are
the last records, in this order."""

RUNTIME_MODULE: Final = "_modpack_mock"
"""The top-level module name of the mock runtime in packages that have mocks."""


def storage_name(key: int | str) -> str:
    """Return the record name of a tensor storage.

    >>> storage_name(3)
    '.data/3.storage'
    """
    return f".data/{key}.storage"


def zip_name(record: str) -> str:
    """Return the name of a record in a zip.

    >>> zip_name("pkg/a.py"), zip_name(LOADER_FILES + "__main__.py")
    ('archive/pkg/a.py', '__main__.py')
    """
    if record.startswith(LOADER_FILES):
        return record.removeprefix(LOADER_FILES)
    return f"{ROOT}/{record}"


def is_loader_file(name: str) -> bool:
    """Return whether the file of a loader, next to the top-level folder, may have this name.

    >>> [is_loader_file(name) for name in ("__main__.py", "modpack/api.py", "modpack/a.so")]
    [True, True, False]
    """
    is_module = name.startswith("modpack/") and name.endswith((".py", ".json"))
    return is_module or name == "__main__.py"


class ExampleRecords:
    """The record names of one example of a self-test.

    Args:
        number: Number of the example in the package, from 0.

    >>> ExampleRecords(0).inputs, ExampleRecords(0).tensor(3)
    ('.data/modpack/self_test/0/inputs.pkl', '.data/self-test-0-3.storage')
    """

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def inputs(self) -> str:
        """The pickled arguments."""
        return f"{SELF_TESTS}{self.number}/inputs.pkl"

    @property
    def conditions(self) -> str:
        """The random states and module modes of the recorded run."""
        return f"{SELF_TESTS}{self.number}/conditions.json"

    @property
    def output(self) -> str:
        """The leaves of the recorded output."""
        return f"{SELF_TESTS}{self.number}/output.json"

    def tensor(self, index: int) -> str:
        """Return the record of one output tensor's bytes."""
        return f"{SELF_TEST_TENSORS}{self.number}-{index}.storage"


def hook_records(record: str) -> tuple[str, str]:
    """Return the record names of a saved object's hook specs and hook pickle.

    >>> hook_records("net/model.pkl")[0]
    '.data/modpack/hooks/net/model.pkl.json'
    """
    return f"{HOOKS}{record}.json", f"{HOOKS}{record}.pkl"


def is_storage(name: str) -> bool:
    """Return whether a record is a tensor storage.

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
    """Return whether a record belongs to the format, not to the user's code or resources.

    >>> is_internal(".data/version"), is_internal("byteorder"), is_internal("pkg/version")
    (True, True, False)
    """
    return name.startswith(".data/") or name in (BYTEORDER, "version", NOTICE)


def has_size_limit(name: str) -> bool:
    """Return whether a record is code or internal, but not a tensor storage.

    >>> [has_size_limit(name) for name in ("pkg/mod.py", ".data/version", "pkg/words.bin")]
    [True, True, False]
    """
    return name.endswith(".py") or (is_internal(name) and not is_storage(name))


MAX_RECORDS: Final = 1_000_000
MAX_DIRECTORY_BYTES: Final = 1 << 28
MAX_NAME_BYTES: Final = 4096
"""Length of a record name in UTF-8, including the top-level folder."""
MAX_CODE_RECORD_BYTES: Final = 1 << 30
"""Uncompressed size of a compressed, code, or internal record. The file size limits other stored
records, such as all tensor storages."""
MODULE_BYTES: Final = 300
"""Archive size that allows one listed module."""

_MAX_RATIO: Final = 200
"""Deflate reaches about 1032, which zip bombs exploit."""
_RATIO_FREE_BYTES: Final = 1 << 20
_MAX_TOTAL_RATIO: Final = 16
_TOTAL_FREE_BYTES: Final = 1 << 26
_MAX_JSON_RATIO: Final = 6
_JSON_FREE_BYTES: Final = 96 << 20
_FOLDER_BYTES: Final = 100
_FREE_FOLDERS: Final = 50_000
_SMALL_ARCHIVE: Final = 10_000_000
"""Archives smaller than this count as that size."""


def allows_inflating(compressed: int, size: int) -> bool:
    """Return whether a record may inflate from ``compressed`` to ``size`` bytes.

    >>> allows_inflating(100, 5_000), allows_inflating(1_000, 1 << 30)
    (True, False)
    """
    if size > MAX_CODE_RECORD_BYTES:
        return False
    return size <= max(_RATIO_FREE_BYTES, compressed * _MAX_RATIO)


def allows_total(archive: int, sizes: int) -> bool:
    """Return whether an archive's compressed records may inflate to ``sizes`` bytes in total.

    >>> allows_total(1_000, 60 << 20), allows_total(1_000, 70 << 20)
    (True, False)
    """
    return sizes <= max(_TOTAL_FREE_BYTES, archive * _MAX_TOTAL_RATIO)


def max_folders(archive: int) -> int:
    """Return how many folders the names of an archive may contain.

    >>> max_folders(1_000), max_folders(1_000_000_000)
    (50000, 10000000)
    """
    return max(_FREE_FOLDERS, archive // _FOLDER_BYTES)


def max_modules(archive: int) -> int:
    """Return how many modules an archive may list.

    >>> max_modules(1_000), max_modules(1_000_000_000)
    (33333, 3333333)
    """
    return max_items(archive, MODULE_BYTES)


def max_items(archive: int, item_bytes: int) -> int:
    """Return how many items an archive may list at ``item_bytes`` of its size per item."""
    return max(_SMALL_ARCHIVE, archive) // item_bytes


def max_json_bytes(archive: int) -> int:
    """Return how many bytes of memory the values of one JSON record may take.

    >>> max_json_bytes(1_000) >> 20, max_json_bytes(1 << 30) >> 30
    (96, 6)
    """
    return max(_JSON_FREE_BYTES, archive * _MAX_JSON_RATIO)


_MAX_COMPONENT_BYTES: Final = 255
"""Length of a file name that all common file systems support."""
_DEVICES: Final = frozenset(
    {
        *("CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"),
        *(f"{port}{digit}" for port in ("COM", "LPT") for digit in "0123456789\u00b9\u00b2\u00b3"),
    }
)
"""Device names that Windows reserves in every folder and with every suffix."""
_INVISIBLE: Final = (
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    r"\U000e0000-\U000e0fff]"
)
"""The characters that Unicode calls ignorable by default, apart from those of category Cf."""


def check_record_name(name: str) -> str | None:
    r"""Return why a record name is unsafe, or None if it is safe.

    >>> check_record_name("pkg/data.txt")
    >>> check_record_name("../data.txt")
    "the name has a '..' component"
    """
    if "\\" in name:
        return "the name contains a backslash instead of '/'"
    # isprintable is fast, but also rejects spaces and invisible characters that names may contain.
    if not name.isprintable() and re.search(r"[\x00-\x1f\x7f]", name):
        return "the name contains a control character"
    if name.startswith("/"):
        return "the name is absolute"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "the name cannot be encoded as UTF-8"
    folder, _, last = name.rpartition("/")
    return _check_folder(folder) or _check_component(last)


@lru_cache(maxsize=1024)
def _check_folder(folder: str) -> str | None:
    """Return why the folder of a record name is unsafe. Most records share their folder."""
    components = folder.split("/") if folder else []
    if len(components) >= MAX_COMPONENTS:
        return f"the name has more than {MAX_COMPONENTS} components"
    return next(filter(None, map(_check_component, components)), None)


def _check_component(component: str) -> str | None:
    if component in ("", ".", ".."):
        return f"the name has a {component!r} component"
    if ":" in component:
        return "the name has a colon, which starts a drive or a stream on Windows"
    if component.endswith((".", " ")):
        return f"{component!r} ends with a dot or a space, which Windows removes"
    if component.partition(".")[0].upper() in _DEVICES:
        return f"{component!r} is a device name on Windows"
    if len(component.encode("utf-8")) > _MAX_COMPONENT_BYTES:
        return f"the name has a component of more than {_MAX_COMPONENT_BYTES} bytes"
    return None


def find_name_problem(names: Collection[str]) -> tuple[str, str] | None:
    """Return the first unsafe or colliding name and the reason, or None."""
    return find_unsafe_name(names) or find_collision(names)


def find_unsafe_name(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first unsafe name and the reason, or None."""
    reasons = ((name, check_record_name(name)) for name in names)
    return next(((name, reason) for name, reason in reasons if reason), None)


def fold(name: str) -> str:
    """Return the form in which names are compared: without case, Unicode forms, and invisibles.

    >>> fold("pkg/README") == fold("PKG/readme"), fold("a\u200d") == fold("a")
    (True, True)
    """
    if name.isascii():
        return name.lower()
    import unicodedata  # seldom needed

    name = unicodedata.normalize("NFKC", name)
    is_invisible = re.compile(_INVISIBLE).match
    invisible = {
        ord(each): None
        for each in set(name)
        if unicodedata.category(each) == "Cf" or is_invisible(each)
    }
    # Folding the case can undo the normal form.
    return unicodedata.normalize("NFKC", name.translate(invisible).casefold())


def find_collision(names: Collection[str]) -> tuple[str, str] | None:
    """Return the first name that collides with another and the reason, or None."""
    # With "/" sorted first, a folder's content follows its name. All names are folded as one
    # text, which is faster (benchmark row open). Safe names contain no line breaks.
    ordered = sorted(fold("\n".join(names)).replace("/", "\0").split("\n"))
    if not any(
        later.startswith(name) and later[len(name) : len(name) + 1] in ("", "\0")
        for name, later in itertools.pairwise(ordered)
    ):
        return None  # the registry below finds the name, but needs much more memory
    registry = NameRegistry()
    refused = ((name, registry.add(name)) for name in names)
    return next(((name, reason) for name, reason in refused if reason), None)


class NameRegistry:
    """Names added one at a time, each checked for collisions with the earlier ones."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}

    def add(self, name: str) -> str | None:
        """Add a name, or return the reason if it collides with an earlier one."""
        folded = fold(name)
        twin = self._files.get(folded)
        if twin is not None:
            is_same = twin == name
            same = "another record has the same name"
            return same if is_same else f"the name collides with {twin!r}"
        if folded in self._folders:
            return f"the name is also a folder of {self._folders[folded]!r}"
        parents = _parents(folded)
        if parents and parents[0] not in self._folders:  # otherwise all of them are known folders
            for parent in parents:
                if parent in self._files:
                    return f"a folder of the name is also the record {self._files[parent]!r}"
            for parent in parents:
                self._folders.setdefault(parent, name)
        self._files[folded] = name
        return None

    def truncate(self, count: int) -> None:
        """Remove all names but the first ``count``."""
        # A dict keeps the order in which names were added. A folder remembers the first name in it,
        # so it disappears with that name: all other names in it are later.
        for folded in list(self._files)[count:]:
            del self._files[folded]
        kept = set(self._files.values())
        self._folders = {folder: name for folder, name in self._folders.items() if name in kept}


def count_folders(names: Collection[str]) -> int:
    """Return the number of folders in names. A low number may count a folder repeatedly.

    >>> count_folders(["a/b/c", "a/b/d", "e"])
    4
    """
    upper_bound = sum(name.count("/") for name in names)
    if upper_bound <= _FREE_FOLDERS:
        return upper_bound
    # Sorted by components, each path shares its longest known prefix with the one before it.
    folders = sorted(folder.split("/") for folder in {name.rpartition("/")[0] for name in names})
    shared = itertools.starmap(_common_length, itertools.pairwise(folders))
    return sum(map(len, folders)) - sum(shared) - folders.count([""])


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the common prefix of two paths, in components."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _parents(name: str) -> list[str]:
    parents = []
    while name := name.rpartition("/")[0]:
        parents.append(name)
    return parents
