"""Parsing of metadata headers, compared with :mod:`email`."""

from __future__ import annotations

import email
from importlib.metadata import distributions

import pytest

from modpack.core.core_metadata import parse_headers


def as_email(text: str) -> dict[str, list[str]]:
    message = email.message_from_string(text)
    return {key.lower(): message.get_all(key) for key in message}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "Name: a",
        "Name: a\nVersion: 1\n\nName: b\n",
        "Name:a\nversion:\t1  \nNAME: b\n",
        "Name: a\r\nVersion: 1\r\n\r\nbody\r\n",
        "Name: a\rVersion: 1\r\rbody",
        "License: one\n  two\n\tthree\nName: a\n",
        "Name: a\nthis is no header\nVersion: 1\n",
        "Name: a: b; c\nX-é: 1\nVersion: 1\n",
        "Name: a\n \nVersion: 1\n",
        "Summary: line\x0bfeed \x85 in it\nName: a\n",
        "Bad Key: 1\nName: a\n",
        ": nothing\nName: a\n",
    ],
)
def test_parse_headers_matches_email(text: str) -> None:
    assert parse_headers(text) == as_email(text)


def test_parse_headers_matches_email_for_installed_metadata() -> None:
    for found in distributions():
        text = found.read_text("METADATA") or ""
        expected = as_email(text)
        read = parse_headers(text)
        for key in ("name", "version", "requires-dist", "license", "classifier"):
            assert read.get(key) == expected.get(key)


def test_core_metadata_ignores_description() -> None:
    assert parse_headers("Name: a\n\n" + "Name: b\n" * 9) == {"name": ["a"]}


def test_parse_headers_ignores_millions_of_headers() -> None:
    assert sum(map(len, parse_headers("a:\n" * 9_000_000).values())) < 1_000_000


def test_parse_headers_reads_long_header() -> None:
    text = "License: a\n" + " b\n" * 200_000 + "Version: 1\n"
    assert parse_headers(text)["version"] == ["1"]
    assert parse_headers(text)["license"][0].count("\n") == 200_000
