"""Identification of files that are not packages, for error messages that name the right tool.

Files are identified by their first bytes, zip archives by their record names, and folders by
their file names. Nothing is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from modpack.errors import NotAPackageError

START_BYTES: Final = 512
"""Bytes that :func:`identify_file` needs. The signature of a tar archive is at byte 257."""

_LEGACY: Final = 0x1950A86A20F9469CFC6C
"""The number at the start of files that ``torch.save`` wrote before it wrote zip archives."""
_PACKAGE_IT: Final = "Load it with the library that wrote it and package the model: modpack.save."
_UNPACK: Final = "Unpack it and open the package inside."


_BY_START: Final = (
    (
        rb".{0,40}(\x8a\x0a%b|L%dL)" % (re.escape(_LEGACY.to_bytes(10, "little")), _LEGACY),
        "a file from torch.save in its legacy format",
        "Load it with torch.load({file}, weights_only=True).",
    ),
    (
        rb"\x80[\x02-\x05]|\([dl]p0\n|c[a-z_][\w.]*\n\w+\n(\(|p\d)",
        "a pickle",
        "Load it with torch.load({file}, weights_only=True) if torch.save wrote it, otherwise with "
        "the program that wrote it. Unpickling can execute code.",
    ),
    (
        rb".{6}\0\0\{",
        "a safetensors file",
        "Load it with safetensors.torch.load_file({file}).",
    ),
    (rb"GGUF", "a GGUF file", "Open it with the runtime that it was exported for."),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", "Open it with h5py.File({file})."),
    (rb"\x93NUMPY", "a NumPy array", "Load it with numpy.load({file})."),
    (
        rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]",
        "probably an ONNX model",
        "Load it with onnx.load({file}).",
    ),
    (rb".{257}ustar", "a tar archive", _UNPACK),
    (rb"\x1f\x8b", "a gzip file", _UNPACK),
    (rb"BZh[1-9]|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c", "a compressed file", _UNPACK),
    (
        rb"version https://git-lfs",
        "a Git LFS pointer",
        "Fetch the file: git lfs pull.",
    ),
    (
        rb"\s*<(?i:!doctype html|html)",
        "a web page",
        "Download the file itself. The server sent a web page or an error instead.",
    ),
    (rb"\x7fELF|MZ[^ -~\s]|\xcf\xfa\xed\xfe", "a native library or program", "Check the path."),
)
_BY_RECORD: Final = (
    (
        ("archive_format", "serialized_exported_program.json"),
        "a file from torch.export.save",
        "Load it with torch.export.load({file}), or with "
        "torch._inductor.aoti_load_package({file}) if AOTInductor compiled it.",
    ),
    (("constants.pkl",), "a TorchScript model", "Load it with torch.jit.load({file})."),
    (
        ("data.pkl",),
        "a file from torch.save",
        "Load it with torch.load({file}, weights_only=True).",
    ),
    ((".dist-info/WHEEL",), "a wheel", "Install it: pip install {file}."),
    ((".npy",), "a NumPy archive", "Load it with numpy.load({file})."),
    ((".modpack",), "a zip archive of .modpack files", _UNPACK),
)
_BY_FILE: Final = (
    (
        r"\.metadata|.*\.distcp",
        "a torch.distributed checkpoint",
        "Load it with torch.distributed.checkpoint.load(state_dict, checkpoint_id={file}).",
    ),
    (r".*\.modpack", "a folder of packages", "Name one: {found}."),
    (r".*\.(safetensors|bin|pth?|ckpt)", "a folder of checkpoints", _PACKAGE_IT),
)


def identify_file(path: str, start: bytes) -> NotAPackageError:
    """Return the error for a file that is not a zip archive.

    Args:
        path: The file as the user named it.
        start: Its first :data:`START_BYTES` bytes, or all of them.
    """
    for pattern, kind, hint in _BY_START:
        if re.match(pattern, start, re.DOTALL):
            return _other(path, kind, hint)
    if not start:
        return _other(path, "an empty file", "Copy or export it again.")
    if _is_text(start):
        return _other(path, "a text file", "Pass a file that modpack or torch.package wrote.")
    reason = "this is not a package: it is not a zip archive"
    return NotAPackageError(path, reason, hint="Check the path.")


def identify_zip(path: str, has: Callable[[str], bool]) -> NotAPackageError | None:
    """Return the error for a zip archive of a known other format, or None.

    Args:
        path: The file as the user named it.
        has: Returns whether the archive has a record with that name, or with that ending.
    """
    kinds = ((kind, hint) for marks, kind, hint in _BY_RECORD if any(map(has, marks)))
    return next((_other(path, kind, hint) for kind, hint in kinds), None)


def identify_folder(path: str, names: Collection[str]) -> NotAPackageError:
    """Return the error for a folder that is not an unzipped package.

    Args:
        path: The folder as the user named it.
        names: The names of its entries.
    """
    for pattern, kind, hint in _BY_FILE:
        found = [name for name in sorted(names) if re.fullmatch(pattern, name)]
        if found:
            return _other(path, kind, hint, found=", ".join(map(repr, found[:3])))
    kind = "an unzipped package: it has no .data/version" if names else "a package: it is empty"
    hint = "Pass a package file, or the folder of an unzipped package."
    return NotAPackageError(path, f"this folder is not {kind}", hint=hint)


def _other(path: str, kind: str, hint: str, found: str = "") -> NotAPackageError:
    file = "buffer" if path.startswith("<") else repr(path)
    hint = hint.format(file=file, found=found)
    return NotAPackageError(path, f"this is {kind}, not a package", hint=hint)


def _is_text(start: bytes) -> bool:
    text = start.decode("utf-8", "ignore")  # the last character may be incomplete
    is_all = len(text.encode()) > len(start) - 4
    return is_all and all(each.isprintable() or each.isspace() for each in text)
