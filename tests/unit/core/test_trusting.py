"""What a package asks for, held against a policy."""

from __future__ import annotations

from modpack.core.plan import is_machine_code
from modpack.core.policy import TrustPolicy, import_violation, violations

NOTHING = TrustPolicy(externs=(), standard_library=(), hook_kinds=(), native=False)


def test_what_is_allowed_is_no_violation() -> None:
    asked = violations(
        TrustPolicy(),
        externs=["numpy", "os"],
        hook_kinds={"forward": ["a/forward/0"]},
        native_records=["a.so"],
    )
    assert asked == ()


def test_all_violations_are_told_each_with_its_remedy() -> None:
    asked = violations(
        NOTHING,
        externs=["numpy", "numpy.linalg", "os", "torch.nn"],
        hook_kinds={"forward": ["a/forward/0"]},
        native_records=["fast.so"],
    )
    assert list(map(str, asked)) == [
        "it takes 'numpy', 'numpy.linalg' from where it is loaded, which externs of the policy "
        "does not allow. Remedy: add 'numpy.**' to externs of the policy, if you trust the package "
        "with it",
        "it takes 'os' from where it is loaded, which standard_library of the policy does not "
        "allow. Remedy: add 'os' to standard_library of the policy, if you trust the package with "
        "it",
        "it has hooks of the kind 'forward', which hook_kinds of the policy does not allow: "
        "'a/forward/0'. Remedy: add 'forward' to hook_kinds of the policy, if you trust the "
        "package with it",
        "it holds machine code, which native of the policy does not allow: 'fast.so'. Remedy: load "
        "only a package without compiled modules, or set native to true in the policy",
    ]


def test_names_from_a_package_are_shown_escaped_and_short() -> None:
    (asked,) = violations(NOTHING, externs=["\x1b[2J" + "x" * 10_000])
    assert "\x1b" not in str(asked) and len(str(asked)) < 500


def test_of_many_names_a_few_are_told() -> None:
    (asked,) = violations(NOTHING, externs=[f"numpy.m{number}" for number in range(1000)])
    assert "'numpy.m4' and 995 more" in asked.text


def test_one_import_is_judged_the_same() -> None:
    assert import_violation(NOTHING, "torch.nn") is None
    asked = import_violation(NOTHING, "socket")
    assert asked is not None and asked.field == "standard_library" and "'socket'" in asked.text


def test_machine_code_is_known_by_its_name_and_by_how_it_starts() -> None:
    assert is_machine_code("pkg/fast.cpython-311-x86_64-linux-gnu.so", b"")
    assert is_machine_code("lib/libx.so.1.2", b"") and is_machine_code("a/X.PYD", b"")
    assert is_machine_code("data/blob.bin", b"\x7fELF\x02\x01\x01")
    assert is_machine_code("data/blob.bin", b"\xcf\xfa\xed\xfe\x07")
    windows = b"MZ".ljust(0x3C, b"\0") + (0x80).to_bytes(4, "little")
    assert is_machine_code("data/blob.bin", windows.ljust(0x80, b"\0") + b"PE\0\0")
    assert not is_machine_code("data/blob.bin", windows)
    assert not is_machine_code("pkg/so.py", b"import os") and not is_machine_code("a.sox", b"")
