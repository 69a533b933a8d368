"""Comparison of tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.package import PackageExporter as AncestorsExporter

from modpack import PackageExporter
from modpack.archive.reader import open_archive
from modpack.report.diff import compare_packages
from modpack.report.diff_facts import Change, Contents, Part
from modpack.report.diff_text import differences_lines
from modpack.writing.writer import ArchiveWriter

RECORD = ".data/modpack/tensors.json"


@pytest.fixture
def compared(tmp_path):
    """Save two objects and compare the packages."""

    def save(name, obj) -> Path:
        file = tmp_path / f"{name}.modpack"
        with PackageExporter(file) as exporter:
            exporter.extern("**")
            if isinstance(obj, nn.Module):
                exporter.save_model("m", "m.pkl", obj)
            else:
                exporter.save_pickle("m", "m.pkl", obj)
        return file

    return lambda before, after: compare_packages(save("a", before), save("b", after))


def tensors_of(found):
    return found.of(Part.TENSOR)


def sizes_of(found):
    """The change and the size of each storage that differs."""
    fields = [(each.change, each.fields[0]) for each in found.of(Part.STORAGE)]
    return [(change, int(field.before or field.after)) for change, field in fields]


def told(found):
    """For each tensor that differs: what became of it, its fields, its values."""
    return {
        each.subject: (each.change.value, {f.name: (f.before, f.after) for f in each.fields})
        for each in tensors_of(found)
    }


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))


def test_parameter_with_other_values_is_listed(compared):
    other = net()
    with torch.no_grad():
        other[1].weight[0, 0] = 7
    found = compared(net(), other)
    assert told(found) == {"1.weight": ("changed", {})}
    assert [(d.part, d.contents) for d in found.differences] == [(Part.TENSOR, Contents.DIFFERENT)]


def test_other_shape_and_dtype_are_listed(compared):
    found = compared(
        {"w": torch.zeros(3), "v": torch.zeros(2)},
        {"w": torch.zeros(4), "v": torch.zeros(2, dtype=torch.float64)},
    )
    assert told(found) == {
        "w": ("changed", {"shape": ("[3]", "[4]")}),
        "v": ("changed", {"dtype": ("float32", "float64")}),
    }


def test_frozen_parameter_is_listed(compared):
    other = net()
    other[0].bias.requires_grad_(False)
    assert told(compared(net(), other)) == {
        "0.bias": ("changed", {"requires_grad": ("true", "false")})
    }


def test_parameter_that_became_buffer_is_listed(compared):
    other = net()
    value = other[0].bias.data
    del other[0].bias
    other[0].register_buffer("bias", value)
    fields = told(compared(net(), other))["0.bias"][1]
    assert fields["kind"] == ("parameter", "buffer")


def test_renamed_tensors_are_matched_by_elements(compared):
    before, after = net(), nn.Module()
    after.layers = net()
    found = compared(before, after)
    added = {d.subject: d.same_as for d in tensors_of(found) if d.change is Change.ADDED}
    assert added == {f"layers.{name}": name for name in before.state_dict()}


def test_values_are_same_regardless_of_storage_range(compared):
    whole = torch.arange(24.0).reshape(4, 6)
    before = {"rows": whole[1:3], "turned": whole.t(), "column": whole[:, 2]}
    aside = torch.cat([torch.ones(3), whole.flatten()])[3:].reshape(4, 6)
    after = {"rows": whole[1:3].clone(), "turned": aside.t(), "column": aside[:, 2]}
    assert tensors_of(compared(before, after)) == ()


def test_values_in_other_layout_differ_by_stride(compared):
    whole = torch.arange(24.0).reshape(4, 6)
    before = {"view": whole[:, 2], "turned": whole.t()}
    after = {"view": whole[:, 2].clone(), "turned": whole.t().contiguous()}
    found = compared(before, after)
    strides = {name: list(fields) for name, (_, fields) in told(found).items()}
    assert strides == {"view": ["stride"], "turned": ["stride"]}
    assert all(each.contents is Contents.UNKNOWN for each in tensors_of(found))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64, torch.complex128])
def test_values_that_differ_in_part_of_storage_are_found(compared, dtype):
    before = torch.arange(24).reshape(4, 6).to(dtype)
    after = before.clone()
    after[3, 2] = 99
    found = compared(
        {"touched": before[2:], "untouched": before[:2], "column": before[:, 3]},
        {"touched": after[2:], "untouched": after[:2], "column": after[:, 3]},
    )
    # What changed lies between the elements of the column: the range as a whole is not the same.
    values = {each.subject: each.contents for each in tensors_of(found)}
    assert values == {"touched": Contents.DIFFERENT, "column": Contents.UNKNOWN}


def test_changed_parameter_in_flat_storage_is_found(compared):
    flat = [torch.arange(3000.0) for _ in range(2)]
    flat[1][1500] = -1
    before, after = ({f"p{n}": f[n * 100 : n * 100 + 100] for n in range(30)} for f in flat)
    assert list(told(compared(before, after))) == ["p15"]


def test_expanded_tensors_are_compared_by_stored_elements(compared):
    same = compared(
        {"e": torch.zeros(1).expand(1000, 1000)}, {"e": torch.zeros(2)[:1].expand(1000, 1000)}
    )
    assert tensors_of(same) == ()
    other = compared({"e": torch.zeros(1).expand(9, 9)}, {"e": torch.ones(2)[:1].expand(9, 9)})
    assert tensors_of(other)[0].contents is Contents.DIFFERENT


def test_untied_weights_are_listed(compared):
    tied, apart = ({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)} for _ in range(2))
    tied["b"] = tied["a"]
    apart["a"].load_state_dict(tied["a"].state_dict())
    apart["b"].load_state_dict(tied["a"].state_dict())
    found = compared(nn.ModuleDict(tied), nn.ModuleDict(apart))
    assert tensors_of(found) == ()
    shared = found.of(Part.SHARED_STORAGE)
    assert {each.change for each in shared} == {Change.REMOVED}
    assert [each.fields[0].before for each in shared] == ["a.bias, b.bias", "a.weight, b.weight"]


def test_unnamed_storages_are_compared_by_content(compared):
    before, after = {torch.float32: torch.zeros(3)}, {torch.float32: torch.ones(3)}
    found = compared(before, after)
    assert tensors_of(found) == ()
    assert sizes_of(found) == [(Change.REMOVED, 12), (Change.ADDED, 12)]
    assert found.names_tensors


def test_all_storages_are_compared_without_recorded_tensors(tmp_path):
    files = []
    for name, value in (("a", 1.0), ("b", 2.0)):
        files.append(tmp_path / f"{name}.pt")
        with AncestorsExporter(str(files[-1])) as exporter:
            exporter.save_pickle("m", "m.pkl", {"w": torch.full((3,), value), "v": torch.ones(2)})
    found = compare_packages(*files)
    assert not found.names_tensors
    assert sizes_of(found) == [(Change.REMOVED, 12), (Change.ADDED, 12)]
    assert "tensor storages: 1 added, 1 removed" in "\n".join(
        line.text for line in differences_lines(found)
    )


def test_package_is_compared_with_torch_package_archive(tmp_path):
    obj, ours, theirs = {"w": torch.ones(3)}, tmp_path / "a.modpack", tmp_path / "b.pt"
    with PackageExporter(ours) as exporter:
        exporter.save_pickle("m", "m.pkl", obj)
    with AncestorsExporter(str(theirs)) as exporter:
        exporter.save_pickle("m", "m.pkl", obj)
    found = compare_packages(ours, theirs)
    assert found.of(Part.STORAGE) == ()
    assert "format" in {each.subject for each in found.of(Part.PACKAGE)}


def test_unzipped_package_equals_its_file(compared, tmp_path):
    compared({"w": torch.arange(9.0)[2:5]}, {"w": torch.arange(9.0)[2:5] + 1})
    with open_archive(tmp_path / "b.modpack") as archive:
        for name in archive.names():
            target = tmp_path / "folder" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
    assert compare_packages(tmp_path / "b.modpack", tmp_path / "folder").passed
    found = compare_packages(tmp_path / "a.modpack", tmp_path / "folder")
    assert list(told(found)) == ["w"]


def claiming(file: Path, shape: list[int], stride: list[int]) -> Path:
    """A copy of a package that says something else of its only tensor."""
    target = file.with_suffix(".claims")
    with open_archive(file) as archive, ArchiveWriter(target) as writer:
        document = json.loads(archive.read(RECORD))
        document["resources"]["m/m.pkl"][0].update(shape=shape, stride=stride)
        for record in archive.names():
            if "manifest" not in record:
                claimed = json.dumps(document).encode()
                writer.write(record, claimed if record == RECORD else archive.read(record))
        writer.commit()
    return target


@pytest.mark.parametrize(
    ("strides", "values"),
    [(([1, 0], [1, 0]), Contents.DIFFERENT), (([1, 0], [0, 0]), Contents.UNKNOWN)],
)
def test_compare_of_huge_claimed_tensors_is_fast(compared, tmp_path, strides, values):
    compared({"w": torch.zeros(4)}, {"w": torch.ones(4)})
    before = claiming(tmp_path / "a.modpack", [4, 2**40], strides[0])
    after = claiming(tmp_path / "b.modpack", [4, 2**40], strides[1])
    (found,) = tensors_of(compare_packages(before, after))
    assert found.contents is values


def overlapping(file: Path, count: int, **claims: object) -> Path:
    """A copy of a package that claims many tensors, each one element behind the one before."""
    target = file.with_suffix(".claims")
    with open_archive(file) as archive, ArchiveWriter(target) as writer:
        document = json.loads(archive.read(RECORD))
        (one,) = document["resources"]["m/m.pkl"]
        claimed = [{**one, **claims, "name": f"t{n}", "offset": n} for n in range(count)]
        document["resources"]["m/m.pkl"] = claimed
        for record in archive.names():
            if "manifest" not in record:
                written = json.dumps(document).encode()
                writer.write(record, written if record == RECORD else archive.read(record))
        writer.commit()
    return target


@pytest.mark.parametrize(
    ("size", "count", "claims"),
    [
        (1_000_000, 3000, {"shape": [300_000, 2], "stride": [3, 1]}),
        (1_000_000, 3000, {"shape": [990_000], "stride": [1]}),
    ],
)
def test_compare_of_overlapping_tensors_stops_at_limit(compared, tmp_path, size, count, claims):
    zeros = torch.zeros(size, dtype=torch.uint8)
    other = zeros.clone()
    other[-1] = 1
    compared({"w": zeros}, {"w": other})
    before = overlapping(tmp_path / "a.modpack", count, **claims)
    after = overlapping(tmp_path / "b.modpack", count, **claims)
    tensors = tensors_of(compare_packages(before, after))
    found = {each.subject: each.contents for each in tensors}
    assert "t0" not in found  # its elements are the same
    assert found[f"t{count - 1}"] is Contents.UNKNOWN
