"""Image files as bodies of requests to ``modpack serve``."""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import zlib
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import modpack
from tests.serving_process import Serving

SOURCE = """
import torch

class Pixels(torch.nn.Module):
    def forward(self, image):
        return image * 2

class Fixed(torch.nn.Module):
    def forward(self, image):
        return image * torch.full((4, 5), 2, dtype=torch.uint8)

class One(torch.nn.Module):
    def forward(self, image):
        return image.reshape(1, 3, 20) * 2

class Two(torch.nn.Module):
    def forward(self, image, scale):
        return image * scale
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("images")
    (folder / "pixels.py").write_text(SOURCE)
    inputs = {
        "color": (torch.zeros(2, 3, 4, 5),),
        "gray": (torch.zeros(4, 5, dtype=torch.uint8),),
        "table": (torch.zeros(2, 3),),
        "one": (torch.zeros(1, 3, 4, 5),),
    }
    classes = {"gray": "Fixed", "one": "One"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import pixels

        for name, example in inputs.items():
            model = getattr(pixels, classes.get(name, "Pixels"))()
            modpack.save(model, folder / f"{name}.modpack", example_inputs=example)
        two = (torch.zeros(2, 3, 4, 5), torch.ones(2, 1, 1, 1))
        modpack.save(pixels.Two(), folder / "two.modpack", example_inputs=two)
        del sys.modules["pixels"]
    serving = Serving(*(folder / f"{name}.modpack" for name in (*inputs, "two")))
    yield serving
    serving.stop()


def post(served: Serving, model: str, body: bytes, media: str = "image/png", **headers: str):
    given = {"content-type": media, **headers}
    return served.client.post(f"/models/{model}/predict", content=body, headers=given)


def encoded(kind: str = "PNG", size: tuple[int, int] = (5, 4)) -> bytes:
    pixels = np.arange(size[0] * size[1] * 3, dtype="uint8").reshape(size[1], size[0], 3)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def outputs(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["output"])


def decoded(body: bytes, mode: str = "RGB") -> np.ndarray:
    return np.array(Image.open(io.BytesIO(body)).convert(mode))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "WEBP"])
def test_image_file_is_decoded(served, kind):
    body = encoded(kind)
    expected = decoded(body).transpose(2, 0, 1)[None] / np.float32(255) * 2
    media = f"IMAGE/{kind.lower()}; charset=binary"
    np.testing.assert_allclose(outputs(post(served, "color", body, media)), expected, rtol=1e-6)


def test_image_without_batch_dimension_keeps_its_type(served):
    body = encoded()
    assert (outputs(post(served, "gray", body)) == (decoded(body, "L") * 2)).all()


def test_image_of_another_size_is_resized(served):
    assert outputs(post(served, "color", encoded(size=(50, 40)))).shape == (1, 3, 4, 5)


def test_image_is_a_batch_of_one_where_the_batch_is_fixed(served):
    assert outputs(post(served, "one", encoded(size=(50, 40)))).shape == (1, 3, 20)


def test_gray_image_of_16_bits_is_not_clipped(served):
    stream = io.BytesIO()
    Image.fromarray(np.array([[300, 65535]], dtype="uint16")).save(stream, "PNG")
    answer = post(served, "gray", stream.getvalue())
    assert (answer.status_code, "more than 8 bits" in answer.text) == (400, True)


def test_compressed_image_is_decoded(served):
    body = gzip.compress(encoded())
    answer = post(served, "color", body, **{"content-encoding": "gzip"})
    assert (outputs(answer) == outputs(post(served, "color", encoded()))).all()


def eps() -> bytes:
    return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n%%EndComments\nshowpage\n%%EOF\n"


def bomb() -> bytes:
    """Return a PNG of a few bytes that claims to have 100 million pixels."""

    def part(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = part(b"IHDR", struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0))
    data = part(b"IDAT", zlib.compress(b"\0"))
    return b"\x89PNG\r\n\x1a\n" + header + data + part(b"IEND", b"")


@pytest.mark.parametrize("body", [b"", b"no image", encoded()[:50], eps(), bomb()])
def test_body_that_is_no_image_answers_400(served, body):
    answer = post(served, "color", body)
    assert (answer.status_code, "the image cannot be read" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("model", "text"), [("table", "cannot contain images"), ("two", "several inputs")]
)
def test_model_without_images_answers_415(served, model, text):
    answer = post(served, model, encoded())
    assert (answer.status_code, text in answer.text) == (415, True)
    assert "application/json" in answer.json()["error"]
    assert "FOLDER" not in answer.text  # advice for the command line


def test_other_files_answer_415_with_accepted_types(served):
    files = {"file": ("a.png", encoded(), "image/png")}
    answer = served.client.post("/models/color/predict", files=files)
    assert answer.status_code == 415
    assert "send application/json, or an image file as the body" in answer.json()["error"]
    answer = served.client.post(
        "/v2/models/color/infer", content=encoded(), headers={"content-type": "image/png"}
    )
    assert (answer.status_code, answer.json()["error"]) == (
        415,
        "content type 'image/png': send application/json",
    )


def test_json_of_any_other_type_is_read(served):
    body = json.dumps({"image": [[1, 2], [3, 4]]}).encode()
    answer = post(served, "gray", body, "application/x-www-form-urlencoded")
    assert answer.status_code == 400 and "expected uint8 (4, 5)" in answer.text
