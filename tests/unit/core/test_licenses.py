"""Licenses in distribution metadata, as SPDX expressions."""

import pytest

from modpack.core.core_metadata import license_of, parse_headers

OSI = "Classifier: License :: OSI Approved :: "


def license_in(text):
    return license_of(parse_headers(text))


@pytest.mark.parametrize(
    ("stated", "license"),
    [
        ("MIT", "MIT"),
        ("MIT License", "MIT"),
        ("Apache License 2.0", "Apache-2.0"),
        ("BSD-3-Clause OR Apache-2.0", "BSD-3-Clause OR Apache-2.0"),
        ("Apache-2.0 WITH LLVM-exception", "Apache-2.0 WITH LLVM-exception"),
        ("GPLv3+", "GPL-3.0-or-later"),
        ("GNU LGPL v3", "LGPL-3.0-only"),
        ("GPL-2.0-or-later", "GPL-2.0-or-later"),
        ("GNU GPL", "GPL"),
        ("Our Own License", "Our Own License"),
        ("UNKNOWN", None),
        ("Apache 2.0 License", "Apache-2.0"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("The MIT License", "MIT"),
        ("", None),
        ("Permission is hereby granted, free of charge, " * 10, None),
    ],
)
def test_license_of_unifies_known_spellings(stated, license):
    assert license_in(f"Metadata-Version: 2.1\nName: x\nLicense: {stated}\n") == license


def test_license_of_prefers_expression():
    text = f"License: BSD\nLicense-Expression: MIT AND PSF-2.0\n{OSI}Apache Software License\n"
    assert license_in(text) == "MIT AND PSF-2.0"


def test_license_of_prefers_exact_classifier():
    assert license_in(f"License: GPL\n{OSI}GNU General Public License v3 (GPLv3)") == "GPL-3.0-only"
    assert license_in(f"License: BSD 3-Clause\n{OSI}BSD License") == "BSD-3-Clause"


def test_license_of_joins_classifiers():
    text = f"{OSI}MIT License\n{OSI}Mozilla Public License 2.0 (MPL 2.0)\n"
    assert license_in(text) == "MIT AND MPL-2.0"


def test_license_of_classifier_without_version_is_family():
    assert license_in(f"{OSI}BSD License") == "BSD"
    assert license_in("Classifier: License :: Other/Proprietary License") == "Proprietary"


def test_license_of_ignores_unspecific_classifier():
    assert license_in("Classifier: License :: OSI Approved\nClassifier: Topic :: Software") is None


def test_license_of_ignores_license_text():
    text = f"License: {'Copyright (c) 2001 somebody. ' * 9}\n        All rights.\n{OSI}BSD License"
    assert license_in(text) == "BSD"


def test_license_of_license_text_keeps_classifier():
    text = (
        "License: Copyright (c) 2001 Somebody\n"
        "        All rights reserved.\n"
        "        \n"
        "        Redistribution and use in source and binary forms...\n"
        "Classifier: License :: OSI Approved :: BSD License\n"
    )
    assert license_in(text) == "BSD"
    assert license_in(text.partition("Classifier")[0]) is None
    assert license_in(text.replace("Copyright (c) 2001 Somebody", "MIT License")) == "MIT"


def test_license_ignores_metadata_description():
    assert license_in("Name: x\n\nLicense: MIT\n") is None
