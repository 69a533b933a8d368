"""Core metadata of distributions: the headers of a METADATA file and the declared license.

See PEP 566 for the headers and PEP 639 for licenses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

_CLASSIFIER = "License :: "
_MAX_LICENSE_CHARACTERS = 120
"""Maximum length of a ``License`` field that names a license. A longer one is the license text."""
_PLACEHOLDERS = frozenset({"", "unknown", "none", "other", "see license", "see license file"})
_EXPRESSION: Final = r"[A-Za-z0-9.+() :-]+"
_GNU: Final = (
    r"(?i:(?:GNU )?([AL]?GPL)(?: ?-?(?:version |v)? ?([123](?:\.\d)?))?"
    r"(\+|,? or later)?(?: License)?)"
)
"""``GPLv3+``, ``GNU LGPL v3``, ``GPL 2.0 or later``, ``GNU GPL``."""

_SPDX_BY_CLASSIFIER = {
    "Academic Free License (AFL)": "AFL-3.0",
    "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
    "Eclipse Public License 2.0 (EPL-2.0)": "EPL-2.0",
    "European Union Public License 1.2 (EUPL 1.2)": "EUPL-1.2",
    "GNU Affero General Public License v3": "AGPL-3.0-only",
    "GNU Affero General Public License v3 or later (AGPLv3+)": "AGPL-3.0-or-later",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 (LGPLv2)": "LGPL-2.0-only",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 1.1 (MPL 1.1)": "MPL-1.1",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "University of Illinois/NCSA Open Source License": "NCSA",
    "Zero-Clause BSD (0BSD)": "0BSD",
    "zlib/libpng License": "Zlib",
}
"""Classifiers of a single license, with its SPDX identifier."""

_FAMILY_BY_CLASSIFIER = {
    "Apache Software License": "Apache",
    "BSD License": "BSD",
    "GNU Affero General Public License": "AGPL",
    "GNU General Public License (GPL)": "GPL",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL",
    "GNU Free Documentation License (FDL)": "GFDL",
    "Artistic License": "Artistic",
    "Public Domain": "Public Domain",
    "Other/Proprietary License": "Proprietary",
}
"""Classifiers without a license version, with the name of the license family."""

_SPDX_BY_SPELLING = {
    "mit": "MIT",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "2-clause bsd": "BSD-2-Clause",
    "3-clause bsd": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "modified bsd": "BSD-3-Clause",
    "simplified bsd": "BSD-2-Clause",
    "mpl 2.0": "MPL-2.0",
    "psf": "PSF-2.0",
    "isc": "ISC",
}
"""Common spellings, in lower case and without words such as "the" and "license"."""
_STOP_WORDS: Final = r"(?i:\b(?:the|licen[cs]e|version|software)\b|,)"

_KNOWN = frozenset(_SPDX_BY_CLASSIFIER.values()) | frozenset(_SPDX_BY_SPELLING.values())


def license_of(metadata: Mapping[str, Sequence[str]]) -> str | None:
    """Return the license that a distribution's metadata declares.

    The sources, in order of precedence: ``License-Expression`` (PEP 639); a ``License`` that is an
    SPDX expression or a known spelling; classifiers of a single license; any other one-line
    ``License``; classifiers without a license version. A ``License`` of several lines is the
    license text, of which only the first line counts. Several classifiers are joined by ``AND``,
    because the metadata does not say that the user may choose.

    Args:
        metadata: Headers of a METADATA or PKG-INFO file, from :func:`parse_headers`.

    Returns:
        An SPDX expression if the metadata allows one, otherwise its own words (``BSD``). None if
        it declares no license.

    >>> license_of({"name": ["x"], "license-expression": ["MIT OR Apache-2.0"]})
    'MIT OR Apache-2.0'
    >>> vague = "License :: OSI Approved :: BSD License"
    >>> license_of({"license": ["UNKNOWN"], "classifier": [vague]})
    'BSD'
    """
    expressions = map(str.strip, metadata.get("license-expression", ()))
    if expression := next(filter(None, expressions), ""):
        return expression
    first_line, is_text, _ = next(iter(metadata.get("license", ())), "").partition("\n")
    stated = first_line.strip()
    named = [each.strip() for each in metadata.get("classifier", ())]
    classified = [each.split(" :: ")[-1] for each in named if each.startswith(_CLASSIFIER)]
    # A category of licenses, which some metadata lists alone.
    classified = [each for each in classified if each != "OSI Approved"]
    return (
        _spdx(stated)
        or _join([_SPDX_BY_CLASSIFIER.get(each) for each in classified])
        or (None if is_text else _short_name(stated))
        or _join([_family(each) for each in classified])
    )


def _spdx(stated: str) -> str | None:
    """Return the SPDX expression for a text, or None if there is none."""
    known = _SPDX_BY_SPELLING.get(" ".join(re.sub(_STOP_WORDS, " ", stated).lower().split()))
    if known is not None:
        return known
    # Without a version, it names a family of licenses and not a license.
    if (gnu := re.fullmatch(_GNU, stated)) is not None and gnu[2]:
        version = gnu[2] if "." in gnu[2] else f"{gnu[2]}.0"
        return f"{gnu[1].upper()}-{version}-{'or-later' if gnu[3] else 'only'}"
    parts = re.split(r"\s+(?:AND|OR|WITH)\s+", stated.strip("()"))
    is_expression = (
        bool(re.fullmatch(_EXPRESSION, stated)) and len(stated) <= _MAX_LICENSE_CHARACTERS
    )
    return stated if is_expression and all(map(_looks_like_identifier, parts)) else None


def _looks_like_identifier(text: str) -> bool:
    """Return whether a text has the form of an SPDX identifier of one license."""
    text = text.strip("() ")
    # The version tells unknown identifiers from words with hyphens, such as "non-commercial".
    return text in _KNOWN or bool(re.fullmatch(r"[A-Za-z0-9]+(-[A-Za-z0-9.]+)*-\d[\w.+-]*", text))


def _short_name(stated: str) -> str | None:
    """Return a license name, or None for a placeholder or a license text."""
    if stated.lower().rstrip(".") in _PLACEHOLDERS or len(stated) > _MAX_LICENSE_CHARACTERS:
        return None
    family = re.fullmatch(_GNU, stated)
    return family[1].upper() if family is not None else stated


def _family(classifier: str) -> str:
    return _SPDX_BY_CLASSIFIER.get(classifier) or _FAMILY_BY_CLASSIFIER.get(classifier, classifier)


def _join(licenses: list[str | None]) -> str | None:
    """Return all licenses joined by AND, or None if any is unknown or there is none."""
    known = [license for license in dict.fromkeys(licenses) if license is not None]
    # One unknown license makes the expression wrong, so a less exact source is used.
    return " AND ".join(known) if known and None not in licenses else None


_NEXT: Final = r"\n(?![ \t])"
"""The end of a header. A line that starts with whitespace continues the previous one."""
_NAME_HEADER: Final = r"([!-9;-~]*):[ \t]*"
_MAX_HEADER_CHARACTERS: Final = 1 << 20
"""Limit on the length of all headers: about a hundred times the usual length with a license."""


def parse_headers(text: str) -> Mapping[str, list[str]]:
    r"""Return the headers of a METADATA or PKG-INFO file, by lowercase name.

    The description after the headers is often longer than all of them. It is skipped, which makes
    this much faster than :mod:`email`.

    Args:
        text: Content of the file. Headers after about a million characters are ignored.

    >>> parse_headers("Name: a\nRequires-Dist: b\nRequires-Dist: c\n\nName: of something else")
    {'name': ['a'], 'requires-dist': ['b', 'c']}
    """
    text = text[:_MAX_HEADER_CHARACTERS]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    found: dict[str, list[str]] = {}
    for header in re.split(_NEXT, text.partition("\n\n")[0]):
        name = re.match(_NAME_HEADER, header)
        if name is None:
            break
        found.setdefault(name[1].lower(), []).append(header[name.end() :])
    found.pop("", None)  # a line without a name is ignored, but does not end the headers
    return found
