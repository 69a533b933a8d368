"""Notes about small views, which save a large storage in full."""

from __future__ import annotations

import io
import json
import warnings

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import modpack
from modpack.cli import cli
from modpack.diagnostics import Severity

MANY = 500_000
"""Number of float32 elements of a large storage of two million bytes."""


class Model(nn.Module):
    """A module with arbitrary attributes."""

    def __init__(self, **attributes):
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


def notes_of(*objects, **saved):
    """Return the notes about storages in the plan of some saved objects."""
    exporter = modpack.PackageExporter(None)
    exporter.extern("tests.**")
    exporter.extern("test_large_storages")
    for number, obj in enumerate(objects):
        exporter.save_pickle("m", f"{number}.pkl", obj)
    if saved:
        exporter.save_model("m", "model.pkl", **saved)
    notes = exporter.plan().notes
    return [note for note in notes if note.code == "large-storage-view"]


def table(dtype=torch.float32):
    return torch.zeros(MANY // 100, 100, dtype=dtype)


def test_note_of_large_storage_has_path_size_and_hint():
    (note,) = notes_of({"model": nn.ModuleList([Model(rows=table()[:3])])})
    assert note.subject == "obj['model'][0].rows"
    assert note.message == (
        "obj['model'][0].rows uses 1.2 kB of a storage of 2.0 MB, which is saved in full"
    )
    assert note.hint == "If the rest is not needed, save a copy of it (.clone())."
    assert note.severity is Severity.WARNING


WASTEFUL = {
    "a row": lambda: table()[7],
    "a column": lambda: table()[:, 7],
    "a scalar": lambda: table()[0, 0],
    "a number that stands for many": lambda: table()[0, 0].expand(MANY),
    "a parameter": lambda: nn.Parameter(table()[:3]),
    "a buffer": lambda: nn.Buffer(table()[:3]),
    "a subclass": lambda: table()[:3].as_subclass(type("Rows", (torch.Tensor,), {})),
    "a type without storage class": lambda: table(torch.uint32)[:3],
    "complex numbers": lambda: table(torch.complex64)[:3].conj(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(table(), 1.0, 0, torch.qint32)[:3],
    "values of a sparse tensor": lambda: torch.sparse_coo_tensor([[0]], table()[0, :1], (9,)),
    "every other element, twice": lambda: [table()[:3, ::2]] * 2,
}


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("make", WASTEFUL.values(), ids=WASTEFUL)
def test_small_view_is_reported_for_every_kind_of_tensor(make):
    value = make()
    if type(value).__name__ == "Rows":  # a local class, which cannot be saved
        value = value.as_subclass(torch.Tensor)
    assert len(notes_of([value])) == 1


def halves():
    whole = torch.zeros(MANY)
    return [whole[: MANY // 2], whole[MANY // 2 :]]


def tied():
    embedding = nn.Embedding(MANY // 100, 100)
    head = nn.Linear(100, MANY // 100, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, head)


def flattened():
    flat = torch.zeros(MANY)
    return nn.ParameterList(nn.Parameter(part.view(-1, 100)) for part in flat.chunk(50))


def with_its_storage():
    tensor = torch.zeros(MANY)
    return {"first": tensor[:1], "all": tensor.untyped_storage()}


def with_typed_storage():
    tensor = torch.zeros(MANY)
    return {"first": tensor[:1], "all": tensor._typed_storage()}


THRIFTY = {
    "all of it": lambda: table(),
    "all of it, transposed": lambda: table().t(),
    "a view beside the whole": lambda: (lambda whole: [whole[:3], whole])(table()),
    "parts that make the whole": halves,
    "tied parameters": tied,
    "parameters in one flat buffer": flattened,
    "most of it": lambda: torch.zeros(MANY)[: MANY * 2 // 3],
    "little of little": lambda: torch.zeros(1000)[:1],
    "a copy of three rows": lambda: table()[:3].clone(),
    "a storage by itself": with_its_storage,
    "a typed storage by itself": with_typed_storage,
    "no content at all": lambda: torch.zeros(MANY, device="meta")[:3],
}


@pytest.mark.parametrize("make", THRIFTY.values(), ids=THRIFTY)
def test_small_waste_is_not_reported(make):
    assert notes_of(make()) == []


def test_optimizer_state_in_one_buffer_is_not_reported():
    model = nn.Linear(700, 700)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    model(torch.ones(1, 700)).sum().backward()
    optimizer.step()
    state = torch.zeros(2, 700 * 700)
    for number, name in enumerate(("exp_avg", "exp_avg_sq")):
        optimizer.state[model.weight][name] = state[number].view(700, 700)
    assert notes_of(model=model, optimizer=optimizer) == []


def test_views_of_one_storage_are_reported_together():
    whole = table()
    (note,) = notes_of([whole[0], whole[1], whole[1], whole[5], whole[6]])
    assert note.message.startswith(
        "obj[0], obj[1], obj[2] and 2 more use 1.6 kB of a storage of 2.0 "
    )
    assert note.hint.endswith("save copies of them (.clone()).")


def test_views_in_two_objects_count_together():
    whole = table()
    assert len(notes_of(whole[:3])) == 1
    assert notes_of(whole[:3], whole) == []
    (note,) = notes_of(whole[:1], whole[1:2])
    assert note.message.startswith("obj uses 800 B of a storage of 2.0 MB")


def test_large_storage_in_hook_or_optimizer_is_located():
    model, part = nn.Linear(2, 2), table()[:2]
    model.register_forward_hook(lambda module, inputs, output: output + part[0, :2].sum())
    (note,) = notes_of(model=model)
    assert note.subject.startswith("model._forward_hooks[") and note.subject.endswith("-> part")
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = table()[:2, :2]
    (note,) = notes_of(model=model, optimizer=optimizer)
    assert note.subject.startswith("optimizer.state[") and "momentum_buffer" in note.subject


def test_large_storage_of_example_input_is_reported(tmp_path):
    data = torch.zeros(MANY // 2, 2)
    with pytest.warns(modpack.ModpackWarning, match=r"^example\[0\]\[0\] uses 8 B of a storage"):
        modpack.save(nn.Linear(2, 2), tmp_path / "x.modpack", example_inputs=data[:1])


@pytest.fixture
def wasteful(tmp_path):
    """A package with three rows of a table."""
    exporter = modpack.PackageExporter(tmp_path / "w.modpack")
    exporter.save_pickle("m", "o.pkl", nn.ParameterDict({"rows": table()[:3]}))
    with pytest.warns(modpack.ModpackWarning, match=r"obj\.rows uses 1\.2 kB") as told:
        exporter.close()
    assert len(told) == 1
    return tmp_path / "w.modpack"


def run(*arguments):
    return CliRunner().invoke(cli, [str(each) for each in arguments])


def test_package_records_large_storage_and_commands_report_it(wasteful):
    shown = run("inspect", wasteful)
    assert "obj.rows uses 1.2 kB of a storage of 2.0 MB" in " ".join(shown.output.split())
    audit = json.loads(run("audit", "--json", wasteful).output)
    (finding,) = [each for each in audit["findings"] if each["code"] == "large-storage-view"]
    assert (finding["severity"], finding["subject"]) == ("warning", "obj.rows")
    assert run("audit", "--fail-on", "large-storage-view", wasteful).exit_code == 1
    assert run("audit", wasteful).exit_code == 0


def test_clone_avoids_large_storage(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer = io.BytesIO()
        with modpack.PackageExporter(buffer) as exporter:
            exporter.save_pickle("m", "o.pkl", {"rows": table()[:3].clone()})
    assert len(buffer.getvalue()) < 100_000
