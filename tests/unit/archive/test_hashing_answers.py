"""What a helper says is believed only if it is an answer, and starting one may fail in any way."""

from __future__ import annotations

import struct
import subprocess

import pytest

from modpack.archive import writer as hashing
from tests.unit.archive import test_hashing
from tests.unit.archive.test_hashing import has_ended, helpers, plain, write

pytestmark = test_hashing.pytestmark
__all__ = ["helpers", "plain"]

FALSE_DIGESTS = 3 * hashing._DIGEST.size * test_hashing.MANY


@pytest.mark.parametrize(
    "said",
    [
        "os.write(1, b'Welcome to the cluster\\n')",
        f"os.write(1, bytes({FALSE_DIGESTS}))",
        f"os.write(1, {struct.pack('<II', 0, 0)!r} * 9999)",
        "",
    ],
)
def test_who_says_something_else_first_is_not_believed(tmp_path, plain, helpers, monkeypatch, said):
    monkeypatch.setattr(hashing, "_START", f"import os; {said}\n{hashing._START}")
    monkeypatch.setattr(hashing, "_PATIENCE", 1.0)
    write(tmp_path / "m.pt")
    assert (tmp_path / "m.pt").read_bytes() == plain
    assert len(helpers) == 1 and all(map(has_ended, helpers))


def test_who_says_something_between_two_answers_is_not_believed(
    tmp_path, plain, helpers, monkeypatch
):
    noisy = (
        "import os, sys; sys.path.append(sys.argv[1]);"
        "from modpack.archive import hashhelper; told = hashhelper._write\n"
        "def tell(data): told(data[:100] + b'warning' + data[100:])\n"
        "hashhelper._write = tell; hashhelper.main()"
    )
    monkeypatch.setattr(hashing, "_START", noisy)
    monkeypatch.setattr(hashing, "_PATIENCE", 1.0)
    write(tmp_path / "m.pt")
    assert (tmp_path / "m.pt").read_bytes() == plain


def test_whatever_forbids_processes_forbids_only_those(tmp_path, plain, helpers, monkeypatch):
    def forbidden(*arguments, **options):
        raise KeyError("an audit hook may raise anything")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    write(tmp_path / "m.pt")
    assert (tmp_path / "m.pt").read_bytes() == plain
    assert not helpers
