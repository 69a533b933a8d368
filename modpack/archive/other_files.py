"""Files that are not packages: what they are, and how to open them.

Files are told apart by their first bytes, zip archives by the names of their records, folders by
the names of their files. Nothing is parsed: the answer serves an error message only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

START_BYTES: Final = 512
"""How much of a file :func:`other_file` looks at: a tar archive says so at byte 257."""

_LEGACY: Final = 0x1950A86A20F9469CFC6C
"""The number that ``torch.save`` pickled first, before its files were zip archives."""
_PACKAGE_IT: Final = "Load it with the library that wrote it, and package the model: modpack.save"
_UNPACK: Final = "Unpack it, and open the package in it"

_BY_START: Final = (
    (
        rb".{0,40}(\x8a\x0a%b|L%dL)" % (re.escape(_LEGACY.to_bytes(10, "little")), _LEGACY),
        "a file of torch.save in its old form",
        "Load it with torch.load({file}, weights_only=True)",
    ),
    (
        rb"\x80[\x02-\x05]|\([dl]p0\n|c[a-z_][\w.]*\n\w+\n(\(|p\d)",
        "a pickle",
        "Load it with torch.load({file}, weights_only=True) if torch.save wrote it, else with "
        "what wrote it: unpickling runs whatever a pickle names",
    ),
    (
        rb".{6}\0\0\{",
        "a safetensors file",
        "Load it with safetensors.torch.load_file({file})",
    ),
    (rb"GGUF", "a GGUF file", "Open it with the runtime that it was made for"),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", "Open it with h5py.File({file})"),
    (rb"\x93NUMPY", "a NumPy array", "Load it with numpy.load({file})"),
    (
        rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]",
        "probably an ONNX model",
        "Load it with onnx.load({file})",
    ),
    (rb".{257}ustar", "a tar archive", _UNPACK),
    (rb"\x1f\x8b", "a gzip file", _UNPACK),
    (rb"BZh[1-9]|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c", "a compressed file", _UNPACK),
    (
        rb"version https://git-lfs",
        "a pointer of Git LFS to a file",
        "Fetch the file itself: git lfs pull",
    ),
    (
        rb"\s*<(?i:!doctype html|html)",
        "a web page",
        "Download the file itself: what answered was a page about it, or an error",
    ),
    (rb"\x7fELF|MZ[^ -~\s]|\xcf\xfa\xed\xfe", "a native library or program", "Check the path"),
)
_BY_RECORD: Final = (
    (
        ("archive_format", "serialized_exported_program.json"),
        "a file of torch.export.save",
        "Load it with torch.export.load({file}), or with "
        "torch._inductor.aoti_load_package({file}) if AOTInductor compiled it",
    ),
    (("constants.pkl",), "a TorchScript model", "Load it with torch.jit.load({file})"),
    (
        ("data.pkl",),
        "a file of torch.save",
        "Load it with torch.load({file}, weights_only=True)",
    ),
    ((".dist-info/WHEEL",), "a wheel", "Install it: pip install {file}"),
    ((".npy",), "a NumPy archive", "Load it with numpy.load({file})"),
    ((".modpack",), "a zip archive with .modpack files in it", _UNPACK),
)
_BY_FILE: Final = (
    (
        r"\.metadata|.*\.distcp",
        "a checkpoint of torch.distributed",
        "Load it with torch.distributed.checkpoint.load(state_dict, checkpoint_id={file})",
    ),
    (r".*\.modpack", "a folder with packages in it", "Name one: {found}"),
    (r".*\.(safetensors|bin|pth?|ckpt)", "a folder with checkpoints in it", _PACKAGE_IT),
)
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}", re.IGNORECASE)


def other_url(path: str, is_target: bool = False) -> str | None:
    """The problem with a path that is a URL, and the fix; None for other paths.

    Args:
        path: The path, as the user gave it.
        is_target: Whether it is to be written.

    >>> other_url("model.modpack")
    >>> other_url("s3://models/net.modpack")[:40]
    'this is a URL, and modpack opens files. '
    """
    scheme = _URL.match(path)
    if scheme is None:
        return None
    url = f"{scheme[1]}://{path[scheme.end() :]}"  # a Path has one slash less
    if scheme[1].lower() == "file":
        return f"this is a URL, and modpack opens files. Give its path: /{url[7:].lstrip('/')}"
    mode, first, call = "rb", "Download it first", "load(file)"
    if is_target:
        mode, first, call = "wb", "Write a file and upload it", "save(model, file)"
    return (
        f"this is a URL, and modpack opens files. {first}, or pass a file object: "
        f"with fsspec.open({url!r}, {mode!r}) as file: modpack.{call}"
    )


def other_file(source: str, start: bytes) -> str:
    """The problem with a file that is not a zip archive, and the fix.

    Args:
        source: The file, as the user named it.
        start: Its first :data:`START_BYTES` bytes, or all of them.
    """
    for pattern, what, fix in _BY_START:
        if re.match(pattern, start, re.DOTALL):
            return _told(source, what, fix)
    if not start:
        return _told(source, "an empty file", "Copy or export it again")
    if _is_text(start):
        return _told(source, "a text file", "Give a file that modpack or torch.package wrote")
    return "this is not a package: it is not a zip archive. Check the path"


def other_zip(source: str, has: Callable[[str], bool]) -> str | None:
    """The problem with a zip archive of a known other kind, and the fix; None for other kinds.

    Args:
        source: The file, as the user named it.
        has: Returns whether the archive has a record of that name, or with that ending.
    """
    kinds = ((what, fix) for marks, what, fix in _BY_RECORD if any(map(has, marks)))
    return next((_told(source, *kind) for kind in kinds), None)


def other_folder(source: str, names: Collection[str]) -> str:
    """The problem with a folder that is not an unzipped package, and the fix.

    Args:
        source: The folder, as the user named it.
        names: The names of its entries.
    """
    for pattern, what, fix in _BY_FILE:
        found = [name for name in sorted(names) if re.fullmatch(pattern, name)]
        if found:
            return _told(source, what, fix, found=", ".join(map(repr, found[:3])))
    what = "an unzipped package: it has no .data/version" if names else "a package: it is empty"
    return (
        f"this folder is not {what}. Give the file of a package, or the folder of an unzipped one"
    )


def _told(source: str, what: str, fix: str, found: str = "") -> str:
    file = "buffer" if source.startswith("<") else repr(source)
    return f"this is {what}, not a package. {fix.format(file=file, found=found)}"


def _is_text(start: bytes) -> bool:
    text = start.decode("utf-8", "ignore")  # a character may be cut off at the end
    is_all = len(text.encode()) > len(start) - 4
    return is_all and all(each.isprintable() or each.isspace() for each in text)
