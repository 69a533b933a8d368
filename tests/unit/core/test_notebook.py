"""Values as notebooks show them."""

import modpack
from modpack.core.names import GlobGroup
from modpack.core.plan import Decision, PackagingErrorReason, Plan
from modpack.core.rules import Action, Rule, RuleOrigin
from modpack.diagnostics import Diagnostic


def decided(module, action):
    rule = Rule(
        action, GlobGroup(module), origin=RuleOrigin.USER, label=f"{action.value}({module!r})"
    )
    return {module: Decision(module, action, rule)}


def test_plan_html_shows_modules_problems_and_warnings():
    plan = Plan(
        {**decided("shop", Action.INTERN), **decided("spy", Action.MOCK)},
        problems=(
            Diagnostic.from_code(
                PackagingErrorReason.DENIED, "till", "till is denied", "shop.py:3"
            ),
        ),
        notes=(Diagnostic.from_code("dynamic-import", "shop", "imports what it likes"),),
        self_test_summary="passed",
    )
    shown = plan._repr_html_()
    assert "interned: 1 (shop)" in shown
    assert "mocked: 1 (spy)" in shown
    assert "shop.py:3: till is denied" in shown
    assert "imports what it likes" in shown
    assert "self-test: passed" in shown


def test_plan_html_escapes_names():
    evil = "a<img src=x onerror=alert(1)>"
    plan = Plan(
        decided(evil, Action.EXTERN),
        (Diagnostic.from_code(PackagingErrorReason.NO_ACTION, evil, evil),),
    )
    assert "<img" not in plan._repr_html_()
    assert "a&lt;img" in plan._repr_html_()


def test_package_html_shows_modules_hooks_and_resources(packaged):
    importer = packaged({"shop/__init__.py": "import spy\n", "shop/prices.txt": "3"}, mock=["spy"])
    shown = importer._repr_html_()
    assert importer.filename in shown
    assert "shop/prices.txt" in shown
    assert "mocked: 1" in shown
    assert "<img" not in shown


def test_closed_package_has_no_html(packaged):
    importer = packaged({"shop/__init__.py": ""})
    importer.close()
    assert importer._repr_html_() is None


def test_package_from_buffer_has_html(packaged):
    import io
    from pathlib import Path

    content = io.BytesIO(Path(packaged({"shop.py": ""}).filename).read_bytes())
    with modpack.PackageImporter(content) as importer:
        assert "shop" in importer._repr_html_()
