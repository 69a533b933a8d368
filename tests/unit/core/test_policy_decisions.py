"""Violations of a trust policy."""

from __future__ import annotations

from modpack.core.plan import is_machine_code
from modpack.core.policy import TrustPolicy, import_violation, violations

NOTHING = TrustPolicy(allow_externs=(), allow_stdlib=(), allow_native=False)


def test_allowed_requirement_is_not_a_violation() -> None:
    asked = violations(
        TrustPolicy(),
        externs=["numpy", "os"],
        native_records=["a.so"],
    )
    assert asked == ()


def test_violations_lists_all_with_fixes() -> None:
    asked = violations(
        NOTHING,
        externs=["numpy", "numpy.linalg", "os", "torch.nn"],
        native_records=["fast.so"],
    )
    assert list(map(str, asked)) == [
        "extern modules 'numpy', 'numpy.linalg' are not allowed by the trust policy. If you trust "
        "the package, add 'numpy.**' to allow_externs.",
        "standard-library module 'os' is not allowed by the trust policy. If you trust the "
        "package, add 'os' to allow_stdlib.",
        "native extensions and libraries are not allowed by the trust policy: 'fast.so'. Load only "
        "packages without native code, or set allow_native to true.",
    ]


def test_names_from_a_package_are_shown_escaped_and_short() -> None:
    (asked,) = violations(NOTHING, externs=["\x1b[2J" + "x" * 10_000])
    assert "\x1b" not in str(asked) and len(str(asked)) < 500


def test_violations_shorten_long_lists() -> None:
    (asked,) = violations(NOTHING, externs=[f"numpy.m{number}" for number in range(1000)])
    assert "'numpy.m4' and 995 more" in asked.message


def test_import_violation_equals_violation_of_package() -> None:
    assert import_violation(NOTHING, "torch.nn") is None
    asked = import_violation(NOTHING, "socket")
    assert asked is not None and asked.field == "allow_stdlib" and "'socket'" in asked.message


def test_native_code_is_detected_by_name_and_magic_number() -> None:
    assert is_machine_code("pkg/fast.cpython-311-x86_64-linux-gnu.so", b"")
    assert is_machine_code("lib/libx.so.1.2", b"") and is_machine_code("a/X.PYD", b"")
    assert is_machine_code("data/blob.bin", b"\x7fELF\x02\x01\x01")
    assert is_machine_code("data/blob.bin", b"\xcf\xfa\xed\xfe\x07")
    windows = b"MZ".ljust(0x3C, b"\0") + (0x80).to_bytes(4, "little")
    assert is_machine_code("data/blob.bin", windows.ljust(0x80, b"\0") + b"PE\0\0")
    assert not is_machine_code("data/blob.bin", windows)
    assert not is_machine_code("pkg/so.py", b"import os") and not is_machine_code("a.sox", b"")
