"""What a scan says of packages: those that are made as usual, and those that are not."""

from __future__ import annotations

import collections
import decimal
import functools
import pickle
import textwrap

import pytest
import torch

from modpack import PackageExporter, TrustPolicy
from modpack.archive import layout
from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter
from modpack.report.scanning.scanning import scan_package
from tests.hostile_pickles import call, named, octets, text, values, whole


def scanned(path, policy=None) -> list[tuple[str, str, str]]:
    """Code, subject and place of each finding."""
    with open_archive(path) as archive:
        is_ours = archive.has(layout.ENTRY)
        findings = scan_package(archive, read_manifest(archive) if is_ours else None, policy)
    return [(each.code, each.subject, each.place or "") for each in findings]


def written(tmp_path, records, externs=()):
    """A package of torch.package's layout with some records."""
    path = tmp_path / "package.pt"
    with ArchiveWriter(path) as writer:
        writer.write(".data/version", b"6\n")
        writer.write(".data/extern_modules", "\n".join(externs).encode())
        for name, content in records.items():
            data = content if isinstance(content, bytes) else textwrap.dedent(content).encode()
            writer.write(name, data)
        writer.commit()
    return path


def test_a_package_that_is_made_as_usual_has_no_findings(tmp_path, project):
    source = """
        import torch
        class Till(torch.nn.Linear):
            def act(self, x): ...
        def twice():
            return lambda module, inputs, output: output * 2
    """
    project({"shop.py": source})
    from shop import Till, twice

    model = Till(2, 2)
    model.notes = {"ratio": decimal.Decimal(1), "order": collections.OrderedDict(a=1), "f": len}
    model.act = functools.partial(model.act, 3)
    model.register_forward_hook(twice())
    model.register_forward_pre_hook(functools.partial(torch.nn.functional.relu, inplace=False))
    with PackageExporter(tmp_path / "shop.modpack") as exporter:
        exporter.intern("shop")
        exporter.save_model("model", "model.pkl", model)
    assert scanned(tmp_path / "shop.modpack") == []


