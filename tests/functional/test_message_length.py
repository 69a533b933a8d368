"""Messages about packages: no package decides how long they are."""

from __future__ import annotations

import zipfile

import pytest

import modpack
from modpack.report.verify import verify_package
from modpack.writing.writer import ArchiveWriter

MANY = 2000
ENOUGH = 4000
"""Characters of a message that a person may still read."""


@pytest.fixture
def unzipped(tmp_path):
    """An unzipped package with many resources."""
    with modpack.PackageExporter(tmp_path / "many.modpack") as exporter:
        for number in range(MANY):
            exporter.save_text("many", f"text{number}.txt", "a text")
    with zipfile.ZipFile(tmp_path / "many.modpack") as archive:
        archive.extractall(tmp_path / "unzipped")
    return tmp_path / "unzipped" / "archive"


def with_records(target, **records):
    """Write an archive of torch.package with some records."""
    with ArchiveWriter(target.with_suffix(".all")) as writer:
        for name, content in {".data/version": "6", **records}.items():
            writer.write(name, content.encode())
        writer.commit()
    with zipfile.ZipFile(target.with_suffix(".all")) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            if "/.data/modpack/" not in entry.filename:
                new.writestr(entry.filename, old.read(entry))
    return target


def test_load_counts_records_that_do_not_match(unzipped):
    for file in (unzipped / "many").iterdir():
        file.write_text("b text")
    with pytest.raises(modpack.errors.ArchiveError, match=f"{MANY} records") as told:
        modpack.PackageImporter(unzipped)
    assert f"and {MANY - 5} more" in str(told.value) and len(str(told.value)) < ENOUGH


def test_verify_counts_unlisted_files_in_one_finding(unzipped):
    for number in range(MANY):
        (unzipped / f"more{number}.py").write_bytes(b"x = 1\n")
    (finding,) = verify_package(unzipped).findings
    assert finding.code == "record-corrupt"
    assert "the manifest does not list the record" in finding.message
    assert f"and {MANY - 6} more" in finding.message and len(finding.message) < ENOUGH


def test_sign_counts_records_that_do_not_match(unzipped):
    from modpack.security.signing import sign_package
    from modpack.security.signing_keys import generate

    for file in (unzipped / "many").iterdir():
        file.write_text("b text")
    with pytest.raises(modpack.errors.ArchiveError, match="and 1995 more") as told:
        sign_package(unzipped, generate())
    assert len(str(told.value)) < ENOUGH


def test_load_counts_missing_extern_modules(tmp_path):
    names = [f"absent{number}" for number in range(MANY)]
    externs = {".data/extern_modules": "\n".join(names)}
    sources = {"uses.py": "import absent7"}
    path = with_records(tmp_path / "absent.pt", **externs, **sources)
    with pytest.warns(modpack.errors.EnvironmentMismatchWarning) as warned:
        importer = modpack.PackageImporter(path)
    assert all(len(str(each.message)) < ENOUGH for each in warned)
    with pytest.raises(modpack.errors.ExternNotFoundError, match="more") as told:
        importer.import_module("uses")
    assert len(str(told.value)) < ENOUGH
    with pytest.raises(modpack.errors.DisallowedModuleError, match="and 1995 more") as refused:
        modpack.PackageImporter(path, module_allowed=lambda name: False)
    assert len(str(refused.value)) < ENOUGH


def test_load_counts_objects_of_a_package_without_main_one(tmp_path):
    objects = {f"many/object{number}.pkl": "N." for number in range(MANY)}
    path = with_records(tmp_path / "objects.pt", **objects)
    with pytest.raises(modpack.errors.ModpackError, match="several saved objects") as told:
        modpack.load(path)
    assert "and 1995 more" in str(told.value) and len(str(told.value)) < ENOUGH
