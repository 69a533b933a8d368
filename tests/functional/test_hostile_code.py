"""Code that is disguised as data is listed, and rejected before it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.core.codec import record_to_json
from modpack.trust.code_listing import list_code

ROOT = Path(__file__).parents[2]

DATA_AFTER_ALL = {"a pickle: a pickle in bytes", "a pickle: a pickle in a bytearray"}
"""These nested pickles are only bytes and are never unpickled."""
REFUSED_WHEN_LOADED = {"a pickle: calls a list", "a pickle: a codec"}
"""They name only data, but misuse it."""

LOAD_ALL = """
import codecs, os, sys
import modpack, torch
from modpack.errors import ModpackError
codecs.lookup("raw_unicode_escape")
import modpack.core.plan_json as plans, modpack.environment.finder
plans.plan_from_json(plans.plan_to_json(plans.Plan({}), {}))  # evaluates annotations once
modpack.load(good, policy=modpack.TrustPolicy())  # imports what loading needs
events = []
watching = False
HARMFUL = ("os.", "subprocess.", "exec", "socket.", "shutil.", "ctypes.", "pty.", "import")
def note(event, arguments):
    if watching and event.startswith(HARMFUL) and "torch." not in str(arguments[:1]):
        events.append((event, arguments))
sys.addaudithook(note)
quiet = ("os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.utime", "os.chmod",
    "os.rmdir", "shutil.rmtree")  # trees of the cache
for path in sorted(os.listdir(folder)):
    events.clear()
    watching = True
    try:
        importer = modpack.PackageImporter(folder + "/" + path, policy=modpack.TrustPolicy())
        where = "loading"
        with importer:
            outcome = repr(importer.load_pickle("__model__", "model.pkl"))[:20]
    except ModpackError as failure:
        outcome = type(failure).__name__
    finally:
        watching = False
    odd = [event for event in events if event[0] not in quiet]
    print(path, outcome, "FIRED " + repr(odd[:2]) if odd else "", sep="\\t")
print("canary", os.path.exists("modpack_canary"), sep="\\t")
"""


@pytest.fixture(scope="module")
def coded():
    """The fixtures, by name."""
    sys.path[:0] = [str(ROOT), str(ROOT / "fixtures")]
    try:
        from hostile.pickles import coded

        yield {each.name: each for each in coded()}
    finally:
        del sys.path[:2]


def test_list_code_finds_hostile_code(coded, tmp_path):
    for each in coded.values():
        with open_archive(each.make(tmp_path)) as archive:
            listing = list_code(archive, read_manifest(archive))
        is_listed = not listing.is_empty
        assert is_listed != (each.about in DATA_AFTER_ALL | REFUSED_WHEN_LOADED), each.about
        document = record_to_json(listing)
        if each.name.startswith("program"):
            assert document["programs"]


def test_policy_without_code_rejects_hostile_code(coded, tmp_path, clean_python):
    import modpack

    folder = tmp_path / "coded"
    folder.mkdir()
    for each in coded.values():
        each.make(folder)
    modpack.save({"step": 3}, tmp_path / "good.modpack")
    done = clean_python(LOAD_ALL, folder=str(folder), good=str(tmp_path / "good.modpack"))
    *rows, canary = [line.split("\t") for line in done.stdout.splitlines()]
    assert canary == ["canary", "False"]
    assert len(rows) == len(coded) > 290
    about = {f"{each.name}.modpack": each.about for each in coded.values()}
    for path, outcome, fired in rows:
        assert not fired, (path, fired)
        if about[path] in DATA_AFTER_ALL:
            assert outcome.startswith(("b'", "bytearray", "[b")), (path, outcome)
        else:
            assert outcome in ("TrustError", "UnpicklingError"), (path, outcome)
