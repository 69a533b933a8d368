"""Metadata is read as importlib.metadata and packaging read it, only faster."""

from __future__ import annotations

import email
import sys
from importlib.metadata import distributions

import pytest
from packaging.requirements import InvalidRequirement, Requirement

from modpack.resolution.metadata import headers, required_names


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
def test_headers_are_read_as_email_reads_them(text: str) -> None:
    assert headers(text) == as_email(text)


def test_what_is_installed_here_is_read_as_email_reads_it() -> None:
    for found in distributions():
        text = found.read_text("METADATA") or ""
        expected = as_email(text)
        read = headers(text)
        for key in ("name", "version", "requires-dist"):
            assert read.get(key) == expected.get(key)


def by_packaging(lines: list[str]) -> frozenset[str]:
    required = set()
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required.add(requirement.name.lower().replace("_", "-").replace(".", "-"))
    return frozenset(required)


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "Typing_Extensions>=4; python_version >= '3'",
        "numpy; python_version < '3'",
        "numpy; extra == 'all'",
        'numpy>=1; extra == "all"',
        "numpy; python_version > '3' and extra == 'all'",
        "numpy; extra == 'all' or python_version > '3'",
        "numpy; (extra == 'all') or (python_version > '3')",
        "numpy; extra == ''",
        "numpy; extra != 'all'",
        "numpy; 'all' == extra",
        "numpy; python_version > '3' and (extra == 'a' or extra == 'b')",
        "numpy @ https://example.com/numpy.zip",
        "numpy @ https://example.com/a;extra=='x'",
        "numpy @ https://example.com/a ; extra=='x'",
        "numpy ; extra == 'all' and broken",
        "num py",
        "numpy[all]; sys_platform == 'linux' or sys_platform != 'linux'",
        "tool-or-other; extra == 'x'",
        "A.b_C (>=1.0,<2)",
        "numpy >= 1 , != 1.5.0; python_version<'3.99'",
        "numpy ~= 1.4 ;python_version >= '3.99'",
        "numpy ~= 1",
        "numpy (>=1",
        "numpy >=1)",
        "numpy >=1,",
        "numpy ==1.*; python_version != '3.8'",
        "numpy >=1.*",
        "numpy 1.0",
        "numpy; python_version == '3'",
        "numpy; python_version > '3.2.1'",
        "numpy; python_version ~= '3.1'",
        "numpy; python_version < \"3.99'",
        "numpy; python_version == '3.011'",
        f"numpy; python_version == '{sys.version_info[0]}.{sys.version_info[1]}'",
        f"numpy; python_version <= '{sys.version_info[0]}.{sys.version_info[1]}'",
        f"numpy; python_version > '{sys.version_info[0]}.{sys.version_info[1]}'",
        f"numpy; sys_platform == '{sys.platform}'",
        f"numpy; sys_platform != '{sys.platform}'",
        "numpy; sys_platform > 'a'",
        "numpy; os_name == 'posix'",
        "numpy; os_name == 'nt' and python_version < '4'",
        "numpy; implementation_name != 'cpython'",
        "numpy; implementation_name == 'cpython' ; x",
        "-numpy",
        "numpy-",
        "numpy\n",
    ],
)
def test_a_requirement_counts_if_it_does_without_extras(line: str) -> None:
    assert required_names([line]) == by_packaging([line])


def test_what_is_installed_here_requires_what_packaging_says() -> None:
    for found in distributions():
        lines = found.metadata.get_all("Requires-Dist") or []
        assert required_names(lines) == by_packaging(lines)
