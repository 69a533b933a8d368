"""Inputs from image files."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from modpack.errors import DataError
from modpack.running.images import picture_of, read_image


@pytest.fixture
def draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()

    def put(name, width=2, height=1, color=(255, 0, 51)):
        Image.new("RGB", (width, height), color).save(f"photos/{name}")
        return f"photos/{name}"

    return put


def test_folder_of_images_is_one_batch_from_0_to_1(calls, draw):
    layout = calls.layout(calls.spec("image", "float32", ("batch", 3, 1, 2)))
    draw("b.png", color=(0, 255, 0))
    draw("a.png")
    (batch,) = calls.read(layout, "photos").batches
    assert np.allclose(
        batch["image"], [[[[1, 1]], [[0, 0]], [[0.2, 0.2]]], [[[0, 0]], [[1, 1]], [[0, 0]]]]
    )


def test_uint8_images_keep_their_values(calls, draw):
    layout = calls.layout(calls.spec("image", "uint8", ("batch", 2, 2, 3)))
    (batch,) = calls.read(layout, draw("a.png", 2, 2)).batches
    assert batch == {"image": [[[[255, 0, 51]] * 2] * 2]}


@pytest.mark.parametrize(
    ("shape", "expected"), [(("batch", 1, 1, 2), [[[[81, 81]]]]), (("batch", 1, 2), [[[81, 81]]])]
)
def test_gray_images_are_converted(calls, draw, shape, expected):
    layout = calls.layout(calls.spec("image", "uint8", shape))
    (batch,) = calls.read(layout, draw("a.png")).batches
    assert np.abs(np.array(batch["image"]) - np.array(expected)).max() <= 2


def test_image_of_another_size_names_expected_size(calls, draw):
    layout = calls.layout(calls.spec("image", "uint8", ("batch", 3, 4, 4)))
    found = calls.read(layout, draw("a.png"))
    assert found.bad == [
        "photos/a.png: row 1: expected an image of 4 x 4 pixels (height x width), got 1 x 2. "
        "Pass --resize to resize it"
    ]


def test_resize_fits_images_to_the_call(calls, draw):
    layout = calls.layout(calls.spec("image", "uint8", ("batch", 3, 4, 4)))
    (batch,) = calls.read(layout, draw("a.png"), resize=True).batches
    assert np.array(batch["image"]).shape == (1, 3, 4, 4)


def test_images_may_differ_where_dimensions_vary(calls, draw):
    layout = calls.layout(calls.spec("image", "uint8", ("batch", 3, "height", "width")))
    draw("a.png")
    draw("b.png", 3, 3)
    assert [np.array(b["image"]).shape for b in calls.read(layout, "photos").batches] == [
        (1, 3, 1, 2),
        (1, 3, 3, 3),
    ]
    with pytest.raises(DataError, match="--resize requires a fixed height and width"):
        calls.read(layout, "photos", resize=True)


def test_damaged_image_is_a_bad_row(calls, draw, tmp_path):
    layout = calls.layout(calls.spec("image", "uint8", ("batch", 3, 1, 2)))
    draw("a.png")
    (tmp_path / "photos/b.png").write_bytes(b"not an image")
    found = calls.read(layout, "photos")
    assert len(found.batches) == 1
    assert len(found.bad) == 1 and found.bad[0].startswith(
        "photos/b.png: row 1: the image cannot be read: "
    )


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([("x", "float32", ("batch", 3))], "the input 'x' is float32"),
        ([("x", "int64", ("batch", 3, 1, 2))], "images cannot be converted to int64"),
        ([("x", "any", ())], "the package has no call signature"),
        ([("x",), ("y",)], "the model has several inputs: 'x', 'y'. Pass NAME=FOLDER"),
    ],
)
def test_call_that_takes_no_images_is_rejected(calls, draw, specs, message):
    layout = calls.layout(*(calls.spec(*spec) for spec in specs))
    with pytest.raises(DataError) as failure:
        calls.read(layout, draw("a.png"))
    assert message in str(failure.value)


def test_named_folder_and_file_form_one_call(calls, draw):
    layout = calls.layout(
        calls.spec("image", "uint8", ("batch", 2, 2, 3)), calls.spec("k", shape=(2,))
    )
    draw("a.png", 2, 2)
    np.save("k.npy", np.ones(2, "float32"))
    (batch,) = calls.read(layout, "image=photos", "k=k.npy").batches
    assert batch["k"] == [1, 1] and len(batch["image"]) == 1


def test_gray_image_of_16_bits_is_a_bad_row(calls, draw, tmp_path):
    layout = calls.layout(calls.spec("image", "uint8", ("batch", 1, 1, 2)))
    Image.fromarray(np.array([[300, 65535]], dtype="uint16")).save(tmp_path / "photos/a.png")
    assert "more than 8 bits" in calls.read(layout, "photos").bad[0]


def test_image_is_resized_where_one_side_is_fixed(calls, draw):
    layout = calls.layout(calls.spec("image", "uint8", ("batch", 3, 4, "width")))
    file = draw("a.png", 2, 1)
    assert read_image(file, picture_of(file, layout), resize=True).shape == (3, 4, 2)
