"""All problems of a package are reported together, in one format."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable

import pytest

import modpack
from modpack import (
    EmptyMatchError,
    PackageExporter,
    PackagingError,
    PackagingErrorReason,
    analyze,
)
from modpack.core.rules import Action
from modpack.errors import ArchiveError


def failure_of(fill: Callable[[PackageExporter], object], **options: bool) -> PackagingError:
    with pytest.raises(PackagingError) as failure, PackageExporter(io.BytesIO(), **options) as e:
        fill(e)
    return failure.value


def reasons(failure: PackagingError) -> dict[str, str]:
    return {problem.subject: problem.code for problem in failure.problems}


@pytest.fixture
def workshop(project) -> None:
    project(
        {
            "workshop/__init__.py": "",
            "workshop/bench.py": "from workshop import saw, hammer\nimport not_installed\n",
            "workshop/saw.py": "import forbidden_tool\nx = = 1\n",
            "workshop/hammer.py": "import forbidden_tool, undecided_tool, mypy_extensions\n",
            "forbidden_tool.py": "",
            "undecided_tool.py": "",
        }
    )


def fill_workshop(exporter: PackageExporter) -> None:
    exporter.deny("forbidden_tool")
    exporter.extern("never_there", allow_empty=False)
    exporter.intern(["workshop.**", "math"])
    exporter.save_module("workshop.bench")
    exporter.save_module("workshop.typo")
    exporter.save_source_string("driver", "import workshop.bench, math")


def test_all_problems_are_reported_together(workshop):
    assert reasons(failure_of(fill_workshop)) == {
        "workshop.typo": "module-not-found",
        "forbidden_tool": "module-denied",
        "workshop.saw": "invalid-syntax",
        "math": "native-extension",
        "not_installed": "module-not-found",
        "undecided_tool": "no-matching-rule",
        "mypy_extensions": "no-matching-rule",
        "extern('never_there')": "rule-matches-nothing",
    }


def test_failed_plan_has_the_problems_of_the_error(workshop):
    exporter = PackageExporter(None)
    fill_workshop(exporter)
    plan = exporter.plan()
    with pytest.raises(PackagingError) as failure:
        exporter.close()
    assert plan.problems == failure.value.problems


def test_text_groups_by_reason_with_names_indented_and_context(project):
    root = project({"house.py": "import nowhere_a\n\nimport nowhere_b", "banned.py": ""})
    failure = failure_of(
        lambda e: (
            e.deny("banned"),
            e.intern("house"),
            e.save_source_string("street", "import house, banned"),
        )
    )
    expected = f"""
        * A required module cannot be found in the export environment. Install it, or mock it.
            {root}/house.py:1: 'nowhere_a' cannot be found, but house imports it
            {root}/house.py:3: 'nowhere_b' cannot be found, but house imports it
        * A deny rule matches a required module. Remove the import, or change the rule.
            street:1: 'banned' is denied by deny('banned'), but street imports it

        Pass debug=True to show the import chains."""
    assert str(failure) == textwrap.dedent(expected)


def test_problem_without_details_has_no_context_line(project):
    project({"house.py": ""})
    failure = failure_of(lambda e: e.mock("gone", allow_empty=False))
    assert str(failure) == textwrap.dedent(
        """
        * A rule with allow_empty=False matches no module. Correct its pattern, or pass \
