"""The page of ``modpack serve`` on which a person tries a model."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.serving_process import Serving, export

NET = """
    import torch


    class Net(torch.nn.Module):
        def __init__(self, factor=1.0):
            super().__init__()

        def forward(self, image):
            return image.mean((1, 2, 3))
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("tried")
    path = export(folder, folder / "net.modpack", source=NET, inputs="torch.ones(3, 1, 8, 8)")
    server = Serving(path)
    yield server
    server.stop()


def gray_png(size: int, value: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes([value]) * size) * size)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_model_can_be_tried_with_an_image_and_with_numbers(chromium, serving):
    page = chromium.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda failure: problems.append(str(failure)))
    page.on("request", lambda asked: problems.extend([asked.url] * (serving.url not in asked.url)))
    page.goto(serving.url)
    assert "image: float32 (batch, 1, 8, 8)" in page.inner_text("legend")
    page.click("#send")
    expect(page.locator("#result")).to_contain_text("output")
    assert '"output": [\n  0\n ]' in page.inner_text("#result")
    png = {"name": "a.png", "mimeType": "image/png", "buffer": gray_png(16, 51)}
    page.set_input_files("input[type=file]", png)
    expect(page.locator("textarea")).to_have_value(re.compile(r"0\.2"))
    page.click("#send")
    expect(page.locator("#result")).to_contain_text("0.2")
    page.fill("textarea", "[[1]]")
    page.click("#send")
    page.wait_for_selector("#result.error")
    assert "input 'image'" in page.inner_text("#result")
    assert [each for each in problems if not each.startswith("blob:")] == []
