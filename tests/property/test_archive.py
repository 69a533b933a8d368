"""Archives round trip, and damage is detected."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modpack.archive.layout import NameRegistry, check_record_name
from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, ModpackError
from modpack.writing.writer import ArchiveWriter
from tests.property_settings import examples

names = st.text(st.characters(codec="utf-8"), max_size=12) | st.from_regex(
    r"([a-c]|\.|é|/){1,6}", fullmatch=True
)
contents = st.binary(max_size=300) | st.integers(0, 4000).map(lambda size: b"again " * size)


def write(records):
    buffer = io.BytesIO()
    with ArchiveWriter(buffer) as writer:
        writer.write(".data/version", b"6\n")
        for name, content, how in records:
            if how == "storage":
                writer.write_storage(name, memoryview(content))
            else:
                writer.write(name, content, compress=how == "compress")
        writer.commit()
    return buffer.getvalue()


def read_all(content):
    """Return all records after verifying the manifest."""
    archive = open_archive(io.BytesIO(content))
    manifest = read_manifest(archive)
    if manifest is None:
        raise ArchiveError(archive.path, "it has no manifest")
    verify_records(archive, manifest, archive.names())
    return {name: archive.read(name) for name in archive.names()}


@examples(100)
@given(
    st.lists(
        st.tuples(names, contents, st.sampled_from(["plain", "compress", "storage"])), max_size=8
    )
)
def test_records_round_trip(records):
    registry = NameRegistry()
    registry.add(".data/version")
    called = [
        (f".data/{number}.storage" if how == "storage" else name, content, how)
        for number, (name, content, how) in enumerate(records)
    ]
    accepted = [
        (name, content, how)
        for name, content, how in called
        if check_record_name(name) is None and registry.add(name) is None
    ]
    found = read_all(write(accepted))
    assert {name: found[name] for name, _, _ in accepted} == {
        name: content for name, content, _ in accepted
    }
    assert len(found) == len(accepted) + 3


@examples(100)
@given(st.lists(names, max_size=5))
def test_write_rejects_unsafe_and_colliding_names_only(listed):
    registry, writer = NameRegistry(), ArchiveWriter(io.BytesIO())
    for name in listed:
        if check_record_name(name) is None and registry.add(name) is None:
            writer.write(name, b"")
            assert writer.has(name)
        else:
            with pytest.raises(ArchiveError):
                writer.write(name, b"")


INTACT = write(
    [
        ("pkg/__init__.py", b"", "plain"),
        ("pkg/ünï.txt", b"hello", "plain"),
        ("pkg/text", b"again and again " * 20, "compress"),
        (".data/0.storage", bytes(range(100)), "storage"),
    ]
)
CONTENTS = read_all(INTACT)


@examples(600)
@given(st.integers(0, len(INTACT) - 1), st.integers(1, 255))
def test_flipped_byte_is_detected_or_harmless(position, mask):
    damaged = bytearray(INTACT)
    damaged[position] ^= mask
    try:
        found = read_all(bytes(damaged))
    except ModpackError:
        return
    assert found == CONTENTS


@examples(200)
@given(st.integers(0, len(INTACT)), st.integers(0, 40), st.binary(max_size=40))
def test_splice_is_detected_or_harmless(position, removed, inserted):
    damaged = INTACT[:position] + inserted + INTACT[position + removed :]
    try:
        found = read_all(damaged)
    except ModpackError:
        return
    assert found == CONTENTS


@examples(200)
@given(st.binary(max_size=200), st.binary(max_size=60))
def test_random_bytes_raise_modpack_error(noise, tail):
    for content in (noise, b"PK\3\4" + noise, noise + b"PK\5\6" + tail):
        with pytest.raises(ModpackError):
            open_archive(io.BytesIO(content))


@examples(60)
@given(
    st.lists(st.tuples(names, contents), max_size=6),
    st.lists(st.tuples(names, contents), max_size=6),
    st.lists(st.tuples(names, contents), max_size=6),
)
def test_rollback_removes_records(before, forgotten, after):
    def written(*groups, forgetting=()):
        buffer = io.BytesIO()
        with ArchiveWriter(buffer) as writer:
            writer.write(".data/version", b"6\n")
            add(writer, groups[0])
            checkpoint = writer.checkpoint()
            add(writer, forgetting)
            if forgetting:
                with writer.open_preview():
                    pass
                writer.rollback(checkpoint)
            add(writer, groups[1])
            writer.commit()
        return buffer.getvalue()

    def add(writer, records):
        for name, content in records:
            try:
                writer.write(name, content, compress=True)
            except ArchiveError:
                continue  # the name is taken or unsafe, both times

    assert written(before, after, forgetting=forgotten) == written(before, after)