allow_empty=True.
            mock('gone') matches no module

        Pass debug=True to show the import chains."""
    )


def test_module_with_two_problems_of_one_kind_is_named_once():
    def fill(exporter: PackageExporter) -> None:
        exporter.mock("decimal")
        from decimal import Decimal

        exporter.save_pickle("a", "one.pkl", Decimal(1))
        exporter.save_pickle("a", "two.pkl", [Decimal(2)])

    text = str(failure_of(fill))
    assert text.count("* A saved object needs a module that a rule mocks.") == 1
    assert text.count("<a/one.pkl> refers to Decimal of 'decimal'") == 1
    assert text.count("<a/two.pkl> refers to Decimal of 'decimal'") == 1


def test_debug_shows_the_shortest_chain(project):
    project(
        {
            "long_way.py": "import half_way\nimport deeper_way",
            "half_way.py": "import banned_house",
            "deeper_way.py": "import half_way",
            "banned_house.py": "",
        }
    )

    def fill(exporter: PackageExporter) -> None:
        exporter.deny("banned_house")
        exporter.intern("**")
        exporter.save_source_string("start_here", "import long_way")

    failure = failure_of(fill, debug=True)
    chain = "imported through start_here -> long_way -> half_way -> banned_house"
    assert f"      {chain}\n" in str(failure)
    assert "debug=True" not in str(failure)
    assert failure.problems[0].chain == ("start_here", "long_way", "half_way", "banned_house")
    assert analyze.find_first_use_of_broken_modules(failure) == {
        "banned_house": ["start_here", "long_way", "half_way", "banned_house"]
    }


def test_chain_through_a_pickle_starts_at_the_pickle(project):
    project({"toyhouse/__init__.py": "import toyroof", "toyroof.py": "class R: pass"})
    from toyroof import R

    failure = failure_of(lambda e: (e.deny("toyroof"), e.save_pickle("m", "r.pkl", R())))
    assert failure.problems[0].chain == ("<m/r.pkl>", "toyroof")


def test_only_empty_matches_raise_empty_match_error():
    with pytest.raises(EmptyMatchError) as failure, PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("no_such_a.**", allow_empty=False)
        exporter.extern(["no_such_b", "no_such_c"], allow_empty=False)
        exporter.mock("no_such_d", exclude="no_such_d", allow_empty=False)
        exporter.deny("no_such_e", allow_empty=False)
        exporter.intern("no_such_f")
        exporter.extern([])
        exporter.save_text("a", "b.txt", "c")
    assert [problem.subject for problem in failure.value.problems] == [
        "intern('no_such_a.**')",
        "extern(['no_such_b', 'no_such_c'])",
        "mock('no_such_d', exclude='no_such_d')",
        "deny('no_such_e')",
    ]


def test_empty_matches_are_reported_with_other_problems():
    def fill(exporter: PackageExporter) -> None:
        exporter.intern("no_such_a.**", allow_empty=False)
        exporter.save_source_string("start_here", "import nowhere_at_all")

    failure = failure_of(fill)
    assert not isinstance(failure, EmptyMatchError)
    assert reasons(failure) == {
        "intern('no_such_a.**')": "rule-matches-nothing",
        "nowhere_at_all": "module-not-found",
    }


def test_rule_matching_module_saved_by_name_is_not_empty(project):
    project({"single_file.py": ""})
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("single_file", allow_empty=False)
        exporter.save_module("single_file")


@pytest.mark.parametrize("name", ["nowhere_to_be_found", "nowhere.below", "json.nothing"])
def test_saving_missing_module_is_a_problem(name):
    failure = failure_of(lambda e: e.save_module(name))
    assert reasons(failure) == {name: "module-not-found"}


def test_saving_module_without_source_shows_its_kind(project):
    project({"plain_folder/inside.py": ""})
    failure = failure_of(
        lambda e: (e.save_module("math"), e.save_module("torch._C"), e.save_module("plain_folder"))
    )
    assert reasons(failure) == {
        "math": "native-extension",
        "torch._C": "native-extension",
        "plain_folder": "source-file-missing",
    }
    assert "Save the modules in it" in str(failure)


def test_unresolved_guarded_import_is_not_a_problem(project):
    root = project(
        {
            "speedy/__init__.py": """
                try:
                    from . import _fast_path
                    import speedy._other_path
                except ImportError:
                    pass
            """
        }
    )
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("speedy.**")
        exporter.save_module("speedy")
    (note,) = exporter.plan().notes
    assert note.subject == "speedy._other_path"
    assert note.location == f"{root}/speedy/__init__.py:4"


def test_too_deep_import_is_rejected():
    guarded = "try:\n    import {}\nexcept ImportError:\n    pass\n"
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.save_source_string("deep", guarded.format("a" + ".a" * 63))
    with (
        pytest.raises(ArchiveError, match=r"has 65 components, and 64 are allowed\. Remove"),
        PackageExporter(io.BytesIO()) as exporter,
    ):
        exporter.save_source_string("deeper", guarded.format("a" + ".a" * 64))


def test_mocked_class_in_pickle_is_always_a_problem(project):
    project({"mockable.py": "class M: pass"})
    from mockable import M

    def fill(exporter: PackageExporter) -> None:
        exporter.mock("mockable")
        exporter.save_source_string("needs_it", "import mockable")
        exporter.save_pickle("m", "m.pkl", {"inner": M()}, dependencies=False)

    failure = failure_of(fill)
    assert reasons(failure) == {"mockable": "mock-pickled"}
    assert "<m/m.pkl> refers to M of 'mockable'" in str(failure)


def test_two_records_with_one_name_are_a_problem(project):
    project(
        {
            "pkg_twice/__init__.py": "import pkg_twice.data, pkg_twice.Case, pkg_twice.case",
            "pkg_twice/data.py": "",
            "pkg_twice/Case.py": "",
            "pkg_twice/case.py": "",
            "pkg_mocked/__init__.py": "",
            "pkg_mocked/m.py": "",
        }
    )

    def fill(exporter: PackageExporter) -> None:
        exporter.intern("pkg_twice.**")
        exporter.mock("pkg_mocked.**")
        exporter.save_text("pkg_twice", "data.py", "not the module")
        exporter.save_text("pkg_mocked", "m.py", "not the mock")
        exporter.save_source_string("starts", "import pkg_twice, pkg_mocked.m")

    assert reasons(failure_of(fill)) == {
        "pkg_twice.data": "duplicate-record",
        "pkg_twice.case": "duplicate-record",
        "pkg_mocked.m": "duplicate-record",
    }


def test_every_error_is_a_modpack_error():
    assert issubclass(PackagingError, modpack.ModpackError)
    assert issubclass(EmptyMatchError, PackagingError)
    assert all(isinstance(reason.value, str) for reason in PackagingErrorReason)


def test_names_created_at_run_time_are_not_problems(project):
    project(
        {
            "shop/__init__.py": "import sys, types\nfrom shop import desk\n"
            "sys.modules['shop.made'] = types.ModuleType('shop.made')\n"
            "sys.modules['shop.made'].coin = 1\n"
            "for name in ['lamp']:\n    desk.__dict__[name] = 1\n",
            "shop/desk.py": "",
            "shop/till.py": "from .made import coin\nfrom .desk import lamp\nclass Till: pass\n",
        }
    )
    exporter = PackageExporter(None)
    exporter.use_preset("pinned")
    exporter.save_pickle("m", "m.pkl", __import__("shop.till").till.Till())
    assert exporter.plan().problems == ()


def test_import_of_missing_name_fails_the_self_test(project, tmp_path):
    """A package has no name that is set at run time, so only a run shows a missing one."""
    project(
        {
            "shop/__init__.py": "",
            "shop/desk.py": "",
            "shop/till.py": "class Till:\n"
            "    def __call__(self):\n        from .desk import drawer\n        return drawer\n",
        }
    )
    __import__("shop.desk").desk.drawer = 1
    till = __import__("shop.till").till.Till()
    with pytest.raises(modpack.errors.SelfTestError, match="cannot import name 'drawer'"):
        modpack.save(till, tmp_path / "till.modpack", example_inputs=())


@pytest.mark.parametrize(
    "source",
    [
        "from .utils import has_extra\nif has_extra():\n    import extra\n",
        "from .utils import DEBUG\nif DEBUG:\n    import extra\n",
        "from .utils import has_extra\n"
        "def f():\n    if not has_extra():\n        raise ImportError\n    import extra\n",
        "import sys\nif 'extra' in sys.modules:\n    import extra\n",
    ],
)
def test_conditional_import_of_missing_module_is_a_note(project, source):
    project({"lib/__init__.py": source, "lib/utils.py": "DEBUG = has_extra = bool\n"})
    exporter = PackageExporter(None)
    exporter.intern("lib.**")
    exporter.save_module("lib")
    plan = exporter.plan()
    assert plan.problems == ()
    assert [(note.code, note.subject) for note in plan.notes] == [
        ("optional-import-missing", "extra")
    ]


def test_unconditional_import_of_missing_module_is_a_problem(project):
    project({"lib/__init__.py": "def f():\n    import extra\n"})
    exporter = PackageExporter(None)
    exporter.intern("lib.**")
    exporter.save_module("lib")
    assert [problem.subject for problem in exporter.plan().problems] == ["extra"]


@pytest.mark.parametrize("preset", ["none", "pinned", "hermetic"])
def test_stdlib_tests_are_not_user_code(project, preset):
    project({"shop.py": "from test import support\nimport test.support.os_helper\n"})
    exporter = PackageExporter(None)
    exporter.use_preset(preset)
    exporter.intern("shop")
    exporter.save_module("shop")
    plan = exporter.plan()
    assert plan.problems == () and plan.modules(Action.INTERN) == ["shop"]


def test_users_package_may_have_the_name_of_pythons_tests(project):
    project({"shop.py": "from test import support\n", "test/__init__.py": "support = 1\n"})
    exporter = PackageExporter(None)
    exporter.use_preset("pinned")
    exporter.save_module("shop")
    plan = exporter.plan()
    assert plan.problems == () and plan.modules(Action.INTERN) == ["shop", "test"]
