"""The scan compared with a recursive visitor, on randomly nested blocks around imports."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from modpack.core.scan import ImportKind
from modpack.discovery.import_scanner import scan_source

BLOCKS = [
    "try:\n{}\nexcept ImportError:\n{}\nelse:\n{}\nfinally:\n{}",
    "try:\n{}\nexcept (KeyError, Exception) as e:\n{}\nelse:\n{}",
    "try:\n{}\nexcept ValueError:\n{}\nexcept ModuleNotFoundError:\n{}",
    "try:\n{}\nfinally:\n{}",
    "if x:\n{}\nelse:\n{}",
    "if TYPE_CHECKING:\n{}\nelse:\n{}",
    "if x:\n{}\nelif not typing.TYPE_CHECKING:\n{}\nelse:\n{}",
    "if sys.version_info > (3, 9):\n{}\nelse:\n{}",
    "if HAS:\n{}",
    "if False:\n{}",
    "with suppress(ImportError):\n{}",
    "with open(x) as b:\n{}",
    "for c in x:\n{}\nelse:\n{}",
    "while x:\n{}",
    "def d():\n{}",
    "async def e(p):\n{}",
    "class f:\n{}",
    "match x:\n case 1:\n{}\n case [g]:\n{}",
]
LEAVES = [
    *("import m", "import m.n", "import m.n as k", "import a, b"),
    *("from m import n", "from . import n", "from .o import p as q", "from .. import *"),
    *("pass", "h = 1", "i, *j = x", "'import nothing'"),
]
HEAD = "import sys, typing\nfrom importlib.util import find_spec\nHAS = find_spec('x')\n"


def indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))


def block_of(bodies: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def filled(template: str) -> st.SearchStrategy[str]:
        holes = st.lists(
            bodies.map(indented), min_size=template.count("{}"), max_size=template.count("{}")
        )
        return holes.map(lambda texts: template.format(*texts))

    blocks = st.sampled_from(BLOCKS).flatmap(filled)
    return st.lists(blocks | st.sampled_from(LEAVES), min_size=1, max_size=3).map("\n".join)


SOURCES = st.recursive(st.sampled_from(LEAVES), block_of, max_leaves=12)

Import = tuple[str, tuple[str, ...], ImportKind, int]


class Reference(ast.NodeVisitor):
    """A recursive reference for the rules; it handles only the blocks above."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.imports: list[Import] = []
        self.bound: set[str] = set()
        self.around: list[str] = []  # of "never", "guarded", "function", "class"

    def body(self, statements: Sequence[ast.stmt], *around: str) -> None:
        self.around.extend(around)
        for statement in statements:
            self.visit(statement)
        del self.around[len(self.around) - len(around) :]

    def kind(self) -> ImportKind:
        for mark, kind in [
            ("never", ImportKind.TYPE_CHECKING),
            ("guarded", ImportKind.GUARDED),
            ("function", ImportKind.FUNCTION),
        ]:
            if mark in self.around:
                return kind
        return ImportKind.REQUIRED

    def bind(self, name: str) -> None:
        if not {"never", "function", "class"} & set(self.around):
            self.bound.add(name)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.append((alias.name, (), self.kind(), node.lineno))
            self.bind(alias.asname or alias.name.split(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parts = self.package.split(".")
        anchor = parts[: len(parts) - node.level + 1] if node.level else []
        module = ".".join([*anchor, *([node.module] if node.module else [])])
        names = tuple(alias.name for alias in node.names)
        self.imports.append((module, names, self.kind(), node.lineno))
        for alias in node.names:
            if alias.name != "*":
                self.bind(alias.asname or alias.name)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.bind(node.id)

    def visit_Try(self, node: ast.Try) -> None:
        caught = [self.catches(handler) for handler in node.handlers]
        self.body(node.body, *(["guarded"] if any(caught) else []))
        for handler, catches in zip(node.handlers, caught, strict=True):
            self.body(handler.body, *(["guarded"] if catches else []))
        self.body(node.orelse)
        self.body(node.finalbody)

    def catches(self, handler: ast.ExceptHandler) -> bool:
        return handler.type is not None and "ValueError" not in ast.unparse(handler.type)

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        both = ["guarded"] if "version_info" in test or test == "HAS" else []
        self.body(node.body, *(["never"] if test in ("TYPE_CHECKING", "False") else both))
        self.body(node.orelse, *(["never"] if test == "not typing.TYPE_CHECKING" else both))

    def visit_With(self, node: ast.With) -> None:
        self.body(node.body, *(["guarded"] if "suppress" in ast.unparse(node.items[0]) else []))
        for item in node.items:
            if item.optional_vars:
                self.visit(item.optional_vars)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bind(node.name)
        self.body(node.body, "function")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bind(node.name)
        self.body(node.body, "class")

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self.bind(node.name)


# The tails make the scan visit everything; the other results stay the same.
@given(SOURCES, st.sampled_from(["", "\n__import__(x)", "\n(w := 1)", "\ndef t():\n global u"]))
def test_scan_agrees_with_plain_visitor(source: str, tail: str) -> None:
    text = HEAD + source + tail
    reference = Reference("top.pkg")
    reference.visit(ast.parse(text))
    result = scan_source(text, "top.pkg.mod", is_package=False)
    assert result.failure is None
    found = [(item.module, item.names, item.kind, item.line) for item in result.imports]
    assert found == reference.imports
    assert result.bound == reference.bound


@given(st.text() | st.binary())
def test_scan_never_raises(source: str | bytes) -> None:
    scan_source(source, "top.pkg.mod", is_package=False)
