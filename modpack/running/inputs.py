"""Inputs as the user names them: files, folders, patterns, ``NAME=FILE``, and ``-``.

Nothing here imports torch: a mistyped path is reported at once.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from modpack.core.names import root_of
from modpack.errors import DataError, ModpackError

STDIN: Final = "-"
IMAGE: Final = "image"
"""The format of all image files."""
_IMAGES: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_NAMED: Final = re.compile(r"([A-Za-z_][\w.]*)=(.+)", re.DOTALL)


class Format(NamedTuple):
    """A format of files.

    Attributes:
        reader: Module and name of the source of inputs. "" for JSON and images, because one path
            does not open them.
        writer: Module and name of the writer of outputs, or "".
        libraries: Distributions that the format requires. The extra ``run`` installs them.
        is_table: Whether a file is a table, whose values mean nothing without a call signature.
    """

    reader: str
    writer: str
    libraries: tuple[str, ...] = ()
    is_table: bool = False


FORMATS: Final[Mapping[str, Format]] = {
    ".csv": Format("tables.CsvSource", "outputs.CsvWriter", is_table=True),
    ".json": Format("", "outputs.JsonWriter"),
    ".jsonl": Format("formats.open_jsonl", "outputs.JsonlWriter"),
    ".npy": Format("arrays.open_npy", "outputs.NpyWriter", ("numpy",)),
    ".npz": Format("arrays.open_npz", "outputs.NpzWriter", ("numpy",)),
    ".parquet": Format("tables.ParquetSource", "outputs.ParquetWriter", ("numpy", "pyarrow"), True),
    ".pt": Format("arrays.open_pt", "outputs.PtWriter"),
    ".safetensors": Format(
        "arrays.open_safetensors", "outputs.SafetensorsWriter", ("numpy", "safetensors")
    ),
    IMAGE: Format("", "", ("numpy", "pillow")),
}
"""All formats by suffix. Their code, which needs torch, is imported when a file is opened."""


class InputFile(NamedTuple):
    """One file of inputs.

    Attributes:
        path: The path, or ``-`` for stdin.
        format: Its suffix, or :data:`IMAGE`.
        name: The input that it contains. None if the file itself names its contents.
    """

    path: str
    format: str
    name: str | None = None

    @property
    def label(self) -> str:
        """The file for messages."""
        return "<stdin>" if self.path == STDIN else self.path


def format_of(path: str, purpose: str) -> str:
    """Return the format that a suffix stands for.

    Args:
        path: The path.
        purpose: ``"input"`` or ``"output"``.

    Raises:
        DataError: If the suffix is unknown.
    """
    if not path:
        raise DataError(repr(path), "this is not a file name")
    suffix = Path(path).suffix.lower()
    if suffix in _IMAGES and purpose == "input":
        return IMAGE
    suffix = ".pt" if suffix == ".pth" else suffix
    if suffix not in FORMATS:
        known = ", ".join(each for each in FORMATS if each != IMAGE)
        more = ", or an image" if purpose == "input" else ""
        named = f"the suffix {suffix!r}" if suffix else "a name without a suffix"
        raise DataError(
            path, f"{named} is not a known format of {purpose}s", hint=f"Use {known}{more}."
        )
    return suffix


def resolve_inputs(texts: Iterable[str]) -> tuple[InputFile, ...]:
    """Return the files that the arguments of a command name, in order.

    Raises:
        DataError: If a file does not exist, a folder or pattern contains no file, a format is
            unknown, or the inputs cannot be combined.
    """
    files = tuple(each for text in texts for each in _resolve(text))
    named = [each.name for each in files if each.name is not None]
    if named and len(named) < len(files):
        lone = next(each for each in files if each.name is None)
        raise DataError(lone.label, "inputs with and without a name cannot be combined")
    for name in named:
        # Images are rows, so that an input can come from many of them.
        paths = [each.path for each in files if each.name == name and each.format != IMAGE]
        if len(paths) > 1:
            raise DataError(paths[1], f"the input {name!r} already comes from {paths[0]}")
    formats = {each.format: each for each in files}
    if not named and len(formats) > 1:
        first, other, *_ = formats.values()
        raise DataError(
            other.label,
            f"files of different formats cannot be joined: {first.label} is {first.format}",
            hint="Pass NAME=FILE to give each input its own file.",
        )
    if sum(each.path == STDIN for each in files) > 1:
        raise DataError("<stdin>", "stdin can be read only once")
    return files


def _resolve(text: str) -> Sequence[InputFile]:
    if not text:
        raise DataError(repr(text), "this is not a file name")
    match = _NAMED.fullmatch(text)
    # A file that exists is never split: its name can contain an equals sign.
    name, path = (None, text) if match is None or Path(text).exists() else match.groups()
    if path == STDIN:
        return [InputFile(path, ".json", name)]
    if Path(path).is_dir():
        # Sorted, because file systems list a folder in any order, and outputs follow the inputs.
        found = sorted(str(each) for each in Path(path).iterdir() if each.is_file())
        images = [each for each in found if Path(each).suffix.lower() in _IMAGES]
        if not images:
            raise DataError(path, "the folder contains no images")
        return [InputFile(each, IMAGE, name) for each in images]
    if not Path(path).exists():
        found = glob.glob(path)  # noqa: PTH207 - the pattern may be absolute
        matching = sorted(each for each in found if Path(each).is_file())
        if matching:
            return [InputFile(each, format_of(each, "input"), name) for each in matching]
        is_pattern = glob.has_magic(path)
        reason = "no file matches this pattern" if is_pattern else "the file does not exist"
        raise DataError(path, reason)
    return [InputFile(path, format_of(path, "input"), name)]


def require_other_output(files: Iterable[InputFile], package: str, output: str) -> None:
    """Check that the output is neither an input nor the package.

    Raises:
        DataError: If it is one of them.
    """
    if not Path(output).exists():
        return
    for path in (package, *(each.path for each in files if each.path != STDIN)):
        if Path(path).exists() and os.path.samefile(path, output):  # noqa: PTH121
            what = "the package" if path == package else "one of the inputs"
            raise DataError(output, f"the output is {what}", hint="Pass another file to -o.")


def libraries_of(formats: Iterable[str]) -> tuple[str, ...]:
    """Return the distributions that formats require."""
    return tuple(sorted({name for each in formats for name in FORMATS[each].libraries}))


def code_of(part: str) -> Any:
    """Import the reader or the writer of a format."""
    module, name = part.split(".")
    return getattr(importlib.import_module(f"modpack.running.{module}"), name)


def require_library(module: str, purpose: str, extra: str = "run") -> ModuleType:
    """Import a module of an optional library.

    Args:
        module: The module.
        purpose: What requires it, such as ``".npy files"``.
        extra: The extra of modpack that installs it.

    Raises:
        ModpackError: If the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        root = root_of(module)
        # The library is installed, and fails for another reason, such as a missing requirement.
        if root_of(failure.name or "") != root:
            raise
        names = {"PIL": "Pillow", "mlflow": "MLflow"}
        raise ModpackError(
            f"{purpose} require {names.get(root, root)}, which is not installed",
            hint=f"Run: pip install 'modpack[{extra}]'",
        ) from failure


@contextlib.contextmanager
def reading(file: str) -> Iterator[None]:
    """Turn every error of a library that reads a file into one line with the file.

    Raises:
        DataError: If the block raises an exception.
    """
    try:
        yield
    except ModpackError:
        raise
    except OSError as failure:
        raise DataError(
            file, failure.strerror or f"the file cannot be read: {failure}"
        ) from failure
    except Exception as failure:
        reason = " ".join((str(failure) or type(failure).__name__).split())
        raise DataError(file, f"the file cannot be read: {reason:.200}") from failure
