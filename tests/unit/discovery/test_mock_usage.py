"""Static search for uses of mocked modules in packaged code."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping

import pytest

from modpack.core.graph import DependencyGraph, Edge
from modpack.core.plan import MockUse
from modpack.core.scan import ImportKind
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.mock_usage import find_uses


def found(
    modules: Mapping[str, str] | str,
    mocked: Collection[str] = ("tracker",),
    entries: Collection[tuple[str, str]] = (),
) -> tuple[MockUse, ...]:
    """Return the uses in some modules; a plain source is a module named ``net``."""
    if isinstance(modules, str):
        modules = {"net": modules}
    sources = {
        name: (
            textwrap.dedent(source).encode(),
            any(other.startswith(f"{name}.") for other in modules),
        )
        for name, source in modules.items()
    }
    return find_uses(sources, mocked, graph_of(sources, entries))


def graph_of(
    sources: Mapping[str, tuple[bytes, bool]], entries: Collection[tuple[str, str]] = ()
) -> DependencyGraph:
    """Return the graph of some sources and of saved classes, functions, or modules."""
    graph = DependencyGraph()
    for module, (source, is_package) in sources.items():
        for each in scan_source(source, module, is_package).imports:
            graph.add_edge(Edge(module, each.module, each.kind, each.line, each.names))
            for name in each.names:
                graph.add_edge(Edge(module, f"{each.module}.{name}", each.kind, each.line))
    for module, name in entries:
        if name:
            graph.add_edge(Edge("<model/net.pkl>", module, ImportKind.PICKLE, names=(name,)))
        else:
            graph.mark_root(module)
    return graph


def summarize(uses: Collection[MockUse]) -> list[tuple[str, int, str]]:
    """Return name, line, and kind of each use."""
    return [(use.name, use.line, use.kind.value) for use in uses]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A(tracker.Base): pass", ("Base", 2, "base-class")),
        ("class A(tracker.Base[int]): pass", ("Base", 2, "base-class")),
        ("class A(metaclass=tracker.Meta): pass", ("Meta", 2, "base-class")),
        ("@tracker.watch\ndef f(): pass", ("watch", 2, "decorator")),
        ("@tracker.watch(1)\nclass A: pass", ("watch", 2, "decorator")),
        ("class A:\n    @tracker.watch\n    def f(self): pass", ("watch", 3, "decorator")),
        ("tracker.init()", ("init", 2, "module-level")),
        ("class A:\n    run = tracker.init()", ("init", 3, "module-level")),
        ("x = [tracker.init(i) for i in range(3)]", ("init", 2, "module-level")),
        ("x = list(tracker.init(i) for i in range(3))", ("init", 2, "module-level")),
        ("x = tracker.LEVEL", ("LEVEL", 2, "module-level")),
        ("x = [1][tracker.LEVEL]", ("LEVEL", 2, "module-level")),
        ("x = tracker is None", ("", 2, "module-level")),
        ("def f(x=tracker.LEVEL): pass", ("LEVEL", 2, "module-level")),
        ("def f(*, x=tracker.LEVEL): pass", ("LEVEL", 2, "module-level")),
        ("f = lambda x=tracker.LEVEL: 1", ("LEVEL", 2, "module-level")),
        ("if tracker.ON:\n    x = 1", ("ON", 2, "module-level")),
        ("def f(x: tracker.Run): pass", ("Run", 2, "annotation")),
        ("def f(x) -> tracker.Run: pass", ("Run", 2, "annotation")),
        ("def f(*x: 'list[tracker.Run]'): pass", ("Run", 2, "annotation")),
        ("x: tracker.Run", ("Run", 2, "annotation")),
        ("x: 'tracker.Run | None' = None", ("Run", 2, "annotation")),
        ("def f():\n    x: tracker.Run = None", ("Run", 3, "annotation")),
        ("def f():\n    tracker.log()", ("log", 3, "function-body")),
        ("async def f():\n    await tracker.log()", ("log", 3, "function-body")),
        ("f = lambda: tracker.log()", ("log", 2, "function-body")),
        ("x = (tracker.log(i) for i in range(3))", ("log", 2, "module-level")),
        ("def f():\n    return [tracker.log(i) for i in range(3)]", ("log", 3, "function-body")),
        ("def f():\n    class A(tracker.Base): pass", ("Base", 3, "function-body")),
        ("def f(x):\n    return isinstance(x, tracker.Run)", ("Run", 3, "type-check")),
        ("def f(x):\n    return isinstance(x, (int, tracker.Run))", ("Run", 3, "type-check")),
        ("def f(x):\n    return tracker is not None", ("", 3, "type-check")),
        ("def f(x):\n    return hasattr(tracker, 'log')", ("", 3, "type-check")),
        (
            "def f():\n    try: g()\n    except tracker.CommError: pass",
            ("CommError", 4, "type-check"),
        ),
        (
            "def f():\n    try: g()\n    except tracker.Timeout: pass",
            ("Timeout", 4, "function-body"),
        ),
        ("def f(x):\n    return x > tracker.LEVEL", ("LEVEL", 3, "function-body")),
        ("def f():\n    if tracker: pass", ("", 3, "function-body")),
        ("def f():\n    return getattr(tracker, 'log')(1)", ("", 3, "function-body")),
    ],
)
def test_find_uses_reports_kind_of_use(source, expected):
    assert summarize(found(f"import tracker\n{source}")) == [expected]


@pytest.mark.parametrize(
    "source",
    [
        "from typing import Literal\nx: Literal['tracker'] = 'tracker'",
        "def f(x: 'no annotation at all', y: 'tracker.('): pass",
        "if __name__ == '__main__':\n    tracker.log()",
        "if '__main__' == __name__ and True:\n    tracker.log()",
        "if __name__ != '__main__':\n    pass\nelse:\n    tracker.log()",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    x = tracker.Run",
        "import typing as t\nif not t.TYPE_CHECKING:\n    pass\nelse:\n    x = tracker.Run",
        "if False:\n    tracker.log()",
        "def f(tracker):\n    tracker.log()",
        "def f():\n    tracker = 1\n    tracker.log()",
        "class A:\n    def f(self):\n        self.tracker.log()",
        "f = [tracker.x for tracker in range(3)]",
        "'tracker.log'",
    ],
)
def test_find_uses_ignores_dead_code_and_other_names(source):
    assert found(f"import tracker\n{source}") == ()


def test_find_uses_ignores_branch_that_never_runs():
    source = """
        import tracker
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from tracker import Run
        else:
            tracker.start()
    """
    assert summarize(found(source)) == [("start", 7, "module-level")]


def test_find_uses_ignores_type_checking_import():
    source = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from tracker import Run
        def f(x: "Run") -> "Run": pass
    """
    assert found(source) == ()


