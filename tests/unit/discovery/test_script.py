"""Statements of a script that bind names, and the module generated from them."""

import ast
import textwrap

import pytest

from modpack.discovery.script import (
    DEFINITION,
    IMPORTS,
    Cell,
    ModulePiece,
    Script,
    StatementKind,
    has_side_effects,
    literal_text,
    module_text,
    statement_text,
    value_comment,
)


def script(*cells: str) -> Script:
    texts = [textwrap.dedent(cell).lstrip("\n") for cell in cells]
    return Script([Cell(f"<cell {number}>", text) for number, text in enumerate(texts, 1)])


def bound(source: str, name: str) -> list[tuple[StatementKind, str]]:
    return [(each.kind, each.location) for each in script(source).find_bindings(name)]


def text(source: str, name: str, package: str = "", names: tuple[str, ...] = ()) -> str:
    statement = script(source).find_bindings(name)[-1]
    return statement_text(statement, frozenset(names or (name,)), package)[0]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def x(): pass", StatementKind.FUNCTION),
        ("async def x(): pass", StatementKind.FUNCTION),
        ("class x: pass", StatementKind.CLASS),
        ("import x", StatementKind.IMPORT),
        ("import x.y", StatementKind.IMPORT),
        ("import a.b as x", StatementKind.IMPORT),
        ("from a import b as x", StatementKind.IMPORT),
        ("x = 1", StatementKind.ASSIGNMENT),
        ("a, (b, *x) = f()", StatementKind.ASSIGNMENT),
        ("x: int = 1", StatementKind.ASSIGNMENT),
        ("x += 1", StatementKind.ASSIGNMENT),
        ("for x in f(): pass", StatementKind.OTHER),
        ("with f() as x: pass", StatementKind.OTHER),
        ("print(x := 1)", StatementKind.OTHER),
    ],
)
def test_statement_binds_names(source, kind):
    assert [found for found, _ in bound(source, "x")] == [kind]


@pytest.mark.parametrize("source", ["x: int", "x.y = 1", "x[0] = 1", "def f(): x = 1", "print(x)"])
def test_mention_of_name_does_not_bind_it(source):
    assert bound(source, "x") == []


def test_definitions_in_blocks_have_enclosing_lines():
    source = """
        if ready:
            for i in range(2):
                def f(): pass
        else:
            f = None
        with lock:
            class C: pass
        """
    (function, none), (kind,) = script(source).find_bindings("f"), script(source).find_bindings("C")
    assert function.enclosing == ("if ready:", "for i in range(2):")
    assert (none.kind, none.enclosing) == (StatementKind.ASSIGNMENT, ("if ready:",))
    assert kind.enclosing == ("with lock:",)


def test_bindings_in_cells_are_in_execution_order():
    found = script("def f(): return 1", "not python at all (", "def f(): return 2").find_bindings(
        "f"
    )
    assert [each.location for each in found] == ["<cell 1>:1", "<cell 3>:1"]


def test_statement_line_includes_decorators():
    assert bound("\n\n@a\n@b\ndef f(): pass", "f") == [(StatementKind.FUNCTION, "<cell 1>:1")]


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import x\nexcept ImportError:\n    x = None",
        "try:\n    import x\n    has = True\nexcept Exception:\n    has = False",
        "try:\n    import x\nexcept ImportError:\n    try:\n        import y as x\n"
        "    except ImportError:\n        pass",
        "if TYPE_CHECKING:\n    from a import x",
        "if typing.TYPE_CHECKING:\n    from a import x",
        "if sys.version_info >= (3, 11):\n    import x\nelse:\n    import y as x",
    ],
)
def test_import_block_is_one_statement(source):
    assert bound(source, "x")[0][0] is StatementKind.IMPORT_BLOCK


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import x\n    x.start()\nexcept ImportError:\n    pass",
        "try:\n    import x\nexcept ValueError:\n    pass",
        "try:\n    import x\nfinally:\n    pass",
        "if wanted():\n    import x",
        'if __name__ == "__main__":\n    import x',
    ],
)
def test_mixed_block_is_split_into_statements(source):
    assert bound(source, "x")[0][0] is StatementKind.IMPORT


def uses(source: str, name: str) -> tuple[set[str], set[str]]:
    found = script(source).find_bindings(name)[-1].uses
    return set(found.eager), set(found.late)


def test_uses_separates_eager_from_late_names():
    eager, late = uses(
        """
        @decorate(LEVEL)
        class Net(Base, metaclass=Meta):
            sizes = [SIZE for _ in RANGE]
            def run(self, x=DEFAULT, *, y=OTHER):
                return helper(x) + [inner for _ in self.sizes]
        """,
        "Net",
    )
    at_once = {"decorate", "LEVEL", "Base", "Meta", "SIZE", "RANGE", "DEFAULT", "OTHER"}
    assert at_once <= eager and late >= {"helper", "inner"}
    assert not eager & {"helper", "inner"} and not late & {"SIZE", "x", "self", "sizes"}


def test_uses_excludes_local_names():
    eager, late = uses(
        """
        class Net:
            width = 3
            double = 2 * width
            def f(self, model):
                def g(): return model, width
                import os
                return g, os, [i for i in self.x]
        """,
        "Net",
    )
    assert eager == set()
    assert late == {"width"}


def test_uses_includes_name_read_before_class_binds_it():
    assert uses("class Net:\n    width = width", "Net")[0] == {"width"}


def test_uses_includes_names_of_global_statements():
    assert uses("def f():\n    global count\n    count = 1", "f")[1] == {"count"}


