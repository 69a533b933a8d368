import hashlib
import io
import json
import zipfile

import pytest

from modpack.archive import layout
from modpack.archive.manifest import (
    Manifest,
    RecordDigest,
    canonical_json,
    contents_digest,
    package_digest,
    read_manifest,
    verify_records,
)
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, UnsupportedVersionError
from modpack.writing.writer import ArchiveWriter

RECORDS = {"pkg/a.py": b"x = 1\n", "pkg/é.txt": b"", ".data/0.storage": bytes(2 << 20)}


def zip_with(records):
    """A buffer with a package that another program wrote."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {layout.VERSION: b"6\n", **records}.items():
            archive.writestr(f"p/{name}", content)
    buffer.seek(0)
    return open_archive(buffer)


def with_manifest(content, digest=None):
    digest = hashlib.sha256(content).hexdigest().encode() if digest is None else digest
    return zip_with({layout.MANIFEST: content, layout.MANIFEST_DIGEST: digest})


def a_manifest(**changes):
    return {"format": 2, "writer": "modpack x", "digest": "sha256", "records": [], **changes}


def test_manifest_lists_all_other_records(write_package):
    with open_archive(write_package(RECORDS)) as archive:
        manifest = read_manifest(archive)
        assert manifest.format == 2
        assert manifest.writer.startswith("modpack ")
        assert manifest.records == {
            name: RecordDigest(len(content), hashlib.sha256(content).hexdigest())
            for name, content in {layout.VERSION: b"6\n", **RECORDS}.items()
        }


def test_manifest_is_canonical_json(write_package):
    with open_archive(write_package(RECORDS)) as archive:
        content = archive.read(layout.MANIFEST)
    assert canonical_json(json.loads(content)) == content
    assert content.startswith(b'{"digest":"sha256","format":2,"records":[[".data/version",2,"06e9')


def test_package_digest_equals_manifest_digest(tmp_path):
    with ArchiveWriter(tmp_path / "m.pt") as writer:
        writer.write(layout.VERSION, b"6\n")
        returned = writer.commit()
    with open_archive(tmp_path / "m.pt") as archive:
        content = archive.read(layout.MANIFEST)
        assert returned == hashlib.sha256(content).hexdigest() == package_digest(archive)
        assert archive.read(layout.MANIFEST_DIGEST) == returned.encode()


def test_package_digest_ignores_file_name(write_package):
    first = open_archive(write_package(RECORDS, "one.pt"))
    second = open_archive(write_package(RECORDS, "two.pt"))
    other = open_archive(write_package({**RECORDS, "pkg/a.py": b"x = 2\n"}, "three.pt"))
    assert package_digest(first) == package_digest(second) != package_digest(other)


def test_package_digest_without_manifest_covers_contents(tmp_path):
    archive = zip_with(RECORDS)
    assert read_manifest(archive) is None
    names = dict(reversed(RECORDS.items()))
    assert package_digest(zip_with(names)) == package_digest(archive)
    for changed in ({"pkg/a.py": b"x = 2\n"}, {".data/0.storage": b"\1" * (2 << 20)}, {"new": b""}):
        assert package_digest(zip_with({**RECORDS, **changed})) != package_digest(archive)


def test_package_digest_without_manifest_is_same_unzipped(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as zipped:
        for name, content in {layout.VERSION: b"6\n", **RECORDS}.items():
            zipped.writestr(f"p/{name}", content)
        zipped.extractall(tmp_path / "out")
    assert package_digest(open_archive(tmp_path / "m.pt")) == package_digest(
        open_archive(tmp_path / "out")
    )


def test_contents_digest_ignores_other_records(write_package):
    some = ["pkg/a.py", "pkg/é.txt"]

    def digest(**changed):
        return contents_digest(open_archive(write_package({**RECORDS, **changed}, "m.pt")), some)

    first = digest()
    assert first == digest(**{".data/0.storage": bytes(3)}) == digest(more=b"")
    assert first != digest(**{"pkg/a.py": b"x = 2\n"})
    archive = open_archive(write_package({**RECORDS, "pkg/b.py": b""}, "m.pt"))
    assert first == contents_digest(archive, reversed(some)) != contents_digest(archive, some[:1])
    assert contents_digest(archive, ["pkg/b.py"]) != contents_digest(archive, ["pkg/é.txt"])


def test_contents_digest_without_manifest_is_package_digest():
    archive = zip_with(RECORDS)
    assert contents_digest(archive, ["pkg/a.py"]) == package_digest(archive)


def test_read_manifest_rejects_newer_format():
    with pytest.raises(UnsupportedVersionError, match=r"format 3, .* supports format 2"):
        read_manifest(with_manifest(canonical_json(a_manifest(format=3, records="unheard of"))))


@pytest.mark.parametrize(
    "document",
    [
        [],
        a_manifest(format=0),
        a_manifest(format="1"),
        a_manifest(format=True),
        a_manifest(writer=None),
        a_manifest(digest="md5"),
        a_manifest(records={}),
        a_manifest(records=["a"]),
        a_manifest(records=[["a", 1]]),
        a_manifest(records=[[1, 1, "0" * 64]]),
        a_manifest(records=[["a", 1, "0" * 64, "0" * 64, "0" * 64]]),
        a_manifest(records=[["a", "1", "0" * 64]]),
        a_manifest(records=[["a", 1, "x" * 64]]),
        a_manifest(records=[["a", 1, "0" * 64, ""]]),
        a_manifest(format=1),
    ],
)
def test_read_manifest_rejects_other_shapes(document):
    with pytest.raises(ArchiveError, match=r"manifest\.json"):
        read_manifest(with_manifest(canonical_json(document)))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":1,"a":2}', b"9" * 5000]
)
def test_read_manifest_rejects_invalid_json(content):
    with pytest.raises(ArchiveError, match=r"manifest\.json"):
        read_manifest(with_manifest(content))


@pytest.mark.parametrize(
    "records",
    [
        '[{"a":"%s","a":"%s"}]',
        '[["a",1,"%s"]],"records":[["b",1,"%s"]]',
    ],
)
def test_read_manifest_rejects_duplicate_keys(records):
    form = canonical_json(a_manifest())
    content = form.replace(b"[]", records.encode() % (b"0" * 64, b"1" * 64))
    with pytest.raises(ArchiveError, match="a key occurs twice"):
        read_manifest(with_manifest(content))


def test_read_manifest_rejects_duplicate_records():
    rows = [["b", 1, "0" * 64], ["a", 1, "0" * 64], ["a", 1, "0" * 64]]
    with pytest.raises(ArchiveError, match="the manifest lists 'a' twice"):
        read_manifest(with_manifest(canonical_json(a_manifest(records=rows))))


def test_read_manifest_ignores_unknown_keys(tmp_path):
    content = canonical_json(a_manifest(notes=[{"size": 1}]))
    digest = hashlib.sha256(content).hexdigest().encode()
    records = {layout.VERSION: b"6\n", layout.MANIFEST: content, layout.MANIFEST_DIGEST: digest}
    for name, data in records.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with open_archive(tmp_path) as archive:
        assert read_manifest(archive).records == {}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({1: True}, "the size of 'r7' is not valid"),
        ({1: -1}, "the size of 'r7' is not valid"),
        ({1: 1.0}, "the size of 'r7' is not valid"),
        ({1: None}, "the size of 'r7' is not valid"),
        ({2: "A" * 64}, "digest of 'r7' is not valid"),
        ({2: "0" * 63}, "digest of 'r7' is not valid"),
        ({2: "0" * 64 + "\n"}, "digest of 'r7' is not valid"),
        ({2: ["0" * 64]}, "digest of 'r7' is not valid"),
        ({3: "0" * 63}, "digest of 'r7' is not valid"),
        ({3: None}, "digest of 'r7' is not valid"),
    ],
)
def test_read_manifest_names_invalid_row(wrong, reason):
    rows = [[f"r{n}", n, f"{n:064x}", f"{n:064x}"] for n in range(20)]
    for place, value in wrong.items():
        rows[7][place] = value
    with pytest.raises(ArchiveError, match=reason):
        read_manifest(with_manifest(canonical_json(a_manifest(records=rows))))


def test_read_manifest_rejects_wrong_digest():
    with pytest.raises(ArchiveError, match="does not match the digest"):
        read_manifest(with_manifest(canonical_json(a_manifest()), digest=b"0" * 64))


def test_read_manifest_rejects_missing_manifest():
    with pytest.raises(ArchiveError, match=r"but not '\.data/modpack/manifest\.json'"):
        read_manifest(zip_with({layout.GRAPH: b"{}"}))


def test_verify_records_accepts_zipped_and_unzipped(write_package, tmp_path):
    path = write_package(RECORDS, compress=True)
    with zipfile.ZipFile(path) as zipped:
        zipped.extractall(tmp_path / "out")
    for source in (path, tmp_path / "out"):
        archive = open_archive(source)
        verify_records(archive, read_manifest(archive), archive.names())


def test_verify_records_lists_all_differences():
    def said(content):
        return RecordDigest(len(content), hashlib.sha256(content).hexdigest())

    declared = {layout.VERSION: said(b"6\n"), "missing": said(b""), "long": said(b"12")}
    declared |= {"changed": said(b"one"), "unasked": said(b"one"), "fine": said(b"1")}
    archive = zip_with(
        {"long": b"123", "changed": b"two", "unasked": b"two", "undeclared": b"", "fine": b"1"}
    )
    with pytest.raises(ArchiveError) as caught:
        verify_records(archive, Manifest(1, "modpack x", declared), ["changed", "fine", "nowhere"])
    for part in (
        "5 records",
        "'missing': the record is missing",
        "'long': the record has 3 bytes instead of 2",
        "'changed': the SHA-256",
        "'undeclared': the manifest does not list the record",
        "'nowhere': no such record",
    ):
        assert part in str(caught.value)
    assert "unasked" not in str(caught.value)
    assert "fine" not in str(caught.value)


def test_verify_records_lists_crc_errors(write_package):
    path = write_package({"a": b"hello", "b": b"world"})
    path.write_bytes(path.read_bytes().replace(b"hello", b"hallo").replace(b"world", b"wurld"))
    archive = open_archive(path)
    with pytest.raises(ArchiveError, match=r"2 records.*'a': .*CRC-32.*'b': .*CRC-32"):
        verify_records(archive, read_manifest(archive), archive.names())


def test_read_checks_given_manifest(write_package, tmp_path):
    with zipfile.ZipFile(write_package(RECORDS)) as zipped:
        zipped.extractall(tmp_path / "out")
    (tmp_path / "out/archive/pkg/a.py").write_bytes(b"x = 2\n")
    (tmp_path / "out/archive/pkg/new.py").write_bytes(b"")
    archive = open_archive(tmp_path / "out")
    manifest = read_manifest(archive)
    assert archive.read("pkg/a.py") == b"x = 2\n"
    assert archive.read("pkg/é.txt", verify=manifest) == b""
    with pytest.raises(ArchiveError, match="SHA-256"):
        archive.read("pkg/a.py", verify=manifest)
    with pytest.raises(ArchiveError, match="not list"):
        archive.read("pkg/new.py", verify=manifest)
