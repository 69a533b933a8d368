"""Comparison of versions, which the runtime does without the library packaging."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from modpack.environment.comparison import _is_same_version

VERSIONS = (
    *("1", "1.0", "1.0.0", "v1.0", "01.0", " 1.0 ", "0!1.0", "1!1.0", "1.0.1", "0", "0.0", "10"),
    *("1.0a", "1.0a0", "1.0alpha", "1.0-ALPHA_0", "1.0b2", "1.0.beta.2", "1.0beta-2"),
    *("1.0rc1", "1.0c1", "1.0-rc.1", "1.0RC1", "1.0preview1", "1.0pre_1", "1.0rc"),
    *("1.0.post1", "1.0-1", "1.0post1", "1.0r1", "1.0-rev_1", "1.0.post", "1.0.post0"),
    *("1.0.dev", "1.0.dev0", "1.0dev3", "1.0_dev_3", "1.0a1.dev1", "1.0a1.post2.dev3"),
)


def _expected(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def test_same_version_agrees_with_packaging():
    for one, other in itertools.product(VERSIONS, VERSIONS):
        assert _is_same_version(one, other) == _expected(one, other), (one, other)


@pytest.mark.parametrize("invalid", ["", "latest", "1..0", "1.0-", "1.0.", "!1", "1.\u0660"])
def test_invalid_version_is_the_same_only_if_equal(invalid):
    assert _is_same_version(invalid, invalid)
    assert not _is_same_version(invalid, "1.0") and not _is_same_version("1.0", invalid)


_PARTS = st.sampled_from(
    ["0", "1", "01", ".", "-", "_", "!", "a", "alpha", "rc", "c", "post", "r", "dev", "v"]
)


@given(st.lists(_PARTS, max_size=8), st.lists(_PARTS, max_size=8))
def test_same_version_agrees_with_packaging_on_any_text(one, other):
    first, second = "".join(one), "".join(other)
    assert _is_same_version(first, second) == _expected(first, second)
    normalized = str(Version(first)) if _is_version(first) else first
    assert _is_same_version(first, normalized)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