def test_find_uses_reports_enclosing_scope():
    source = """
        import tracker
        class A:
            level = tracker.LEVEL
            def f(self):
                def inner():
                    tracker.log()
        f = lambda: tracker.log()
    """
    scopes = [use.scope for use in found(source)]
    assert scopes == ["A", "A.f.<locals>.inner", "<lambda>"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import tracker as t\nt.log()", "log"),
        ("from tracker import log\nlog()", "log"),
        ("from tracker import log as write\nwrite()", "log"),
        ("import tracker\nt = tracker\nt.log()", "log"),
        ("import tracker\nlog = tracker.log\nlog()", "log"),
        ("import tracker\nif (t := tracker):\n    t.log()", "log"),
        ("try:\n    import tracker\nexcept ImportError:\n    tracker = None\ntracker.log()", "log"),
        ("t = None\ndef use():\n    global t\n    import tracker as t\nt.log()", "log"),
    ],
)
def test_find_uses_follows_imports_and_aliases(source, name):
    last = source.count("\n") + 1
    assert name in [use.name for use in found(source) if use.line == last]


def test_find_uses_ignores_result_of_call_in_function():
    source = """
        import tracker
        def f(image):
            if isinstance(image, str):
                image = tracker.read(image)
            run = tracker.init()
            run.log(image.size)
            return image
    """
    assert summarize(found(source)) == [("read", 5, "function-body"), ("init", 6, "function-body")]


