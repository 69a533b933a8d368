"""Every hostile pickle is refused, each for its own reason, and nothing of it is loaded."""

from __future__ import annotations

import textwrap

import pytest

from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter
from modpack.report.auditing.facts import Severity
from modpack.report.scanning.scanning import scan_package
from tests.hostile_pickles import EXTERNS, HOSTILE_PICKLES, SOURCES


def codes_for(tmp_path, data: bytes) -> dict[str, list[str]]:
    """The errors of a package with one pickle, by code."""
    path = tmp_path / "hostile.pt"
    with ArchiveWriter(path) as writer:
        writer.write(".data/version", b"6\n")
        writer.write(".data/extern_modules", "\n".join(EXTERNS).encode())
        for module, source in SOURCES.items():
            writer.write(f"{module}.py", textwrap.dedent(source).encode())
        writer.write("model/model.pkl", data)
        writer.commit()
    with open_archive(path) as archive:
        findings = scan_package(archive, None)
    errors = [each for each in findings if each.severity is Severity.ERROR]
    return {each.code: [e.text for e in errors if e.code == each.code] for each in errors}


@pytest.mark.parametrize("hostile", HOSTILE_PICKLES, ids=lambda each: each.name)
def test_it_is_refused_for_its_own_reason(tmp_path, hostile):
    codes = codes_for(tmp_path, hostile.data)
    assert hostile.code in codes
    assert all("model/model.pkl" in text for texts in codes.values() for text in texts)
