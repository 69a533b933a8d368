"""Inputs from image files, through Pillow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, NamedTuple

import torch

from modpack.errors import DataError, InputMismatchError
from modpack.predicting.decoding import dtype_of, only_input
from modpack.predicting.rows import BadRow, Chunk, Layout, Place, row_chunk, row_spec
from modpack.predicting.values import join_problems
from modpack.running.inputs import require_library

_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by the number of channels."""
_DECODED: Final = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that Pillow decodes itself. For others, such as EPS, it runs a program."""


class Picture(NamedTuple):
    """The form in which a call takes images.

    Attributes:
        name: The input.
        channels: Number of channels.
        axis: The dimension of the channels in one row; None if there is none.
        height: Height in pixels; None if it may vary.
        width: Width in pixels; None if it may vary.
        dtype: uint8, or a floating-point dtype for values from 0 to 1.
    """

    name: str
    channels: int
    axis: int | None
    height: int | None
    width: int | None
    dtype: torch.dtype


def picture_of(file: str, layout: Layout) -> Picture:
    """Return the form in which the only input takes images.

    Raises:
        DataError: If the call takes no images.
    """
    name = only_input(layout.signature)
    if name is None:
        inputs = ", ".join(repr(spec.name) for spec in layout.signature.inputs)
        raise DataError(
            file,
            f"the model has several inputs: {inputs}",
            hint="Pass NAME=FOLDER with the input's name.",
        )
    spec = layout.specs[name]
    if spec.type == "any":
        raise DataError(
            file,
            "the package has no call signature, so the form of its images is unknown",
            hint="Export it with example_inputs, or pass a file of arrays.",
        )
    shape = row_spec(layout, name).shape or ()
    # Channels come first, as in PyTorch, or last. If both fit, the first dimension counts.
    axis = next((a for a in (0, 2) if len(shape) == 3 and shape[a] in _MODES), None)
    if spec.type != "tensor" or not (axis is not None or len(shape) == 2):
        raise DataError(file, f"the input {name!r} is {spec}, which cannot contain images")
    dtype = dtype_of(spec.name, spec.dtype)
    if dtype is not torch.uint8 and not dtype.is_floating_point:
        raise DataError(file, f"images cannot be converted to {spec.dtype}, the dtype of {name!r}")
    sides = [size for index, size in enumerate(shape) if index != axis]
    height, width = (size if isinstance(size, int) else None for size in sides)
    channels = 1 if axis is None else int(shape[axis])
    return Picture(name, channels, axis, height, width, dtype)


class ImageSource:
    """Rows of image files, one file each.

    Args:
        files: The files.
        layout: The layout of the call.
        resize: Whether to resize the images to the height and width of the call signature.
    """

    is_whole = False

    def __init__(self, files: Sequence[str], layout: Layout, resize: bool) -> None:
        self._files, self._layout, self._resize = files, layout, resize
        require_library("PIL.Image", "images")
        self._picture = picture_of(files[0], layout)
        self.total: int | None = len(files)
        fixed = self._picture.height and self._picture.width
        if resize and not fixed:
            raise DataError(files[0], "--resize requires a fixed height and width of the input")

    def chunks(self) -> Iterator[Chunk | BadRow]:
        for file in self._files:
            place = Place(file, 1)
            try:
                value = read_image(file, self._picture, self._resize)
                yield row_chunk(self._layout, {self._picture.name: value}, place)
            except InputMismatchError as failure:
                yield BadRow(place, join_problems(failure))


def read_image(file: str | IO[bytes], picture: Picture, resize: bool) -> torch.Tensor:
    """Return an image as a tensor of one row.

    Args:
        file: The file, or a stream of it.
        picture: The form in which the call takes images.
        resize: Whether to resize the image to the sides that the call signature fixes.

    Raises:
        InputMismatchError: If the file is not an image, or has another size.
        ModpackError: If a library is missing.
    """
    library = require_library("PIL.Image", "images")
    operations = require_library("PIL.ImageOps", "images")
    numpy = require_library("numpy", "images")
    try:
        with library.open(file, formats=_DECODED) as opened:
            if opened.mode[0] in "IF":  # Pillow would clip the values to 255
                raise ValueError(f"its values have more than 8 bits (mode {opened.mode})")
            # Cameras store the rotation of an image as a tag, which viewers apply.
            image = operations.exif_transpose(opened).convert(_MODES[picture.channels])
    except Exception as failure:  # Pillow's plugins raise anything for a damaged file
        reason = " ".join(str(failure).split()) or type(failure).__name__
        raise InputMismatchError((f"the image cannot be read: {reason:.200}",)) from failure
    if resize:
        size = (picture.width or image.width, picture.height or image.height)
        image = image.resize(size, library.Resampling.BILINEAR)
    _check_size(image, picture)
    pixels = torch.from_numpy(numpy.array(image))  # height, width, and perhaps channels
    if picture.axis is not None and pixels.dim() == 2:
        pixels = pixels[..., None]
    if picture.axis == 0:
        pixels = pixels.permute(2, 0, 1).contiguous()
    return pixels if picture.dtype is torch.uint8 else pixels.to(picture.dtype) / 255


def _check_size(image: Any, picture: Picture) -> None:
    width, height = image.size
    expected = (picture.height or height, picture.width or width)
    if expected != (height, width):
        can_resize = picture.height and picture.width
        text = (
            f"expected an image of {expected[0]} x {expected[1]} pixels (height x width), got "
            f"{height} x {width}{'. Pass --resize to resize it' if can_resize else ''}"
        )
        raise InputMismatchError((text,))
