"""A search for many words finds the same as a search for each."""

from __future__ import annotations

import random

import pytest

from modpack.discovery.secret_words import _MAX_POSITIONS, WordFinder
from modpack.discovery.secrets import _ANCHORS

KNOWN = [b"ghp_", b"gho_", b"://", b"Q~", b"-----BEGIN ", b"AKIA", b"x", b"pass", b"passw"]
WORDS = WordFinder(KNOWN)


def one_by_one(data: bytes) -> set[bytes]:
    return {word for word in KNOWN if word in data}


def found_at_once(data: bytes) -> set[bytes]:
    places = WORDS.find(data)
    for word, told in places.items():
        everywhere = [at for at in range(len(data)) if data.startswith(word, at)]
        assert told in (None, everywhere)
        assert (told is None) == (len(everywhere) > _MAX_POSITIONS)
    return set(places)


@pytest.mark.parametrize("seed", range(30))
def test_find_matches_separate_searches(seed):
    numbers = random.Random(seed)
    pieces = [*KNOWN, b"gh", b"PASS", b"Credential", b"\0", b"\xff", b"p", b"-", b" KEY"]
    data = b"".join(numbers.choice(pieces)[: numbers.randrange(1, 9)] for _ in range(200))
    assert found_at_once(data) == one_by_one(data)
    binary = numbers.randbytes(200_000)
    assert found_at_once(binary) == one_by_one(binary)


@pytest.mark.parametrize("seed", range(10))
def test_find_ignores_bytes_between_letters(seed):
    numbers = random.Random(seed)
    pieces = [*KNOWN, b"\0", b"\1\2", b"123", b"\xff\xfe", b" "]
    split = [piece[:cut] + b"\0" + piece[cut:] for piece in pieces for cut in (1, 2, 3)]
    drawn = [numbers.choice([*pieces, *split]) for _ in range(30)]
    data = b"\0".join(drawn) + bytes(100_000) + b"".join(drawn[::-1])
    assert found_at_once(data) == one_by_one(data)


@pytest.mark.parametrize("word", KNOWN)
@pytest.mark.parametrize("before", [0, 1, (64 << 10) - 5, (64 << 10) - 1, 64 << 10, 200_000])
def test_find_locates_word_at_any_offset(word, before):
    assert word in WORDS.find(b"." * before + word)
    assert word in WORDS.find(bytes(before) + word + bytes(70_000))


def test_find_ignores_partial_words():
    for data in (b"gh", b"-----BEGIN", b"g\0h\0p_", b""):
        assert WORDS.find(data) == {}


def test_find_respects_case():
    assert WORDS.find(b"GHP_ akia") == {}


@pytest.mark.parametrize("word", _ANCHORS)
def test_find_locates_each_known_word_among_others(word):
    others = b" ".join(each for each in _ANCHORS if word not in each)
    assert word in WordFinder(_ANCHORS).find(others + word + others)
    assert word in WordFinder(_ANCHORS).find(bytes(9) + others + word + others)
