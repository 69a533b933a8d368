"""Import statements in functions are compiled to relative imports."""

from __future__ import annotations

import dis
import textwrap

import pytest

from modpack.loading.compile import compile_module


def ours(module):
    return module.split(".")[0] in ("mine", "other")


def compiled(source, package="mine"):
    return compile_module(textwrap.dedent(source).encode(), "mine.py", package, ours)


def imports_of(code):
    """``(level, module)`` of each import in a code object and in those within it."""
    found, level = [], None
    instructions = list(dis.get_instructions(code))
    for position, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            level = instructions[position - 2].argval
            found.append((level, instruction.argval))
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            found += imports_of(constant)
    return found


AROUND = (
    "def f():\n    {}",
    "async def f():\n    {}",
    "class C:\n    def f(self):\n        {}",
    "def f():\n    class C:\n        def g(self):\n            {}",
    "def f(x):\n    if x:\n        pass\n    elif x:\n        {}",
    "def f(x):\n    for _ in x:\n        pass\n    else:\n        {}",
    "def f():\n    try:\n        {}\n    except ImportError:\n        pass",
    "def f():\n    try:\n        pass\n    except ImportError:\n        {}",
    "def f():\n    try:\n        pass\n    finally:\n        {}",
    "def f(x):\n    with x:\n        {}",
    "def f(x):\n    match x:\n        case 1:\n            {}",
    "if True:\n    def f():\n        {}",
    "def f(): {}",
    "def f(): x = 1; {}",
)
"""Blocks around a local import."""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import mine", [(2, "mine"), (2, "")]),
        ("import mine.a.b", [(2, "mine.a.b"), (2, "")]),
        ("import mine.a.b as c", [(2, "mine.a.b"), (2, "mine.a")]),
        ("import mine as m", [(2, "mine"), (2, "")]),
        ("from mine.a import b, c as d", [(2, "mine.a")]),
        ("from mine import (a,\n        b)", [(2, "mine")]),
        ("import json, mine.a, os.path", [(0, "json"), (2, "mine.a"), (2, ""), (0, "os.path")]),
        ("import json", [(0, "json")]),
        ("from json import dumps", [(0, "json")]),
        ("from . import a", [(1, "")]),
        ("from .. import mine", [(2, "")]),
    ],
)
def test_local_import_of_packaged_module_becomes_relative(statement, expected):
    found = {around: imports_of(compiled(around.format(statement))) for around in AROUND}
    assert {
        around: each for around, each in found.items() if each[: len(expected)] != expected
    } == {}


@pytest.mark.parametrize(
    "source",
    [
        "import mine.a",
        "from mine.a import b",
        "class C:\n    import mine.a",
        "try:\n    import mine.a\nexcept ImportError:\n    pass",
        "def f():\n    class C:\n        import mine.a",
        "text = '''\n  import mine.a\n'''",
    ],
)
def test_other_imports_stay_absolute(source):
    assert all(level == 0 for level, _ in imports_of(compiled(source)))


LEVELS = [("", 1), ("mine", 2), ("a.b.c", 4)]


@pytest.mark.parametrize(("package", "level"), LEVELS)
def test_relative_level_reaches_namespace(package, level):
    found = imports_of(compiled("def f():\n    from other import x", package))
    assert found == [(level, "other")]


def test_docstrings_line_numbers_and_future_statements_stay():
    source = '''
    # -*- coding: latin-1 -*-
    """Doc."""
    from __future__ import annotations

    def f(x: Absent) -> int:
        """Inner."""
        import mine.a.b as c
        return 1 / 0
    '''
    names = {}
    exec(compiled(source), names)
    assert names["__doc__"] == "Doc." and names["f"].__doc__ == "Inner."
    assert names["f"].__annotations__ == {"x": "Absent", "return": "int"}
    lines = {line for _, _, line in names["f"].__code__.co_lines() if line}
    assert lines - {6} == {8, 9}  # 6 is the def itself, in newer Pythons


def test_declared_encoding_is_respected():
    source = "# coding: latin-1\nvalue = 'größe'\ndef f():\n    import mine\n".encode("latin-1")
    names = {}
    exec(compile_module(source, "x.py", "mine", ours), names)
    assert names["value"] == "größe"


def test_deeply_nested_source_is_compiled_without_tree():
    deep = "+".join(["1"] * 2500)
    source = f"value = {deep}\ndef f():\n    import mine\n"
    names = {}
    exec(compiled(source), names)
    assert names["value"] == 2500


def test_long_chains_of_branches_are_walked():
    branches = "".join(f"    elif x == {n}:\n        import mine.m{n}\n" for n in range(1, 150))
    source = f"def f(x):\n    if x == 0:\n        pass\n{branches}"
    assert all(level == 2 for level, _ in imports_of(compiled(source)))


ODDLY_WRITTEN = {
    "over two lines": "def f():\n    import \\\n        mine\n",
    "over two lines, after from": "def f():\n    from mine \\\n        import a\n",
    "over two lines, the name alone": "def f():\n    from \\\n      mine import a\n",
    "at the margin, in a function": "def f(): \\\nimport mine\n",
    "over two lines, with a carriage return": "def f():\r\n    import \\\r\n  mine\r\n",
    "lines that end in a carriage return": "import json\rdef f():\r    import mine\r",
    "blanks around dots": "def f():\n    import mine . a\n",
    "blanks around dots, after from": "def f():\n    from mine . a import b\n",
    "no blank before the bracket": "def f():\n    from mine import(a)\n",
    "tabs": "def f():\n\tfrom\tmine\timport\ta\n",
    "a form feed": "def f():\n\f    import mine\n",
    "after another": "def f():\n    import json as j, mine as m\n",
    "after a string": "def f(): 'import json'; import mine\n",
    "with a comment": "def f():\n    import mine  # import json\n",
    "at the end": "def f():\n    import mine",
    "a name of other letters": "def f():\n    import größe\n",
    "after an example": 'def f():\n    """\n    >>> import json\n    """\n    import mine\n',
    "a plain import": "def f():\n    import mine\n",
}


@pytest.mark.parametrize("source", ODDLY_WRITTEN.values(), ids=ODDLY_WRITTEN)
def test_imports_are_found_in_every_notation(source):
    code = compile_module(source.encode(), "x.py", "mine", lambda name: name != "json")
    assert any(level for level, _ in imports_of(code))


@pytest.mark.parametrize(
    "source",
    [
        "import mine\n",
        "from mine import a\nfrom mine.b import (\n    c,\n    d,\n)\n",
        "def f():\n    import json, os.path as p\n    from os import path\n",
        "def f():\n    from . import a\n    from .mine import b\n",
        'def f():\n    """What this may import the caller knows.\n\n    >>> import mine\n    """\n',
        "def f(importer):\n    importer.import_module('mine')\n",
    ],
)
def test_most_sources_are_compiled_without_a_tree(source, monkeypatch):
    monkeypatch.setattr("ast.parse", None)
    compile_module(source.encode(), "x.py", "mine", lambda name: name.startswith("mine"))


def test_invalid_source_raises_syntax_error():
    with pytest.raises(SyntaxError):
        compiled("def f(:\n    import mine")
