"""The main resource of a package."""

from __future__ import annotations

import io
import json

import pytest

from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, ModpackError
from modpack.loading.checks import find_entry, find_namespace
from modpack.writing.writer import ArchiveWriter


def archive(entry=None, *records):
    buffer = io.BytesIO()
    with ArchiveWriter(buffer) as writer:
        writer.write(".data/version", b"6\n")
        if entry is not None:
            text = entry if isinstance(entry, str) else json.dumps(entry)
            writer.write(".data/modpack/entry.json", text.encode())
        for record in records:
            writer.write(record, b"x")
        writer.commit()
    buffer.seek(0)
    return open_archive(buffer)


def test_find_entry_returns_main_object():
    entry = {"main": ["m", "main.pkl"], "pickles": [["m", "main.pkl"], ["m", "other.pkl"]]}
    assert find_entry(archive(entry)) == ("m", "main.pkl")


def test_find_entry_returns_only_object():
    entry = {"main": None, "pickles": [["m.n", "one.pkl"]]}
    assert find_entry(archive(entry)) == ("m.n", "one.pkl")


def test_find_entry_lists_several_objects():
    entry = {"main": None, "pickles": [["m", "a.pkl"], ["n", "b.pkl"]]}
    with pytest.raises(ModpackError, match="several saved objects") as caught:
        find_entry(archive(entry))
    assert "package='m', resource='a.pkl'" in str(caught.value)
    assert "package='n', resource='b.pkl'" in str(caught.value)


def test_find_entry_without_objects_raises():
    with pytest.raises(ModpackError, match=r"no saved object\. Open it with modpack\."):
        find_entry(archive({"main": None, "pickles": []}))


def test_without_a_list_the_pickles_are_found_by_their_names():
    assert find_entry(archive(None, "m/n/x.pkl", "m/words.txt")) == ("m.n", "x.pkl")
    with pytest.raises(ModpackError, match=r"'y\.pkl'"):
        find_entry(archive(None, "m/x.pkl", "m/y.pkl"))


@pytest.mark.parametrize(
    "entry",
    [
        "no json",
        "[]",
        "{}",
        {"main": 3, "pickles": []},
        {"main": ["m"], "pickles": []},
        {"main": None, "pickles": [["m"]]},
        {"main": None, "pickles": 3},
    ],
    ids=str,
)
def test_malformed_list_of_objects_raises_archive_error(entry):
    with pytest.raises(ArchiveError, match=r"entry\.json"):
        find_entry(archive(entry))


@pytest.mark.parametrize(
    ("entry", "namespace"),
    [
        (None, "private"),
        ({"main": None, "pickles": []}, "private"),
        ({"main": None, "pickles": [], "namespace": "process"}, "process"),
    ],
)
def test_find_namespace_returns_recorded_namespace(entry, namespace):
    assert find_namespace(archive(entry)) == namespace


SAVED = {"main": None, "pickles": []}


@pytest.mark.parametrize(
    "entry", ["[]", "no json", {**SAVED, "namespace": "public"}, {**SAVED, "namespace": 3}]
)
def test_find_namespace_rejects_unknown_namespace(entry):
    with pytest.raises(ArchiveError, match=r"entry\.json"):
        find_namespace(archive(entry))
