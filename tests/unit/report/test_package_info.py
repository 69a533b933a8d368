"""Facts about package files, read without running code."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from modpack import PackageExporter
from modpack.archive.reader import open_archive
from modpack.core.rules import Action, Owner
from modpack.core.scan import ImportKind
from modpack.errors import ArchiveError, NotAPackageError, UnsupportedVersionError
from modpack.report.facts import ImporterFacts, ResourceFacts, ResourceKind, StorageFacts
from modpack.report.package_info import package_facts

FIXTURES = Path(__file__).parents[3] / "fixtures" / "archives" / "torch_package"
GRAPH, ENVIRONMENT, ENTRY = (f".data/modpack/{n}.json" for n in ("graph", "environment", "entry"))


def by_name(facts):
    return {module.module: module for module in facts.modules}


def test_facts_have_every_module_with_its_action(made):
    facts = by_name(package_facts(made.file))
    assert facts["reportshop"].action is Action.INTERN
    assert facts["reportspy"].action is Action.MOCK
    assert facts["json"].action is facts["torch"].action is Action.EXTERN
    assert set(made.plan.decisions) <= set(facts)
    assert list(facts) == sorted(facts)


def test_facts_have_rule_and_importers(made):
    facts = by_name(package_facts(made.file))
    assert facts["reportspy"].rule == "mock('reportspy')"
    assert facts["reportspy"].importers == (
        ImporterFacts("reportshop.till", "reportshop/till.py", 5, ImportKind.REQUIRED),
    )
    saved = ImporterFacts("<model/till.pkl>", None, None, ImportKind.PICKLE)
    assert saved in facts["reportshop.till"].importers
    assert saved.location == "model/till.pkl"


def test_interned_module_has_record_and_size(made):
    till = by_name(package_facts(made.file))["reportshop.till"]
    assert till.record == "reportshop/till.py"
    assert till.size_bytes == (made.project / "reportshop" / "till.py").stat().st_size


def test_extern_module_has_provider_and_version(made):
    import numpy

    facts = by_name(package_facts(made.file))
    assert facts["numpy"].requirement == f"numpy=={numpy.__version__}"
    assert facts["numpy"].provided_by is Owner.INSTALLED
    assert facts["json"].provided_by is Owner.STDLIB
    assert facts["torch"].provided_by is Owner.RUNTIME
    assert facts["reportshop"].provided_by is None


def test_facts_include_modules_that_mocks_need(made):
    runtime = by_name(package_facts(made.file))["_modpack_mock"]
    assert "_modpack_mock" not in made.plan.decisions
    assert runtime.action is Action.INTERN
    assert "mocked modules" in runtime.rule


def test_facts_describe_package(made):
    import platform

    import torch

    facts = package_facts(made.file)
    assert facts.path == str(made.file)
    assert facts.size_bytes == made.file.stat().st_size
    assert facts.format == "modpack 2"
    assert facts.python == platform.python_version()
    assert facts.torch == torch.__version__
    assert facts.platform == f"{sys.platform} {platform.machine()}"
    assert facts.main_resource == ("model", "till.pkl")
    assert len(facts.digest) == 64
    assert facts.writer.startswith("modpack")


def test_facts_have_resources_and_storages(made):
    facts = package_facts(made.file)
    kinds = {each.record: each.kind for each in facts.resources}
    assert kinds == {
        "model/till.pkl": ResourceKind.PICKLE,
        "reportshop/prices.txt": ResourceKind.FILE,
    }
    assert ResourceFacts("reportshop/prices.txt", ResourceKind.FILE, 5) in facts.resources
    assert facts.storages == StorageFacts(1, 12)


def test_notes_have_locations_in_package(made):
    notes = {note.code: note for note in package_facts(made.file).notes}
    assert notes["dynamic-import"].location == "reportshop/till.py:14"
    assert notes["optional-import-missing"].subject == "reportabsent"


def test_unzipped_package_has_same_facts(made, tmp_path):
    with zipfile.ZipFile(made.file) as archive:
        archive.extractall(tmp_path)
    zipped, unzipped = package_facts(made.file), package_facts(tmp_path)
    assert unzipped.modules == zipped.modules
    assert unzipped.digest == zipped.digest
    with open_archive(made.file) as archive:
        assert unzipped.size_bytes == sum(map(archive.size, archive.names()))


def test_main_resource_of_several_objects_must_be_named(rewritten):
    several = {"pickles": [["a", "x.pkl"], ["b", "y.pkl"]], "main": None}
    assert package_facts(rewritten({ENTRY: json.dumps(several).encode()})).main_resource is None
    several["main"] = ["b", "y.pkl"]
    assert package_facts(rewritten({ENTRY: json.dumps(several).encode()})).main_resource == (
        "b",
        "y.pkl",
    )


def edited(made, record, change):
    with open_archive(made.file) as archive:
        document = json.loads(archive.read(record))
    change(document)
    return {record: json.dumps(document).encode()}


@pytest.mark.parametrize("record", [GRAPH, ENVIRONMENT, ENTRY])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": []}'],
    ids=["empty", "cut", "array", "no-keys", "null", "binary", "deep", "odd"],
)
def test_facts_reject_damaged_record(rewritten, record, content):
    with pytest.raises(ArchiveError) as raised:
        package_facts(rewritten({record: content}))
    assert raised.value.record == record


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (GRAPH, lambda d: d["roots"].append(7)),
        (GRAPH, lambda d: d["edges"].append(["a"])),
        (GRAPH, lambda d: d["edges"].append(["a", "b", "no-kind", 1, []])),
        (GRAPH, lambda d: d["edges"].append(["a", "b", "required", "1", []])),
        (GRAPH, lambda d: d["edges"].append(["a", "b", "required", 1, [3]])),
        (GRAPH, lambda d: d["edges"].append(["a", "b", "required", 0, []])),
        (GRAPH, lambda d: d["modules"].update(x={"action": "burn"})),
        (GRAPH, lambda d: d["modules"].update(x=3)),
        (GRAPH, lambda d: d["modules"]["json"].update(rule=3)),
        (GRAPH, lambda d: d["modules"]["json"].update(overridden_by=[])),
        (GRAPH, lambda d: d.update(uses={"a": 1})),
        (GRAPH, lambda d: d.update(uses=[3])),
        (GRAPH, lambda d: d.update(uses=[["m", "n", "i", 1, "call", "", True, []]])),
        (GRAPH, lambda d: d.update(uses=[["m", "n", "i", 1, "burn", "", True, [], False]])),
        (GRAPH, lambda d: d.update(uses=[["m", "n", "i", "1", "call", "", True, [], False]])),
        (GRAPH, lambda d: d.update(uses=[["m", "n", "i", 0, "call", "", True, [], False]])),
        (GRAPH, lambda d: d.update(uses=[["m", 3, "i", 1, "call", "", True, [], False]])),
        (GRAPH, lambda d: d.update(uses=[["m", "n", "i", 1, "call", "", "yes", [], False]])),
        (GRAPH, lambda d: d.update(uses=[["m", "n", "i", 1, "call", "", True, [3], False]])),
        (GRAPH, lambda d: d.update(uses=[["m", "n", "i", 1, "call", "", True, [], None]])),
        (GRAPH, lambda d: d["notes"][0].update(message=3)),
        (GRAPH, lambda d: d["notes"][0].update(location={})),
        (ENVIRONMENT, lambda d: d.update(providers=[])),
        (ENVIRONMENT, lambda d: d.update(python=3)),
        (ENVIRONMENT, lambda d: d["installed"].update(numpy={"name": "numpy"})),
        (ENTRY, lambda d: d.update(pickles=[["only-one"]])),
        (ENTRY, lambda d: d.update(pickles=[["../..", "x"]])),
        (ENTRY, lambda d: d.update(main="model")),
    ],
)
def test_facts_reject_field_of_wrong_type(made, rewritten, record, change):
    with pytest.raises(ArchiveError) as raised:
        package_facts(rewritten(edited(made, record, change)))
    assert raised.value.record == record


def test_facts_reject_graph_of_newer_version(made, rewritten):
    file = rewritten(edited(made, GRAPH, lambda d: d.update(version=99)))
    with pytest.raises(UnsupportedVersionError, match="newer version of modpack"):
        package_facts(file)


def test_facts_reject_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(NotAPackageError):
        package_facts(tmp_path / "notes.txt")
    with pytest.raises(NotAPackageError):
        package_facts(tmp_path / "nowhere")


SETS = ["torch-1.9-py3.9", "torch-2.13-py3.11"]


@pytest.mark.parametrize("archives", SETS)
def test_facts_of_torch_package_archive(archives):
    facts = package_facts(FIXTURES / archives / "with_mock.pt")
    actions = {module.module: module.action for module in facts.modules}
    assert actions == {
        "_mock": Action.INTERN,
        "farplotlib": Action.EXTERN,
        "heavytracker": Action.MOCK,
        "tracking.tracked": Action.INTERN,
    }
    assert {module.rule for module in facts.modules} == {None}
    assert facts.format == "torch.package"
    assert facts.main_resource == ("model", "tracker.pkl")
    assert facts.python == ("3.11.7" if "3.11" in archives else None)


@pytest.mark.parametrize("archives", SETS)
def test_torch_package_archive_has_storages_and_resources(archives):
    facts = package_facts(FIXTURES / archives / "tiny_model.pt")
    assert facts.storages.count == 18
    assert {each.record for each in facts.resources if each.kind is ResourceKind.FILE} == {
        "tinynet/data/bytes.bin",
        "tinynet/data/words.txt",
    }
    assert facts.main_resource is None


@pytest.mark.parametrize("archives", SETS)
def test_torchscript_of_torch_package_is_a_resource(archives):
    facts = package_facts(FIXTURES / archives / "script_module.pt")
    assert not [module for module in facts.modules if module.action is Action.INTERN]
    assert ResourceKind.TORCHSCRIPT in {each.kind for each in facts.resources}


def test_facts_and_text_import_nothing_heavy(made):
    code = (
        "import sys\n"
        "from modpack.report import json_output as as_json, text\n"
        "from modpack.report.facts import PlanFacts\n"
        "from modpack.report.package_info import package_facts\n"
        "from rich.console import Console\n"
        f"facts = package_facts({str(made.file)!r})\n"
        "as_json.dumps(PlanFacts.of_package(facts))\n"
        "Console().print(text.package_report(facts))\n"
        "heavy = {'torch', 'numpy', 'importlib_metadata', 'packaging'}\n"
        "print(sorted(heavy & set(sys.modules)), 'reportshop' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] False"


def test_storages_have_count_and_size(tmp_path):
    with PackageExporter(tmp_path / "many.modpack") as exporter:
        exporter.extern("**")
        exporter.save_pickle("model", "model.pkl", [torch.zeros(3) for _ in range(300)])
    facts = package_facts(tmp_path / "many.modpack")
    assert facts.storages == StorageFacts(300, 300 * 12)
