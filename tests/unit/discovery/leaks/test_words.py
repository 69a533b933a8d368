"""Looking for many words at once finds what looking for each of them finds."""

from __future__ import annotations

import random

import pytest

from modpack.discovery.leaks.assignments import HINTS
from modpack.discovery.leaks.finding import _ANCHORS
from modpack.discovery.leaks.words import Words

EXACT = [b"ghp_", b"gho_", b"://", b"Q~", b"-----BEGIN ", b"AKIA", b"x"]
ANY_CASE = [b"pass", b"passw", b"key", b"credential"]
WORDS = Words(EXACT, ANY_CASE)


def one_by_one(data: bytes) -> set[bytes]:
    found = {word for word in EXACT if word in data}
    return found | {word for word in ANY_CASE if word in data.lower()}


@pytest.mark.parametrize("seed", range(30))
def test_the_same_words_are_found_as_one_by_one(seed):
    numbers = random.Random(seed)
    pieces = [*EXACT, *ANY_CASE, b"gh", b"PASS", b"Credential", b"\0", b"\xff", b"p", b"-", b" KEY"]
    data = b"".join(numbers.choice(pieces)[: numbers.randrange(1, 9)] for _ in range(200))
    assert WORDS.among(data) == one_by_one(data)
    binary = numbers.randbytes(100_000)
    assert WORDS.among(binary) == one_by_one(binary)


@pytest.mark.parametrize("word", [*EXACT, *ANY_CASE])
@pytest.mark.parametrize("before", [0, 1, (64 << 10) - 5, (64 << 10) - 1, 64 << 10, 200_000])
def test_a_word_is_found_wherever_it_is(word, before):
    assert word in WORDS.among(b"." * before + word)
    assert word in WORDS.among(b"." * before + word + b"." * 70_000)


def test_a_part_of_a_word_is_none():
    assert WORDS.among(b"gh") == WORDS.among(b"-----BEGIN") == WORDS.among(b"") == frozenset()


def test_letters_count_where_a_word_is_spelled_like_that():
    assert WORDS.among(b"GHP_ akia") == frozenset()
    assert WORDS.among(b"KeY") == {b"key"}


@pytest.mark.parametrize("word", [*_ANCHORS, *HINTS])
def test_every_word_that_the_guard_knows_is_found_among_all_others(word):
    others = b" ".join(each for each in _ANCHORS if word not in each)
    assert word in Words(_ANCHORS, HINTS).among(others + word + others)
