"""What verifying finds, and that it finds nothing in good packages."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
from rich.padding import Padding

from modpack.archive import layout
from modpack.archive.reader import open_archive
from modpack.diagnostics import Severity
from modpack.errors import (
    ArchiveError,
    NotAPackageError,
    PackageNotFoundError,
    UnsupportedVersionError,
)
from modpack.report.audit_text import code_part
from modpack.report.verify import verify_package
from tests.rezipped import rezipped

FIXTURES = Path(__file__).parents[3] / "fixtures/archives/torch_package"
ANCESTORS = sorted(FIXTURES.glob("*/*.pt"))
MODEL = "__model__/model.pkl"
SPECS = f".data/modpack/hooks/{MODEL}.json"
HOOKS = f".data/modpack/hooks/{MODEL}.pkl"
OUTPUT = ".data/modpack/self_test/0/output.json"
CONDITIONS = ".data/modpack/self_test/0/conditions.json"


def told(facts, severity=None):
    """Code, subject and text of findings, in one text each."""
    chosen = [each for each in facts.findings if severity in (None, each.severity)]
    return [f"{each.code}: {each.subject}: {each.message}" for each in chosen]


def rows(facts):
    return {check.name: check.is_passed for check in facts.checks}


def document(package, record):
    with open_archive(package) as archive:
        return json.loads(archive.read(record))


def encoded(value):
    return json.dumps(value).encode()


def read(package, record):
    with open_archive(package) as archive:
        return archive.read(record)


def patched(package, target, *records, byte=0):
    """A copy in which one byte of the data of records is another one."""
    content = bytearray(package.read_bytes())
    with open_archive(package) as archive:
        for record in records:
            place = archive.data_range(record)
            content[place.offset + byte] ^= 0x10
    target.write_bytes(content)
    return target


# -- good packages ---------------------------------------------------------------------------


def test_valid_package_passes_all_checks(good):
    facts = verify_package(good)
    assert facts.passed
    assert told(facts) == []
    assert all(check.is_passed for check in facts.checks)
    counts = {check.name: check.count for check in facts.checks}
    with open_archive(good) as archive:
        names = archive.names()
        assert counts["structure"] == len(names)
        assert counts["digests"] == len(names) - 2
        assert counts["storages"] == sum(map(layout.is_storage, names)) > 0
        assert facts.digest == archive.read(layout.MANIFEST_DIGEST).decode()
    assert facts.size_bytes == good.stat().st_size
    assert counts["records"] >= 8
    assert counts["consistency"] > 3
    assert counts["pickles"] > 1
    assert facts.code is not None and facts.code.sources
    assert facts.format == "modpack 2"


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_number_of_cores_does_not_change_the_result(good, tmp_path, workers, monkeypatch):
    storages = [".data/0.storage", ".data/1.storage"]
    damaged = patched(good, tmp_path / "damaged.modpack", *storages)
    expected = verify_package(damaged)
    monkeypatch.setattr("modpack.report.verify.usable_cores", lambda: workers)
    assert verify_package(damaged) == expected


def test_verify_accepts_buffers_and_unzipped_packages(good, tmp_path):
    facts = verify_package(io.BytesIO(good.read_bytes()))
    assert facts.passed and facts.path == "<buffer>"
    with zipfile.ZipFile(good) as archive:
        archive.extractall(tmp_path / "unzipped")
    facts = verify_package(tmp_path / "unzipped")
    assert facts.passed and told(facts) == []


@pytest.mark.parametrize("archive", ANCESTORS, ids=lambda each: f"{each.parent.name}/{each.name}")
def test_verify_accepts_torch_package_archives_with_a_note(archive):
    facts = verify_package(archive)
    assert facts.passed, told(facts)
    assert facts.format == "torch.package"
    assert "torch-package-no-digests" in {each.code for each in facts.findings}
    assert len(facts.digest) == 64


# -- what is no package ----------------------------------------------------------------------


def test_verify_raises_for_files_that_are_not_packages(tmp_path):
    with pytest.raises(PackageNotFoundError):
        verify_package(tmp_path / "nothing.modpack")
    (tmp_path / "notes.txt").write_text("no package")
    with pytest.raises(NotAPackageError):
        verify_package(tmp_path / "notes.txt")


def test_verify_raises_for_torch_save_files(tmp_path):
    import torch

    torch.save(torch.ones(2), tmp_path / "weights.pt")
    with pytest.raises(NotAPackageError, match=r"torch\.load"):
        verify_package(tmp_path / "weights.pt")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_verify_recognizes_legacy_torch_save_files(tmp_path, protocol):
    import torch

    old = {"_use_new_zipfile_serialization": False, "pickle_protocol": protocol}
    torch.save(torch.ones(2), tmp_path / "weights.pt", **old)
    with pytest.raises(NotAPackageError, match=r"torch\.save in its legacy format.*torch\.load"):
        verify_package(tmp_path / "weights.pt")


def test_verify_raises_for_newer_formats(good, tmp_path):
    manifest = document(good, layout.MANIFEST)
    newer = with_manifest(good, tmp_path, encoded({**manifest, "format": 99}))
    with pytest.raises(UnsupportedVersionError, match="Install a newer version of modpack"):
        verify_package(newer)


# -- contents --------------------------------------------------------------------------------


def test_all_changed_records_are_reported(good, tmp_path):
    records = [".data/0.storage", ".data/1.storage", MODEL]
    facts = verify_package(patched(good, tmp_path / "damaged.modpack", *records))
    assert not facts.passed
    damaged = [each for each in facts.findings if each.code == "record-corrupt"]
    assert {each.subject for each in damaged} == set(records)
    assert {c.name for c in facts.checks if not c.is_passed} >= {"digests"}


def test_storage_with_forged_crc32_is_corrupt(good, tmp_path):
    """modpack would map it all the same, but no other reader takes it."""
    content = good.read_bytes()
    with open_archive(good) as archive:
        crc = archive.crc32(".data/0.storage").to_bytes(4, "little")
    wrong = bytes(byte ^ 1 for byte in crc)
    (tmp_path / "crc.modpack").write_bytes(content.replace(crc, wrong))
    facts = verify_package(tmp_path / "crc.modpack")
    assert "record-corrupt: .data/0.storage" in "".join(told(facts))


def test_truncated_archive_is_rejected(good, tmp_path):
    (tmp_path / "cut.modpack").write_bytes(good.read_bytes()[:-100])
    facts = verify_package(tmp_path / "cut.modpack")
    assert [each.code for each in facts.findings] == ["archive-invalid"]


def test_appended_bytes_are_rejected(good, tmp_path):
    (tmp_path / "longer.modpack").write_bytes(good.read_bytes() + b"more")
    facts = verify_package(tmp_path / "longer.modpack")
    assert [each.code for each in facts.findings] == ["archive-invalid"]
    assert (facts.format, facts.digest, facts.passed) == (None, None, False)


def test_unzipped_package_has_the_size_of_its_files(good, tmp_path):
    with zipfile.ZipFile(good) as archive:
        archive.extractall(tmp_path / "unzipped")
        size = sum(each.file_size for each in archive.infolist())
    assert verify_package(tmp_path / "unzipped").size_bytes == size
    top = next((tmp_path / "unzipped").iterdir())
    (top / "away").symlink_to(tmp_path)
    facts = verify_package(tmp_path / "unzipped")
    assert [each.code for each in facts.findings] == ["archive-invalid"]


def test_repacked_package_is_rejected_with_hint(good, tmp_path):
    with zipfile.ZipFile(good) as archive:
        archive.extractall(tmp_path / "unzipped")
    zipped = shutil.make_archive(str(tmp_path / "again"), "zip", tmp_path / "unzipped")
    (finding,) = verify_package(zipped).findings
    assert finding.message.endswith("another program repacked the package")
    assert finding.hint.startswith("Unzip it and load the folder")


def with_manifest(good, tmp_path, manifest, digest=None):
    """The package with another manifest, and a digest that agrees unless one is given."""
    import hashlib

    changed = tmp_path / "manifest.modpack"
    digest = hashlib.sha256(manifest).hexdigest().encode() if digest is None else digest
    contents = {layout.MANIFEST: manifest, layout.MANIFEST_DIGEST: digest}
    changed.write_bytes(rezipped(good.read_bytes(), contents))
    return changed


def test_without_valid_manifest_only_crc32_is_checked(good, tmp_path):
    manifest = read(good, layout.MANIFEST)
    facts = verify_package(with_manifest(good, tmp_path, manifest, b"0" * 64))
    assert [each.code for each in facts.findings] == ["manifest-invalid"]
    assert [check.name for check in facts.checks] == ["structure", "manifest", "crc32"]
    assert not facts.passed


def test_manifest_in_noncanonical_form_is_rejected(good, tmp_path):
    manifest = json.dumps(document(good, layout.MANIFEST), indent=1).encode()
    facts = verify_package(with_manifest(good, tmp_path, manifest))
    assert [each.code for each in facts.findings] == ["manifest-invalid"]
    assert "the JSON is not canonical" in facts.findings[0].message


# -- metadata records -------------------------------------------------------------------


def graph_with(good, **changes):
    return encoded({**document(good, layout.GRAPH), **changes})


def without(good, record, key):
    return encoded({k: v for k, v in document(good, record).items() if k != key})


@pytest.mark.parametrize(
    ("record", "content", "fragment"),
    [
        ("byteorder", b"middle", "byte order b'middle' is neither 'little' nor 'big'"),
        (layout.GRAPH, b"[]", "is not an object"),
        (layout.GRAPH, b"[" * 100_000, "not in the form that modpack writes"),
        (layout.GRAPH, None, "missing, but every package has one"),
        (layout.ENVIRONMENT, None, "missing, but every package has one"),
        (layout.ENVIRONMENT, b"{}", "'providers' is missing"),
        (layout.ENTRY, b"{", "not in the form that modpack writes"),
        (layout.ENTRY, b'{"main":null,"pickles":[["..","x/../y"]]}', "not"),
        (layout.SELF_TEST, b'{"version":1}', "has no 'passed'"),
        (layout.TENSORS, b'{"version":1}', "'resources' is missing"),
        (layout.TENSORS, b'{"version":"1","resources":{}}', "not a positive whole number"),
        (layout.TENSORS, b'{"version":true,"resources":{}}', "not a positive whole number"),
        (layout.GRAPH, b'{"version":1.0}', "not a positive whole number"),
        (layout.CALL_SIGNATURE, b'{"version":[],"calls":[]}', "not a positive whole number"),
        (SPECS, b'{"version":1.0,"hooks":[]}', "hook specs of version 1.0"),
        (SPECS, b'{"version":1,"hooks":[{}]}', "has no"),
        (SPECS, b"[" * 100_000, "cannot be read as JSON: the values are nested too deeply"),
        (OUTPUT, b"{}", "has no 'leaves'"),
        (CONDITIONS, b"{}", "has no 'grad'"),
    ],
)
def test_invalid_record_is_reported(forge, record, content, fragment):
    facts = verify_package(forge({record: content}))
    unreadable = [t for t in told(facts) if t.startswith(f"record-invalid: {record}: ")]
    assert fragment in "".join(unreadable), told(facts)
    assert not facts.passed


def test_all_invalid_records_are_reported(forge):
    broken = {layout.ENVIRONMENT: b"?", SPECS: b"?", OUTPUT: b"?"}
    facts = verify_package(forge(broken))
    unreadable = {each.subject for each in facts.findings if each.code == "record-invalid"}
    assert unreadable == set(broken)


# -- records against each other --------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"verifyshop/net.py": None}, "verifyshop.net is interned, but record"),
        ({"verifyspy.py": None}, "verifyspy is mocked, but record"),
        (
            {"verifytools/words.txt": None},
            "verifytools comes with a file, but record 'verifytools/words.txt' is missing",
        ),
        ({MODEL: None}, f"an object is saved, but record {MODEL!r} is missing"),
        ({HOOKS: None}, "of these hooks is missing"),
        ({SPECS: None}, "the hook has no spec"),
        ({OUTPUT: None}, f"the self-test has an example, but record {OUTPUT!r} is missing"),
        ({".data/modpack/hooks/a/b.pkl": b"."}, "these hooks belong to no saved object"),
    ],
)
def test_inconsistent_records_are_reported(forge, changes, expected):
    facts = verify_package(forge(changes))
    assert expected in "\n".join(told(facts, Severity.ERROR)), told(facts)
    assert "records-inconsistent" in {each.code for each in facts.findings}


def test_extern_modules_that_differ_from_the_plan_are_reported(good, forge):
    listed = read(good, layout.EXTERN_MODULES)
    facts = verify_package(forge({layout.EXTERN_MODULES: listed + b"socketserver\n"}))
    assert told(facts) == [
        "records-inconsistent: .data/extern_modules: socketserver is listed, but not extern"
    ]
    facts = verify_package(forge({layout.EXTERN_MODULES: listed.replace(b"torch\n", b"")}))
    assert "extern torch is not listed" in "".join(told(facts))


def test_code_of_denied_module_is_undeclared(good, forge):
    graph = document(good, layout.GRAPH)
    graph["modules"]["verifyspy"]["action"] = "deny"
    text = "\n".join(told(verify_package(forge({layout.GRAPH: encoded(graph)}))))
    assert "undeclared-code: verifyspy.py" in text


def test_main_object_that_was_not_saved_is_reported(good, forge):
    entry = {**document(good, layout.ENTRY), "main": ["verifyshop", "net.py"]}
    text = "\n".join(told(verify_package(forge({layout.ENTRY: encoded(entry)}))))
    assert f"{layout.ENTRY}: the main object 'verifyshop/net.py' was not saved" in text


def test_unknown_namespace_is_reported(good, forge):
    entry = {**document(good, layout.ENTRY), "namespace": "global"}
    text = "\n".join(told(verify_package(forge({layout.ENTRY: encoded(entry)}))))
    assert "record-invalid: .data/modpack/entry.json" in text


@pytest.mark.parametrize("record", ["extra.py", "verifyshop/extra.py", "fast.so", "a/b.pyd"])
def test_undeclared_code_is_a_warning(forge, record):
    facts = verify_package(forge({record: b"x = 1\n"}))
    assert told(facts) == [
        f"undeclared-code: {record}: the package records no decision for this code"
    ]
    assert facts.passed


def test_undeclared_metadata_is_a_warning(forge):
    facts = verify_package(forge({"spy-1.dist-info/METADATA": b"Name: spy\nVersion: 1\n"}))
    assert [each.code for each in facts.findings] == ["undeclared-code"]


def test_every_record_in_the_torchscript_folder_is_a_program(forge):
    record = ".data/modpack/torchscript/x.txt"
    facts = verify_package(forge({record: b"?"}))
    assert record in facts.code.programs


# -- storages --------------------------------------------------------------------------------


def test_missing_or_short_storage_of_a_pickle_is_reported(good, forge):
    for content, reason in ((None, "is missing"), (b"\0" * 4, "has 4")):
        facts = verify_package(forge({".data/0.storage": content, layout.TENSORS: None}))
        text = "\n".join(told(facts, Severity.ERROR))
        assert "storage-missing" in text and reason in text
        assert any((each.location or "").startswith(f"{MODEL}, byte ") for each in facts.findings)


def test_named_tensors_without_storage_are_reported(forge):
    facts = verify_package(forge({".data/0.storage": None, ".data/1.storage": None}))
    of_tensors = [each for each in facts.findings if each.subject == layout.TENSORS]
    assert of_tensors[0].message.count("is missing") >= 2


def test_unused_storage_is_an_info(forge):
    facts = verify_package(forge({".data/77.storage": b"hidden"}))
    assert [each.code for each in facts.findings] == ["storage-unused"]
    assert ".data/77.storage (6 bytes)" in facts.findings[0].message
    assert facts.passed


def test_short_recorded_output_is_reported(good, forge):
    with open_archive(good) as archive:
        record = next(name for name in archive.names() if name.startswith(".data/self-test-"))
    facts = verify_package(forge({record: b"\0"}))
    assert f"{record!r} must have 12 bytes, but has 1" in "".join(told(facts, Severity.ERROR))


# -- pickles ---------------------------------------------------------------------------------


def test_dangerous_names_are_listed_first_in_red(forge):
    facts = verify_package(forge({MODEL: b"cos\nsystem\n(S'true'\ntR.", HOOKS: None}))
    assert {str(name) for name in facts.code.names()[MODEL]} == {"os.system"}
    assert rows(facts)["pickles"]
    lines = list(code_part(facts.code))
    bad = next(each.renderable for each in lines[1:] if isinstance(each, Padding))
    assert (bad.plain, bad.style) == (f"{MODEL} names os.system", "bold red")


def test_pickle_with_computed_name_is_rejected(forge):
    computed = b"\x80\x04\x8c\x02os\x8c\x01a\x8c\x01bR\x93."
    facts = verify_package(forge({MODEL: computed, HOOKS: None}))
    assert "pickle-malformed" in "\n".join(told(facts, Severity.ERROR))
    assert not rows(facts)["pickles"]


def test_hooks_of_missing_object_are_not_reported(forge):
    facts = verify_package(forge({MODEL: None}))
    assert not any(each.subject == HOOKS for each in facts.findings), told(facts)
    assert [each.message for each in facts.findings if each.subject == layout.ENTRY] == [
        f"an object is saved, but record {MODEL!r} is missing"
    ]


def test_hooks_of_damaged_object_are_not_reported(good, forge):
    facts = verify_package(forge({MODEL: read(good, MODEL)[:-40]}))
    subjects = [each.subject for each in facts.findings if each.code == "pickle-malformed"]
    assert subjects == [MODEL]


def test_hooks_without_their_object_are_listed_as_code(forge):
    facts = verify_package(forge({MODEL: None, HOOKS: b"cos\nsystem\n(S'true'\ntR."}))
    assert [str(name) for name in facts.code.names()[HOOKS]] == ["os.system"]


def test_damaged_pickle_leaves_the_scan_unfinished(good, tmp_path):
    facts = verify_package(patched(good, tmp_path / "damaged.modpack", MODEL))
    codes = [each.code for each in facts.findings if each.subject == MODEL]
    assert codes == ["record-corrupt", "scan-unfinished"]


# -- torch.package ---------------------------------------------------------------------------


def test_all_damaged_records_of_a_torch_package_are_reported(tmp_path):
    good = FIXTURES / "torch-2.13-py3.11/tiny_model.pt"
    records = [".data/0.storage", ".data/1.storage"]
    facts = verify_package(patched(good, tmp_path / "tiny_model.pt", *records))
    damaged = {each.subject for each in facts.findings if each.code == "record-corrupt"}
    assert damaged == set(records)
    assert (facts.passed, facts.digest) == (False, None)


def test_invalid_archive_is_reported_with_the_record(tmp_path):
    with zipfile.ZipFile(tmp_path / "twice.modpack", "w") as archive:
        archive.writestr("p/.data/version", b"6")
        with pytest.warns(match="Duplicate name"):
            archive.writestr("p/.data/version", b"6")
    with pytest.raises(ArchiveError):
        open_archive(tmp_path / "twice.modpack")
    facts = verify_package(tmp_path / "twice.modpack")
    assert [each.code for each in facts.findings] == ["archive-invalid"]
