"""Changed files are read again, however they were changed."""

from __future__ import annotations

import os
import sys

import pytest

from modpack.discovery.distributions import DistributionIndex, InstalledDistribution
from modpack.discovery.import_path import status_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its ctime is the file's birth")
LONG_AGO = 1_000_000_000


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def wheel(site):
    return _metadata(site / "fakedist-1.5.dist-info", "METADATA")


@pytest.fixture
def egg(site):
    return _metadata(site / "fakedist-1.5.egg-info", "PKG-INFO")


def _metadata(folder, name):
    folder.mkdir()
    (folder / name).write_text("Metadata-Version: 2.1\nName: fakedist\nVersion: 1.5\n")
    for each in (folder / name, folder, folder.parent):
        os.utime(each, (LONG_AGO, LONG_AGO))
    return folder


def edit(file, content):
    """Overwrite a file in place, and reset its mtime."""
    before = file.stat() if file.exists() else file.parent.stat()
    with file.open("r+b" if file.exists() else "wb") as opened:
        opened.write(content)
        opened.truncate()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def named(site) -> InstalledDistribution:
    found = DistributionIndex([str(site)]).named("fakedist")
    assert found is not None
    return found


def test_edit_with_reset_mtime_is_detected(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"one")
    before = status_of(str(file))
    edit(file, b"two")
    assert file.stat().st_mtime_ns == before[3]
    assert status_of(str(file)) != before


def test_metadata_edited_in_place_is_read_again(site, wheel):
    assert named(site).version == "1.5"
    edit(wheel / "METADATA", b"Metadata-Version: 2.1\nName: fakedist\nVersion: 1.6\n")
    assert named(site).version == "1.6"


def test_changed_requirements_of_egg_are_read_again(site, egg):
    edit(egg / "requires.txt", b"one\n")
    os.utime(egg, (LONG_AGO, LONG_AGO))
    assert named(site).requires == {"one"}
    edit(egg / "requires.txt", b"two\n")
    os.utime(egg, (LONG_AGO, LONG_AGO))
    assert named(site).requires == {"two"}


def test_license_added_later_is_found(site, wheel):
    (wheel / "licenses").mkdir()
    (wheel / "licenses" / "LICENSE").write_text("MIT")

    def licenses():
        index = DistributionIndex([str(site)])
        found = index.contents_of(index.named("fakedist"))
        return [name for name in found.metadata if "licenses" in name]

    assert licenses() == ["licenses/LICENSE"]
    (wheel / "licenses" / "NOTICE").write_text("of others")
    assert licenses() == ["licenses/LICENSE", "licenses/NOTICE"]
    (wheel / "licenses" / "LICENSE").unlink()
    assert licenses() == ["licenses/NOTICE"]
    (wheel / "licenses" / "of" / "others").mkdir(parents=True)
    assert licenses() == ["licenses/NOTICE"]
    (wheel / "licenses" / "of" / "others" / "LICENSE").write_text("MIT")
    assert licenses() == ["licenses/NOTICE", "licenses/of/others/LICENSE"]
