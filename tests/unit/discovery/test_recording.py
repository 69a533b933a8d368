"""Records of installed distributions."""

import json

import pytest

from modpack.discovery.distributions import DistributionIndex
from modpack.discovery.recorded_distributions import recorded_closure

DIGEST = "ab" * 32


def closure_of(name):
    index = DistributionIndex()
    return recorded_closure(index, [index.named(name)])


def origin(direct_url):
    return {"direct_url.json": json.dumps(direct_url)}


def test_recorded_closure_includes_requirements(installed):
    installed("rec-shop", {"rec_shop.py": ""}, requires=["Rec_Till>=1", "rec-absent; extra == 'x'"])
    installed("Rec_Till", {"rec_till.py": ""}, version="2.0", requires=["rec-notes", "rec-shop"])
    installed("rec-notes", {"rec_notes.py": ""})
    found = closure_of("rec-shop")
    assert list(found) == ["rec-notes", "rec-shop", "rec-till"]
    assert found["rec-shop"].requires == ("rec-till",)
    assert (found["rec-till"].name, found["rec-till"].version) == ("Rec_Till", "2.0")


def test_recorded_closure_omits_missing_requirement(installed):
    installed("rec-lonely", {"rec_lonely.py": ""}, requires=["rec-nowhere"])
    found = closure_of("rec-lonely")
    assert (list(found), found["rec-lonely"].requires) == (["rec-lonely"], ("rec-nowhere",))


def test_recorded_distribution_has_license():
    assert closure_of("torch")["torch"].license is not None


def test_recorded_distribution_has_archive_hash(installed):
    archive = {"url": "file:///home/me/x.whl", "archive_info": {"hashes": {"sha256": DIGEST}}}
    installed("rec-hashed", {"rec_hashed.py": ""}, metadata=origin(archive))
    found = closure_of("rec-hashed")["rec-hashed"]
    assert (found.hashes, found.url) == ({"sha256": DIGEST}, None)


def test_recorded_distribution_accepts_older_hash_form(installed):
    archive = {"url": "https://host.example/x.whl", "archive_info": {"hash": f"sha256={DIGEST}"}}
    installed("rec-older", {"rec_older.py": ""}, metadata=origin(archive))
    found = closure_of("rec-older")["rec-older"]
    assert (found.hashes, found.url) == ({"sha256": DIGEST}, "https://host.example/x.whl")


def test_recorded_url_has_commit_and_no_credentials(installed):
    clone = {
        "url": "https://me:secret@host.example/me/tool.git",
        "vcs_info": {"vcs": "git", "commit_id": "0a1b", "requested_revision": "main"},
        "subdirectory": "python",
    }
    installed("rec-cloned", {"rec_cloned.py": ""}, metadata=origin(clone))
    found = closure_of("rec-cloned")["rec-cloned"]
    assert found.url == "git+https://host.example/me/tool.git@0a1b#subdirectory=python"


def test_recorded_ssh_url_keeps_user_name(installed):
    clone = {
        "url": "ssh://git:secret@host.example/me/tool",
        "vcs_info": {"vcs": "git", "commit_id": "0a1b"},
    }
    installed("rec-ssh", {"rec_ssh.py": ""}, metadata=origin(clone))
    assert closure_of("rec-ssh")["rec-ssh"].url == "git+ssh://git@host.example/me/tool@0a1b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"url": 3, "archive_info": 4}',
        '{"url": "file:///home/me/secret", "dir_info": {}}',
        '{"url": "https://[broken", "archive_info": {"hashes": {"md5": "00"}}}',
    ],
)
def test_recorded_url_omits_local_paths(installed, text):
    installed("rec-odd", {"rec_odd.py": ""}, metadata={"direct_url.json": text})
    found = closure_of("rec-odd")["rec-odd"]
    assert (found.hashes, found.url) == ({}, None)
