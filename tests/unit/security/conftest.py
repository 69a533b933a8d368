"""Packages and keys for the tests of signatures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modpack.core.policy import Signer
from modpack.security.signing_keys import PrivateKey, generate
from modpack.writing.writer import ArchiveWriter

RECORDS = {
    ".data/version": b"6\n",
    ".data/0.storage": bytes(range(256)) * 5000,
    "pkg/net.py": b"x = 1\n" * 500,
    "pkg/é.txt": b"tea",
    ".data/1.storage": b"\1" * 100,
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a package of ``RECORDS`` and additional records as ``name``."""

    def write_package(name: str = "model.modpack", **contents: bytes) -> Path:
        path = tmp_path / name
        with ArchiveWriter(path) as writer:
            for record, content in {**RECORDS, **contents}.items():
                if record.endswith(".storage"):
                    writer.write_storage(record, memoryview(content))
                else:
                    writer.write(record, content, compress=True)
            writer.commit()
        return path

    return write_package


@pytest.fixture
def package(write: Callable[..., Path]) -> Path:
    """An unsigned package."""
    return write()


@pytest.fixture(scope="session")
def alice() -> PrivateKey:
    return generate()


@pytest.fixture(scope="session")
def bob() -> PrivateKey:
    return generate()


@pytest.fixture
def trusted() -> Callable[[str, PrivateKey], Signer]:
    """A trusted signer, by name and key."""
    return lambda name, key: Signer(name, key.public_key)