def test_find_uses_sees_function_import_in_nested_functions():
    source = """
        def f():
            from tracker import log
            def inner():
                return log()
            return inner
        def g():
            return log()
    """
    assert summarize(found(source)) == [("log", 5, "function-body")]


def test_find_uses_reports_mocked_submodule():
    source = """
        import tracker.client
        from tracker import server
        tracker.client.log()
        server.start()
        tracker.init()
    """
    uses = found(source, mocked=["tracker", "tracker.client", "tracker.server"])
    assert [(use.module, use.name) for use in uses] == [
        ("tracker", "init"),
        ("tracker.client", "log"),
        ("tracker.server", "start"),
    ]


def test_find_uses_follows_path_to_mocked_submodule():
    modules = {
        "shop": "",
        "shop.net": "import shop\nfrom . import till\nshop.till.open()\ntill.close()",
    }
    uses = found(modules, mocked=["shop.till"])
    assert summarize(uses) == [("open", 3, "module-level"), ("close", 4, "module-level")]


def test_find_uses_resolves_relative_imports():
    modules = {"shop": "", "shop.deep": "", "shop.deep.net": "from ..till import open\nopen()"}
    assert summarize(found(modules, mocked=["shop.till"])) == [("open", 2, "module-level")]


def test_find_uses_follows_name_through_three_modules():
    modules = {
        "one": "from tracker import log as write",
        "two": "from one import write as emit",
        "three": "import two\nhand_on = two.emit",
        "net": "from three import hand_on\ndef f():\n    hand_on()",
    }
    (use,) = [use for use in found(modules) if use.importer == "net"]
    assert (use.name, use.kind.value, use.via) == ("log", "function-body", ("three", "two", "one"))


@pytest.mark.parametrize(
    "source",
    [
        "from shop.tools import log\nlog()",
        "from .tools import log\nlog()",
        "from . import tools\ntools.log()",
        "import shop.tools\nshop.tools.log()",
        "import shop.tools as t\nt.log()",
        "from shop import tools as t\nt.log()",
        "from .tools import *\nlog()",
    ],
)
def test_find_uses_follows_all_imports_of_packaged_module(source):
    modules = {"shop": "", "shop.tools": "from tracker import log", "shop.net": source}
    (use,) = found(modules)
    assert (use.importer, use.name, use.via) == ("shop.net", "log", ("shop.tools",))


def test_find_uses_follows_star_import_of_mock():
    source = """
        from tracker import *
        SIZE = 3
        def f(x):
            return log(len(x), SIZE)
    """
    assert summarize(found(source)) == [("log", 5, "function-body")]


def test_star_import_binds_public_names():
    modules = {
        "plain": "from tracker import log as open_log, log as _private",
        "net": "from plain import *\nopen_log()\n_private()",
    }
    assert [use.line for use in found(modules)] == [2]


def test_find_uses_terminates_on_import_cycle():
    modules = {
        "left": "import right\nfrom tracker import log\nback = right.back\nback()",
        "right": "import left\nback = left.log\nagain = left.back",
        "net": "from right import again\nagain()",
    }
    uses = found(modules)
    assert ("net", "log") in {(use.importer, use.name) for use in uses}


def test_find_uses_terminates_on_growing_names():
    modules = {
        "left": "from right import x\nfrom tracker import x\ny = x.a or x.b(1)[2]",
        "right": "from left import y\nx = y.c or y.d",
    }
    assert len(found(modules)) < 1000