def test_hooks_are_read_with_the_memo_of_their_object(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    for part in model:
        part.register_forward_hook(torch.nn.functional.relu)
    with PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.save_model("model", "model.pkl", model)
    assert scanned(tmp_path / "net.modpack") == []


def test_names_of_extern_libraries_are_noted_together(tmp_path):
    held = b"\x80\x03]cacme.net\nNet\na" + b"cacme\nact\na."
    records = {"model/model.pkl": held}
    (finding,) = scanned(written(tmp_path, records, externs=["acme", "acme.net"]))
    assert finding == ("pickle-extern-name", "acme", "model/model.pkl")
    codes = [code for code, *_ in scanned(written(tmp_path, records))]
    assert codes == ["pickle-unknown-global"] * 2


def test_arrays_may_be_made_again(tmp_path):
    numpy = pytest.importorskip("numpy")
    values = {
        "array": numpy.zeros(3),
        "scalar": numpy.float64(1),
        "draw": numpy.random.default_rng(1),
    }
    with PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.extern("numpy.**")
        exporter.save_pickle("model", "values.pkl", values)
    assert {code for code, *_ in scanned(tmp_path / "net.modpack")} == {"pickle-extern-name"}


def test_a_policy_allows_names(tmp_path):
    data = whole(call(named("acme", "run"), text("x")))
    path = written(tmp_path, {"model/model.pkl": data}, externs=["acme"])
    assert [code for code, *_ in scanned(path)] == ["pickle-extern-call"]
    assert scanned(path, TrustPolicy(pickle_globals=["acme.**"])) == []
    refused = scanned(path, TrustPolicy(pickle_globals=["other.**"]))
    assert [each[:2] for each in refused] == [("pickle-unknown-global", "acme.run")]
    assert scanned(path, TrustPolicy(externs=["acme"])) == scanned(path)


def test_what_the_package_defines_may_be_called_and_what_it_imports_may_not(tmp_path):
    source = "import os\nfrom torch import float32 as kind\ndef make(): ..."
    records = {"shop.py": source, "model/a.pkl": whole(call(named("shop", "make")))}
    records["model/b.pkl"] = whole(named("shop", "kind"))
    assert scanned(written(tmp_path, records)) == []
    records["model/c.pkl"] = whole(named("shop", "os.system"))
    (finding,) = scanned(written(tmp_path, records))
    assert finding[:2] == ("pickle-unknown-global", "shop.os.system")


def test_the_place_of_a_name_is_that_of_its_worst_use(tmp_path):
    data = whole(b"]" + named("os", "getcwd") + b"a" + call(named("os", "getcwd")) + b"a")
    ((_, subject, place),) = scanned(written(tmp_path, {"model/model.pkl": data}))
    assert (subject, place) == ("os.getcwd", f"model/model.pkl, byte {data.index(b'R')}")


def test_what_sources_do_when_imported_has_its_line(tmp_path):
    source = """
        import os, subprocess
        def prepare():
            os.makedirs("there")
        prepare()
        subprocess.run(["ls"])
    """
    found = scanned(written(tmp_path, {"shop.py": source}))
    assert found == [
        ("import-effect-process", "subprocess.run", "shop.py:6"),
        ("import-effect-write", "os.makedirs", "shop.py:4"),
    ]


def test_what_functions_in_pickles_do_is_told(tmp_path, project):
    source = """
        def make():
            def hook(*values):
                import os
                os.system("ls")
            return hook
    """
    project({"train.py": source})
    from train import make

    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(make())
    with PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.intern("train")
        exporter.save_model("model", "model.pkl", model)
    found = scanned(tmp_path / "net.modpack")
    assert [each[:2] for each in found] == [("code-process", "make.<locals>.hook")]


def test_an_object_that_is_missing_is_told_and_its_hooks_are_not_blamed(tmp_path):
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(torch.nn.functional.relu)
    with PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.save_model("model", "model.pkl", model)
    gone = tmp_path / "gone.modpack"
    with open_archive(tmp_path / "net.modpack") as archive, ArchiveWriter(gone) as writer:
        for name in archive.names():
            if "manifest" not in name and name != "model/model.pkl":
                writer.write(name, archive.read(name))
        writer.commit()
    assert [each[:2] for each in scanned(gone)] == [("pickle-missing", "model/model.pkl")]


def test_pickles_that_the_package_does_not_tell_of_are_read_as_well(tmp_path):
    with PackageExporter(tmp_path / "net.modpack") as exporter:
        exporter.save_pickle("model", "a.pkl", 1)
        exporter.save_binary("data", "more.bin", whole(call(named("os", "system"), text("ls"))))
        exporter.save_binary("data", "old", b"cos\nsystem\n(S'ls'\ntR")
        exporter.save_binary("data", "table.pkl", pickle.dumps([1, 2]))
        exporter.save_binary("data", "words.txt", b"chair\ntable\nlamp\n")
        exporter.save_binary("data", "image.png", b"\x80\x04 is how some pictures begin")
    found = {each[:2] for each in scanned(tmp_path / "net.modpack")}
    assert ("pickle-unknown-global", "os.system") in found
    undeclared = {subject for code, subject in found if code == "pickle-undeclared"}
    assert undeclared == {"data/more.bin", "data/old", "data/table.pkl"}


def test_a_pickle_in_a_pickle_is_judged_by_itself(tmp_path):
    fine = whole(octets(pickle.dumps(decimal.Decimal(1))))
    assert [c for c, *_ in scanned(written(tmp_path, {"a.pkl": fine}))] == ["pickle-nested-known"]
    bad = whole(octets(whole(named("os", "system"))))
    assert [c for c, *_ in scanned(written(tmp_path, {"a.pkl": bad}))] == ["pickle-nested"]
    cut_off = whole(octets(whole(named("os", "getcwd"), values()) + b"."))
    assert "pickle-nested" in [c for c, *_ in scanned(written(tmp_path, {"a.pkl": cut_off}))]


def test_script_modules_are_looked_into(tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)

    class Writer(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            torch.save(x, "/tmp/there")
            return x

    for kind, codes in ((Net, []), (Writer, ["script-file-access"])):
        path = tmp_path / f"{kind.__name__}.modpack"
        with PackageExporter(path) as exporter:
            exporter.save_pickle("model", "model.pkl", torch.jit.script(kind()))
        assert [code for code, *_ in scanned(path)] == codes


def test_an_archive_in_a_record_must_be_one_and_may_not_hide_a_pickle(tmp_path):
    import io

    inner = io.BytesIO()
    with ArchiveWriter(inner) as writer:
        writer.write(".data/version", b"6\n")
        writer.write("data.pkl", whole(call(named("os", "system"), text("ls"))))
        writer.commit()
    record = ".data/modpack/torchscript/0.pt"
    (found,) = scanned(written(tmp_path, {record: inner.getvalue()}))
    assert found[0] == "pickle-unknown-global" and found[2].startswith(f"{record}!data.pkl")
    (found,) = scanned(written(tmp_path, {record: inner.getvalue()[:-10]}))
    assert found[0] == "nested-archive"


def test_what_is_refused_tells_the_whole_line_that_a_policy_needs(tmp_path):
    taken = [
        named(*each) for each in (("socket", "gethostname"), ("acme", "Net"), ("math", "sqrt"))
    ]
    data = whole(values(*taken))
    path = written(tmp_path, {"model/model.pkl": data}, externs=["acme"])
    with open_archive(path) as archive:
        remedies = {each.code: each.remedy for each in scan_package(archive, None)}
    line = 'pickle_globals = ["acme.Net", "socket.gethostname"]'
    assert f"or add {line} to a policy" in remedies["pickle-unknown-global"]
    assert scanned(path, TrustPolicy(pickle_globals=["acme.Net", "socket.gethostname"])) == []
