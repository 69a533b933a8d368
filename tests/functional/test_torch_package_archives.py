"""Archives that torch.package wrote, today and in 2021, load with their values."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from modpack import PackageImporter, is_from_package, load

FOLDER = Path(__file__).parents[2] / "fixtures" / "archives" / "torch_package"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))
SETS = ("torch-1.9-py3.9", "torch-2.13-py3.11")
ARCHIVES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.pt"))


def opened_as_file(path, tmp_path):
    return PackageImporter(path)


def opened_as_text_path(path, tmp_path):
    return PackageImporter(str(path))


def opened_as_open_file(path, tmp_path):
    with path.open("rb") as file:
        return PackageImporter(file)


def opened_as_buffer(path, tmp_path):
    return PackageImporter(io.BytesIO(path.read_bytes()))


def opened_as_folder(path, tmp_path):
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "unzipped")
    return PackageImporter(tmp_path / "unzipped" / path.stem)


def opened_as_folder_around_it(path, tmp_path):
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "around")
    return PackageImporter(tmp_path / "around")


def opened_after_compression(path, tmp_path):
    target = tmp_path / "zipped_again.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name), zipfile.ZIP_DEFLATED)
    return PackageImporter(target)


def opened_without_alignment(path, tmp_path):
    target = tmp_path / "not_aligned.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name))
    return PackageImporter(target)


WAYS = (
    opened_as_file,
    opened_as_text_path,
    opened_as_open_file,
    opened_as_buffer,
    opened_as_folder,
    opened_as_folder_around_it,
    opened_after_compression,
    opened_without_alignment,
)


def plain(tensor):
    """Return the numbers of a tensor as lists, and complex numbers as pairs."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype in (torch.float16, torch.bfloat16) or "float8" in str(tensor.dtype):
        tensor = tensor.float()
    return tensor.tolist()


def check_model(importer, name):
    wanted = EXPECTED["model_archives"][name]
    pickled = importer.load_pickle("model", "expected.pkl")
    model = importer.load_pickle("model", "model.pkl")
    assert plain(pickled["input"]) == wanted["input"]
    assert plain(pickled["output"]) == wanted["output"]
    with torch.no_grad():
        assert plain(model(pickled["input"])) == wanted["output"]
    return model


def check_tiny(importer, name):
    model = check_model(importer, name)
    state = dict(model.state_dict())
    for key, tensor in EXPECTED["tiny_model_state"].items():
        assert str(state[key].dtype) == "torch." + tensor["dtype"]
        assert list(state[key].shape) == tensor["shape"]
        assert plain(state[key]) == tensor["values"]
    for key, values in EXPECTED["tiny_model_samples"].items():
        assert str(model.samples[key].dtype) == "torch." + key
        assert plain(model.samples[key]) == values
    check_sharing(model)
    assert model.config.tags == ["tiny", "größe"]
    assert is_from_package(model)
    assert importer.import_module("tinynet").__version__ == "1.0"
    assert importer.import_module("tinynet.words").words() == EXPECTED["words"].split()
    assert importer.load_text("tinynet.data", "words.txt") == EXPECTED["words"]
    assert importer.load_binary("tinynet.data", "bytes.bin") == bytes(range(256))
    shared = importer.load_pickle("model", "shared.pkl")["weight"]
    assert plain(shared) == EXPECTED["tiny_model_state"]["embed.weight"]["values"]


def check_sharing(model):
    weight = model.embed.weight
    assert model.head.weight is weight
    assert not model.out[1].bias.requires_grad
    assert model.row.data_ptr() - weight.data_ptr() == 16
    assert model.transposed.stride() == (1, 4)
    assert model.transposed.data_ptr() == weight.data_ptr()
    assert [hook.__name__ for hook in model.head._forward_hooks.values()] == ["add_one"]