@pytest.fixture
def parsed(monkeypatch) -> list[bytes]:
    """Return the sources that are parsed in a test."""
    from modpack.discovery import mock_usage

    parsed: list[bytes] = []
    real = mock_usage.parse_source
    monkeypatch.setattr(mock_usage, "parse_source", lambda s: parsed.append(s) or real(s))
    return parsed


def test_find_uses_parses_related_modules_only(parsed):
    sources = {f"m{number}": (b"import m1\nx = 1\n", False) for number in range(50)}
    sources["net"] = (b"import tracker\ntracker.init()\n", False)
    assert len(find_uses(sources, ["tracker"], graph_of(sources))) == 1
    assert parsed == [sources["net"][0]]


def test_find_uses_skips_unparsable_source():
    modules = {"broken": "import tracker\ntracker.log(", "net": "import tracker\ntracker.log()"}
    assert [use.importer for use in found(modules)] == ["net"]


@pytest.mark.parametrize(
    "source",
    [
        "x = " + " + ".join(["tracker.a"] * 5000),
        "x = tracker" + ".a" * 3000,
        "x = " + "not " * 1500 + "tracker",
        "x = " + "1 if 2 else " * 900 + "tracker",
        "if " + "not " * 900 + "TYPE_CHECKING:\n    tracker.log()",
        "\n".join(f"class A{n}(A{n - 1}): pass" for n in range(1, 900)) + "\nA899().x",
        "\n".join(f"x{n} = x{n - 1}.a" for n in range(1, 900)) + "\nx0 = tracker",
        "x = tracker\n" + "\n".join(f"x = x.a{n} or x.b{n}()" for n in range(200)),
    ],
)
def test_find_uses_handles_deep_nesting(source):
    found(f"import tracker\n{source}\n")


def test_find_uses_follows_the_imports_of_the_graph():
    sources = {
        "tools": (b"from tracker import log\n", False),
        "net": (b"from tools import log\nlog()\n", False),
    }
    graph = DependencyGraph()
    graph.add_edge(Edge("tools", "tracker", ImportKind.REQUIRED, 1, ("log",)))
    assert find_uses(sources, ["tracker"], graph) == ()
    graph.add_edge(Edge("net", "tools", ImportKind.REQUIRED, 1, ("log",)))
    assert [use.importer for use in find_uses(sources, ["tracker"], graph)] == ["net"]


def test_find_uses_reports_imports_of_functions_in_pickles():
    graph = DependencyGraph()
    saved = "<model/net.pkl>"
    graph.add_edge(Edge(saved, "tracker", ImportKind.FUNCTION, None, ("log", "client")))
    graph.add_edge(Edge(saved, "tracker", ImportKind.PARENT))
    mocked = ["tracker", "tracker.client"]
    uses = find_uses({}, mocked, graph)
    assert [(use.module, use.name, use.importer, use.kind.value) for use in uses] == [
        ("tracker", "log", saved, "function-body"),
        ("tracker.client", "", saved, "function-body"),
    ]


def test_uses_in_saved_classes_come_first():
    source = """
        import tracker
        def helper():
            tracker.log()
        class Net:
            def forward(self):
                tracker.log()
    """
    scopes = [use.scope for use in found(source, entries=[("net", "Net")])]
    assert scopes == ["Net.forward", "helper"]


def test_uses_near_saved_objects_come_first():
    modules = {
        "a_far": "import tracker\ntracker.log()",
        "m_middle": "import a_far",
        "z_near": "import tracker\ntracker.log()",
        "net": "import m_middle, z_near",
    }
    graph_entries = [("net", "")]
    importers = [use.importer for use in found(modules, entries=graph_entries)]
    assert importers == ["z_near", "a_far"]


def test_find_uses_without_mocks_is_empty():
    assert found("import tracker\ntracker.log()", mocked=[]) == ()