def test_uses_includes_names_in_quoted_annotations():
    source = 'def f(x: "Batch[Item]", y: int) -> "Out": pass'
    assert uses(source, "f")[1] >= {"Batch", "Item", "Out"}
    postponed = "from __future__ import annotations\n" + "def f(x: Batch) -> Out: pass"
    assert uses(postponed, "f") == (set(), {"Batch", "Out"})


def test_future_statement_applies_to_later_cells():
    cells = script("from __future__ import annotations", "def f(x: Batch): pass")
    assert set(cells.find_bindings("f")[0].uses.eager) == set()


def test_uses_excludes_module_attributes():
    assert uses("def f(): return __name__, __file__, __doc__", "f") == (set(), set())


def test_statement_text_keeps_comments_above():
    source = (
        "x = 1  # not this\n\n# About f.\n# More.\n@wraps\ndef f( a ):  # odd\n\n    return a ;\n\n"
        "# not this\n"
    )
    assert text(source, "f") == "# About f.\n# More.\n@wraps\ndef f( a ):  # odd\n\n    return a ;"


def test_statement_text_of_branch_keeps_indentation():
    found = text('if a:\n    if b:\n        def f(): return """x\n  y"""\n', "f")
    assert found == ('if True:  # in the script: if a: if b:\n        def f(): return """x\n  y"""')
    assert eval("f()", _run(found)) == "x\n  y"


@pytest.mark.parametrize("source", ["a = 1; x = 2; b = 3", "if a: x = 2", "if a: b = 1; x = 2"])
def test_statement_text_of_shared_line_selects_statement(source):
    namespace = _run(text(source, "x"))
    assert (namespace["x"], namespace.keys() & {"a", "b"}) == (2, set())


@pytest.mark.parametrize(
    ("source", "name", "taken"),
    [
        ("import os, sys", "sys", "import sys"),
        ("import os.path as p, sys", "p", "import os.path as p"),
        ("from a import (b,\n    c)  # both", "b", "from a import b"),
        ("from a import b  as c", "c", "from a import b  as c"),
        ("from a import *", "b", "from a import b"),
        ("from . import b", "b", "from pkg.sub import b"),
        ("from .m import b", "b", "from pkg.sub.m import b"),
        ("from ..m import b", "b", "from pkg.m import b"),
        ("if x():\n    import os", "os", "import os"),
    ],
)
def test_statement_text_of_import_keeps_wanted_names(source, name, taken):
    statements = script(source).find_bindings(name) or script(source).star_imports
    assert statement_text(statements[-1], frozenset({name}), "pkg.sub")[0] == taken


def test_module_text_separates_groups_by_blank_lines():
    pieces = [
        ModulePiece(3, "def g(): pass", DEFINITION),
        ModulePiece(0, "import os", IMPORTS),
        ModulePiece(1, "import sys", IMPORTS),
        ModulePiece(2, "def f(): pass\n", DEFINITION),
        ModulePiece(4, "x = 1"),
        ModulePiece(5, "y = 1"),
    ]
    assert module_text("# Header.", pieces, postpone_annotations=True).text == (
        "# Header.\n\nfrom __future__ import annotations\n\nimport os\nimport sys\n\n\n"
        "def f(): pass\n\n\ndef g(): pass\n\n\nx = 1\ny = 1\n"
    )


def test_script_location_maps_lines_to_script():
    pieces = [
        ModulePiece(0, "import os", IMPORTS, ("train.py", 3)),
        ModulePiece(1, "x = 1"),
        ModulePiece(2, "@f\ndef g():\n    pass", DEFINITION, ("train.py", 20)),
    ]
    made = module_text("# Header.", pieces, postpone_annotations=False)
    places = {
        line: made.script_location(number) for number, line in enumerate(made.text.split("\n"), 1)
    }
    assert (places["# Header."], places["x = 1"]) == (None, None)
    assert places["import os"] == "train.py:3"
    assert (places["@f"], places["    pass"]) == ("train.py:20", "train.py:22")


def test_value_comment_quotes_script():
    (statement,) = script("cfg = load(\n    'x')").find_bindings("cfg")
    assert literal_text(statement, "cfg", "3") == "cfg = 3  # in the script: cfg = load( ..."
    long = literal_text(statement, "cfg", repr("x" * 80))
    assert long.splitlines()[0] == "# in the script: cfg = load( ..."
    comment = value_comment(statement, "cfg")
    assert comment == "# cfg (the value is saved with the objects): cfg = load( ..."
    assert value_comment(None, "i") == "# i: the value is saved with the objects"


def _run(source: str) -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec(compile(ast.parse(source), "<text>", "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "source",
    [
        "",
        '"""Doc."""\nimport os\nSIZE = 3\nclass C: pass\ndef f(): return f()',
        'def f(): pass\nif __name__ == "__main__":\n    f()',
        "try:\n    import x\nexcept ImportError:\n    x = None",
        "not python (",
    ],
)
def test_has_side_effects_is_false_for_definitions(source):
    assert not has_side_effects(source)


@pytest.mark.parametrize(
    "source",
    ["model = Net()", "print(1)", "for i in range(3): pass", "with open('x') as f: pass", "x += 1"],
)
def test_has_side_effects_is_true_for_other_statements(source):
    assert has_side_effects(source)


def test_patched_finds_attributes_set_at_top_level():
    found = script("Net.scale = 2\nif a:\n    Net.size += 1\ndef f(): Net.no = 1").patched
    assert found == {("Net", "scale"), ("Net", "size")}