def check_with_mock(importer, name):
    assert importer.load_pickle("model", "tracker.pkl").name == "t1"
    tracked = importer.import_module("tracking.tracked")
    assert tracked.area(3, 4) == 12
    with pytest.raises(NotImplementedError, match="heavytracker"):
        tracked.track(1)
    with pytest.raises(ImportError, match="farplotlib"):
        tracked.plot(1)


def check_postponed(importer, name):
    settings = importer.load_pickle("model", "settings.pkl")
    assert (settings.width, settings.name, settings.unit) == (5, "plate", "mm")
    assert settings.parent == type(settings)()


def check_new_types(importer, name):
    values = importer.load_pickle("model", "values.pkl")
    for key, wanted in EXPECTED["new_types"].items():
        found = values[key]
        assert (found.tolist() if key == "untyped_storage" else plain(found)) == wanted
    assert values["untyped_storage"].data_ptr() == values["float32"].data_ptr()


CHECKS = {
    "tiny_model": check_tiny,
    "protocol4": check_tiny,
    "fx_graph": check_model,
    "script_module": check_model,
    "with_mock": check_with_mock,
    "postponed": check_postponed,
    "new_types": check_new_types,
}


def test_archives_cover_both_format_generations():
    assert {Path(archive).parent.name for archive in ARCHIVES} == set(SETS)
    assert {Path(archive).stem for archive in ARCHIVES} == set(CHECKS)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_torch_package_archives_load_equal_values(way, tmp_path, subtests):
    for archive in ARCHIVES:
        path, folder = FOLDER / archive, tmp_path / archive
        folder.mkdir(parents=True)
        with subtests.test(archive=archive), way(path, folder) as importer:
            CHECKS[path.stem](importer, path.stem)


def test_torch_package_archives_load_in_process_namespace_in_turn(clean_python):
    printed = clean_python(
        """
        import modpack
        for path in paths:
            with modpack.PackageImporter(path, namespace="process") as importer:
                files = importer.file_structure()
                for resource in ("model.pkl", "tracker.pkl", "settings.pkl", "values.pkl"):
                    if files.has_file(f"model/{resource}"):
                        loaded = importer.load_pickle("model", resource)
                        print(path.rpartition("/")[2], type(loaded).__module__)
        """,
        paths=[str(FOLDER / archive) for archive in ARCHIVES],
    ).stdout
    lines = dict(line.split() for line in printed.splitlines())
    assert lines["tiny_model.pt"] == lines["protocol4.pt"] == "tinynet.net"
    assert lines["with_mock.pt"] == "tracking.tracked"
    assert lines["postponed.pt"] == "postponed"
    assert set(lines) == {Path(archive).name for archive in ARCHIVES}


def test_load_finds_only_pickle_of_torch_package_archive():
    assert load(FOLDER / SETS[0] / "postponed.pt").width == 5


def test_load_lists_pickles_if_ambiguous():
    path = FOLDER / SETS[0] / "tiny_model.pt"
    with pytest.raises(Exception, match=r"package='model', resource='shared\.pkl'"):
        load(path)
    assert load(path, package="model", resource="expected.pkl")["output"].shape == (2, 2)


def test_python_version_returns_recorded_version_or_none():
    versions = [PackageImporter(FOLDER / name / "postponed.pt").python_version() for name in SETS]
    assert versions == [None, "3.11.7"]


def test_map_location_moves_script_module():
    path = FOLDER / SETS[1] / "script_module.pt"
    with PackageImporter(path) as importer:
        model = importer.load_pickle("model", "model.pkl", map_location=torch.device("cpu"))
        assert model.weight.device.type == "cpu"


def test_load_does_not_change_archive(tmp_path):
    path = Path(shutil.copy(FOLDER / SETS[1] / "tiny_model.pt", tmp_path))
    before = path.read_bytes()
    with PackageImporter(path) as importer:
        model = importer.load_pickle("model", "model.pkl")
        with torch.no_grad():
            model.embed.weight.zero_()
        assert importer.load_pickle("model", "model.pkl").embed.weight.sum() > 0
    assert path.read_bytes() == before
