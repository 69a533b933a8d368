"""Facts about a plan equal those about its package."""

from modpack import PackageExporter
from modpack.core.plan import PackagingErrorReason
from modpack.core.rules import Action, Owner
from modpack.report.facts import plan_facts
from modpack.report.package_info import package_facts


def test_plan_and_package_have_same_facts(made):
    planned = {module.module: module for module in plan_facts(made.plan).modules}
    for module in package_facts(made.file).modules:
        if module.module not in planned:
            continue  # modules that mocks need
        twin = planned[module.module]
        assert (twin.action, twin.rule, twin.requirement, twin.provided_by) == (
            module.action,
            module.rule,
            module.requirement,
            module.provided_by,
        )
        if module.action is Action.INTERN:
            assert (twin.record, twin.size_bytes) == (module.record, module.size_bytes)


def test_plan_importers_have_paths_of_files(made):
    facts = {module.module: module for module in plan_facts(made.plan).modules}
    (importer,) = facts["reportspy"].importers
    assert importer.location == f"{made.project / 'reportshop' / 'till.py'}:5"


def test_plan_facts_include_problems():
    exporter = PackageExporter(None)
    exporter.deny("json")
    exporter.save_source_string("reportdenied", "import json\n")
    facts = plan_facts(exporter.plan())
    assert [(p.subject, p.code) for p in facts.problems] == [("json", PackagingErrorReason.DENIED)]


def test_extern_local_code_has_no_version(project):
    project({"reportloose.py": "x = 1\n"})
    with PackageExporter(None) as exporter:
        exporter.extern("reportloose")
        exporter.save_source_string("reportuser", "import reportloose\n")
        (loose,) = (m for m in plan_facts(exporter.plan()).modules if m.module == "reportloose")
    assert loose.provided_by is Owner.LOCAL
    assert loose.requirement is None
