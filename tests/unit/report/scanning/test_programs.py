"""Exported programs: whatever torch unpickles or evaluates when it loads one is looked at."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from modpack.archive.bytesources import BufferBytes
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.archive.ziparchive import ZipArchive
from modpack.report.auditing.facts import Severity
from modpack.report.scanning.compiled import judge_archive
from modpack.report.scanning.judging import Judge
from modpack.report.scanning.scanning import scan_package

CALL = b"cos\nsystem\n(S'true'\ntR."
CONFIG = "data/constants/model_constants_config.json"
PROGRAM = ".data/modpack/torchscript/0.pt"


def zipped(records):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {"version": b"3\n", **records}.items():
            archive.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def opened(records):
    return ZipArchive(BufferBytes(zipped(records)), DEFAULT_LIMITS)


def errors(records):
    with opened({}) as package:
        found = list(judge_archive("0.pt", zipped(records), Judge(package, None)))
    return [each for each in found if each.severity is Severity.ERROR]


def config(name, **more):
    return json.dumps({"config": {"c": {"path_name": name, **more}}}).encode()


def model(text):
    return {"models/model.json": json.dumps({"sizes": [{"a": {"expr_str": text}}]}).encode()}


@pytest.mark.parametrize(
    "name", ["data/constants/opaque_obj_0", "data/constants/OPAQUE_OBJ_0", "data/weights/a.PT"]
)
def test_what_torch_unpickles_by_its_name_is_followed(name):
    assert errors({name: CALL})


def test_a_tensor_that_a_config_has_unpickled_is_followed():
    name = "data/constants/tensor_0"
    assert errors({name: CALL, CONFIG: config("tensor_0", use_pickle=True)})
    assert not errors({name: bytes(8), CONFIG: config("tensor_0", use_pickle=False)})


def test_a_pickle_is_followed_whatever_it_begins_with():
    assert errors({"data/sample_inputs/model.pt": b"N0" + CALL})


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"config": 1}', config("../tensor_0")])
def test_a_config_that_cannot_be_read_is_an_error(content):
    assert errors({CONFIG: content})


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "s0.__class__",
        "s0[0]",
        "Max('os')",
        "Symbol('os.system', integer=True)",
        "Symbol(Symbol('s0'))",
        "Symbol('s0', cls=eval('1'))",
        "sympify(s0)",
        "eval(s0)",
        "(lambda: s0)()",
        "f'{s0}'",
        "Max(*s0)",
        1,
    ],
)
def test_an_expression_that_torch_does_not_write_is_an_error(text):
    assert errors(model(text))


@pytest.mark.parametrize(
    "text",
    [
        "s0 + 2*s1 // 3 - -s2 % 4",
        "Max(Integer(1), FloorDiv(Symbol('s17', positive=True, integer=True), Integer(2)))",
        "TruncToInt(Mul(Float('1.5', precision=53), ToFloat(Symbol('s27', integer=True))))",
        "GreaterThan(Symbol('u0', integer=True), Integer(0))",
    ],
)
def test_an_expression_that_torch_writes_is_accepted(text):
    assert not errors(model(text))


def test_a_record_of_programs_that_does_not_begin_as_an_archive_is_an_error():
    with opened({PROGRAM: b"X" * 16 + zipped({})}) as package:
        assert "nested-archive" in [each.code for each in scan_package(package, None)]


def test_a_program_with_compiled_code_is_an_error():
    assert errors({"data/aotinductor/model/a.wrapper.so": b"\x7fELF"})
