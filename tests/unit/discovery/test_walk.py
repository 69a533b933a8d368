"""The walk over sources in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from modpack.core.graph import CodeKind, Edge, Location
from modpack.core.rules import Action
from modpack.core.scan import ImportKind
from modpack.discovery.walk import Walker


class Library:
    """A module source; a path that ends in ``.__init__`` is a package."""

    def __init__(self, sources: Mapping[str, str], live: Mapping[str, str] | None = None) -> None:
        self.sources = {name.removesuffix(".__init__"): text for name, text in sources.items()}
        self.packages = {name.removesuffix(".__init__") for name in sources if "__init__" in name}
        self.live = live or {}

    def locate(self, module: str) -> Location | None:
        if module not in self.sources:
            return None
        return Location(module, CodeKind.SOURCE, f"/lib/{module}", module in self.packages)

    def read_source(self, location: Location) -> bytes:
        return self.sources[location.module].encode()

    def defining_module(self, module: str, name: str) -> str | None:
        return None

    def loaded(self) -> Collection[str]:
        return ()

    def lacks(self, module: str) -> bool:
        return False

    @property
    def is_package(self) -> bool:
        return False

    def live_attribute(self, module: str, name: str) -> str | None:
        return self.live.get(f"{module}.{name}")


class Walk:
    """A walker over one library that interns all modules without another action."""

    def __init__(
        self,
        sources: Mapping[str, str],
        actions: Mapping[str, Action | None] | None = None,
        live: Mapping[str, str] | None = None,
    ) -> None:
        self.asked: list[str] = []
        self.actions = dict(actions or {})
        self.walker = Walker([Library(sources, live)], self._decide)

    def _decide(self, module: str) -> Action | None:
        self.asked.append(module)
        return self.actions.get(module, Action.INTERN)

    def from_main(self, source: str) -> list[str]:
        self.walker.provide("main", source.encode(), False, True)
        return self.asked


def test_walk_is_breadth_first_and_decides_once():
    walk = Walk({"a": "import c, d", "b": "import c", "c": "import a", "d": ""})
    assert walk.from_main("import a, b") == ["a", "b", "c", "d"]


def test_walk_follows_interned_modules_only():
    sources = {name: f"import of_{name}" for name in ("i", "e", "m", "d", "u")}
    actions = {"e": Action.EXTERN, "m": Action.MOCK, "d": Action.DENY, "u": None}
    walk = Walk(sources, actions)
    assert walk.from_main("import i, e, m, d, u") == ["i", "e", "m", "d", "u", "of_i"]
    assert list(walk.walker.undecided) == ["u"]


def test_walk_adds_parents_except_of_denied_modules():
    walk = Walk({}, {"x.y": Action.DENY, "a.b.c": Action.EXTERN})
    assert walk.from_main("import a.b.c, x.y") == ["a.b.c", "x.y", "a.b", "a"]
    edges = walk.walker.graph.edges_to("a")
    assert [(edge.importer, edge.kind) for edge in edges] == [("a.b", ImportKind.PARENT)]


def test_walk_does_not_follow_type_checking_imports():
    walk = Walk({})
    assert walk.from_main("import typing\nif typing.TYPE_CHECKING:\n    import a") == ["typing"]
    assert walk.walker.graph.predecessors("a") == ("main",)


def test_walk_records_kind_line_and_names():
    walk = Walk({})
    walk.from_main("import a\ndef f():\n    from b import x, y\n")
    graph = walk.walker.graph
    assert graph.edges_to("a") == (Edge("main", "a", ImportKind.REQUIRED, 1),)
    assert graph.edges_to("b") == (Edge("main", "b", ImportKind.FUNCTION, 3, ("x", "y")),)


@pytest.mark.parametrize(
    ("init", "live", "is_submodule"),
    [
        ("", {}, True),
        ("x = 1", {}, False),
        ("def x(): pass", {}, False),
        ("from other import x", {}, False),
        ("from . import x", {}, True),
        ("", {"pkg.x": "attribute"}, False),
        ("x = 1", {"pkg.x": "submodule"}, True),
    ],
)
def test_walk_prefers_attribute_over_submodule(init, live, is_submodule):
    walk = Walk({"pkg.__init__": init, "pkg.x": "", "other": ""}, live=live)
    assert ("pkg.x" in walk.from_main("from pkg import x")) is is_submodule


def test_walk_ignores_name_that_is_not_a_module():
    walk = Walk({"pkg.__init__": ""})
    assert walk.from_main("from pkg import x") == ["pkg"]


def test_walk_follows_submodules_in_all():
    walk = Walk({"pkg.__init__": "__all__ = ['x', 'y']\ny = 1", "pkg.x": "", "pkg.z": ""})
    assert walk.from_main("from pkg import *") == ["pkg", "pkg.x"]


def test_provided_source_takes_precedence():
    walk = Walk({"a": "import from_library"})
    walk.walker.provide("a", b"import from_user", False, True)
    assert walk.asked == ["from_user"]
    location = walk.walker.locate("a")
    assert location is not None and location.file is None and location.kind is CodeKind.SOURCE
    assert walk.walker.source("a") == b"import from_user"


def test_provided_submodule_is_followed():
    walk = Walk({})
    walk.walker.provide("pkg", b"", True, True)
    walk.walker.provide("pkg.x", b"", False, True)
    walk.from_main("from pkg import x")
    assert walk.walker.graph.predecessors("pkg.x") == ("main",)


def test_provide_without_follow_adds_no_edges():
    walk = Walk({"a": "import b"})
    walk.walker.provide("x.y", b"import a", False, False)
    assert walk.asked == []


def test_provide_replaces_edges_of_previous_source():
    walk = Walk({})
    walk.from_main("import a")
    walk.from_main("import b")
    assert walk.walker.graph.successors("main") == ("b",)
    assert "a" not in walk.walker.graph.reachable_nodes()


def test_retry_decides_undecided_modules_again():
    walk = Walk({"a": "import b"}, {"a": None})
    walk.from_main("import a")
    walk.actions["a"] = Action.INTERN
    walk.walker.retry()
    assert walk.asked == ["a", "a", "b"]
    assert list(walk.walker.undecided) == []


def test_undecide_drops_imports():
    walk = Walk({"a": "import b"}, {"b": None})
    walk.from_main("import a")
    assert walk.walker.reachable_undecided() == ["b"]
    walk.actions["a"] = Action.EXTERN
    walk.walker.undecide("a")
    assert walk.walker.reachable_undecided() == ["a"]
    walk.walker.retry()
    assert walk.walker.reachable_undecided() == []


def test_modules_added_by_decision_are_queued():
    order: list[str] = []
    walker = Walker([Library({"a": "", "b": "", "c": ""})], lambda name: decide(name))

    def decide(name: str) -> Action:
        order.append(f"enter {name}")
        if name == "a":
            walker.provide("extra", b"import c", False, True)
        order.append(f"leave {name}")
        return Action.INTERN

    walker.provide("main", b"import a, b", False, True)
    assert order == [f"{what} {name}" for name in "abc" for what in ("enter", "leave")]


def test_module_provided_during_decision_stays_interned():
    walker = Walker([Library({"a": "x = 1"})], lambda name: decide(name))

    def decide(name: str) -> Action:
        walker.provide(name, b"x = 2", False, True)
        return Action.MOCK

    walker.provide("main", b"import a", False, True)
    assert walker.actions["a"] is Action.INTERN


def test_failing_decision_does_not_block_walk():
    walk = Walk({"a": "", "b": ""})
    walk.actions = {"a": Action.INTERN}
    failing = iter([True, False])

    class Stopped(BaseException):
        pass

    original = walk._decide

    def decide(name: str) -> Action | None:
        if next(failing, False):
            raise Stopped
        return original(name)

    walk.walker._decide_by_rule = decide
    with pytest.raises(Stopped):
        walk.from_main("import a")
    walk.walker.provide("second", b"import b", False, True)
    assert walk.asked == ["b"]


def test_environments_are_tried_in_order_unless_pinned():
    first, second = Library({"a": "1", "a.x": "1"}), Library({"a": "2", "b": "2"})
    walker = Walker([first, second], lambda name: Action.INTERN)
    assert walker.source("a") == b"1" and walker.source("b") == b"2"
    assert walker.pin_root("a", second) is None
    assert walker.source("a") == b"2" and walker.locate("a.x") is None


def test_pin_root_fails_after_interning():
    first, second = Library({"a": "1"}), Library({"a": "2"})
    walker = Walker([first, second], lambda name: Action.INTERN)
    walker.provide("main", b"import a", False, True)
    assert walker.pin_root("a", second) == "a"
    assert walker.source("a") == b"1"
    assert walker.pin_root("a", first) is None


def test_unreadable_source_is_failed_scan():
    class Unreadable(Library):
        def read_source(self, location: Location) -> bytes:
            raise PermissionError("not for you")

    walker = Walker([Unreadable({"a": ""})], lambda name: Action.INTERN)
    walker.provide("main", b"import a", False, True)
    failure = walker.scan("a").failure
    assert failure is not None and "not for you" in failure.reason


def test_walk_ignores_modules_provided_on_load():
    walk = Walk({})
    assert walk.from_main("import torch_package_importer, _modpack_mock") == []


def test_source_is_read_once():
    library = Library({"a": "x = 1"})
    read: list[str] = []
    original = library.read_source

    def counting(location: Location) -> bytes:
        read.append(location.module)
        return original(location)

    library.read_source = counting
    walker = Walker([library], lambda name: Action.INTERN)
    walker.provide("main", b"import a", False, True)
    assert [walker.source("a"), walker.source("a")] == [b"x = 1", b"x = 1"]
    assert read == ["a"]


def test_sources_beyond_cache_limit_are_read_again(monkeypatch):
    monkeypatch.setattr("modpack.discovery.walk._MAX_CACHED_BYTES", 4)
    walker = Walker([library := Library({"a": "12", "b": "345"})], lambda name: Action.INTERN)
    assert (walker.source("a"), walker.source("b")) == (b"12", b"345")
    library.sources.update(a="changed", b="changed")
    assert (walker.source("a"), walker.source("b")) == (b"12", b"changed")


def test_provided_module_is_read_again():
    walker = Walker([library := Library({"a": "import b", "b": ""})], lambda name: Action.INTERN)
    walker.include("a", follow=True)
    library.sources["a"] = "import c"
    walker.include("a", follow=True)
    assert walker.source("a") == b"import c"
    assert [statement.module for statement in walker.scan("a").imports] == ["c"]


def test_pin_root_drops_cached_sources():
    first, second = Library({"a": "import b"}), Library({"a": "import c"})
    walker = Walker([first, second], lambda name: Action.INTERN)
    assert walker.scan("a").imports[0].module == "b"
    walker.pin_root("a", second)
    assert walker.scan("a").imports[0].module == "c"
