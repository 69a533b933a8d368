from __future__ import annotations

import textwrap

from modpack.discovery.namesources import NameSources


def outside(name: str, **modules: str) -> list[str]:
    """Where a name of ``net`` leads; ``shop__till`` is the source of ``shop.till``."""
    sources = {
        module.replace("__", "."): (textwrap.dedent(text).encode(), module in ("shop", "loop"))
        for module, text in modules.items()
    }
    found = NameSources(sources.get).outside("net", name)
    return [".".join(filter(None, (each.module, each.name))) for each in found]


def test_what_a_module_defines_is_its_own():
    net = "class Net:\n    def forward(self): ...\ndef act(x): ...\nscale = 3\nhook = make()"
    for name in ("Net", "Net.forward", "act", "scale", "hook", "made.at.run_time", ""):
        assert outside(name, net=net) == []


def test_what_it_imports_is_of_others():
    net = "import os.path as p, os\nfrom sys import exit as leave\nimport torch.nn"
    assert outside("os.system", net=net) == ["os.system"]
    assert outside("p.join", net=net) == ["os.path.join"]
    assert outside("leave", net=net) == ["sys.exit"]
    assert outside("torch.nn.Linear", net=net) == ["torch.nn.Linear"]


def test_aliases_are_followed_and_so_are_attributes_of_classes():
    net = "import os\nrun = os.system\nagain = run\nclass Net:\n    tools = os\n    go = run"
    assert outside("again", net=net) == ["os.system"]
    assert outside("Net.tools.remove", net=net) == ["os.remove"]
    assert outside("Net.go", net=net) == ["os.system"]


def test_names_are_followed_through_the_packages_modules():
    net = "from shop.till import pay, execute\nfrom shop import till as t\nimport shop"
    shop = "from . import till\nfrom .till import execute as go"
    till = "from subprocess import run as execute\ndef pay(): ..."
    modules = {"net": net, "shop": shop, "shop__till": till}
    assert outside("pay", **modules) == []
    assert outside("execute", **modules) == ["subprocess.run"]
    assert outside("t.execute", **modules) == ["subprocess.run"]
    assert outside("shop.go", **modules) == ["subprocess.run"]
    assert outside("shop.till.execute", **modules) == ["subprocess.run"]


def test_stars_are_followed_for_names_that_nothing_else_binds():
    net = "from shop import *\nfrom os import *\ndef own(): ..."
    shop = "from shutil import rmtree"
    assert outside("own", net=net, shop=shop) == []
    assert set(outside("rmtree", net=net, shop=shop)) == {"shutil.rmtree", "os.rmtree"}


def test_every_branch_counts():
    net = """
        try:
            from fast import act
        except ImportError:
            def act(x): ...
        if True:
            import os as tools
    """
    assert outside("act", net=net) == ["fast.act"]
    assert outside("tools.system", net=net) == ["os.system"]


def test_circles_and_sources_that_do_not_parse_come_to_an_end():
    loop = "from loop import *\nfrom net import thing"
    net = "from loop import thing\nfrom loop import *\na = a.b\nb = b.c\nb = b.d"
    assert outside("thing", net=net, loop=loop) == []
    assert outside("a.x", net=net, loop=loop) == []
    assert outside("b.x", net=net, loop=loop) == ["b.x"]
    assert outside("thing", net="def") == []
