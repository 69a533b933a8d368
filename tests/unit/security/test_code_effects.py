from __future__ import annotations

import textwrap

import pytest

from modpack.security.code_effects import (
    KINDS,
    METHODS,
    OPENERS,
    EffectKind,
    import_effects,
    read_effects,
)


def effects(source: str) -> list[tuple[str, str, int]]:
    found = import_effects(textwrap.dedent(source))
    return [(effect.kind.value, effect.call, effect.line) for effect in found]


@pytest.mark.parametrize(
    ("source", "kind", "call"),
    [
        ("import os\nos.system('ls')", "process", "os.system"),
        ("import subprocess as s\ns.run(['ls'])", "process", "subprocess.run"),
        ("from subprocess import Popen as P\nP(['ls'])", "process", "subprocess.Popen"),
        ("from os import system\nrun = system\nrun('ls')", "process", "os.system"),
        ("__import__('os').system('ls')", "process", "os.system"),
        ("import importlib\nimportlib.import_module('os').system('')", "process", "os.system"),
        ("import os\ngetattr(os, 'system')('ls')", "process", "os.system"),
        ("import urllib.request\nurllib.request.urlopen('x')", "network", "urllib.request.urlopen"),
        ("import socket\ns = socket.socket()", "network", "socket.socket"),
        ("\nopen('x', 'w')", "write", "open"),
        ("\nopen('x', mode='ab')", "write", "open"),
        ("\nopen('x', how)", "write", "open"),
        ("import pathlib\npathlib.Path('x').write_text('')", "write", "(...).write_text"),
        ("import shutil\nshutil.rmtree('x')", "write", "shutil.rmtree"),
        ("\nexec('x = 1')", "eval", "exec"),
        ("import pickle\npickle.loads(b'')", "eval", "pickle.loads"),
        ("import ctypes\nctypes.CDLL('x')", "native", "ctypes.CDLL"),
        ("import torch\ntorch.ops.load_library('x')", "native", "torch.ops.load_library"),
    ],
)
def test_import_effects_have_lines(source, kind, call):
    last = source.count("\n") + 1
    assert effects(source) == [(kind, call, last)]


@pytest.mark.parametrize(
    "source",
    [
        "import os\ndef f():\n    os.system('ls')",
        "import os\nf = lambda: os.system('ls')",
        "import os\nif __name__ == '__main__':\n    os.system('ls')",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    exec('')",
        "open('x')\nopen('x', 'rb')",
        "import shutil\nshutil.which('ls')",
        "import subprocess\nclass Failed(subprocess.CalledProcessError): pass",
        "import ctypes\nn = ctypes.sizeof(ctypes.c_int)",
        "import re\nre.compile('x')\nmodel.eval()",
        "x = = 1",
    ],
)
def test_import_effects_ignores_harmless_code(source):
    assert effects(source) == []


def spellings(name: str) -> list[str]:
    """Yield ways to write a call, of which the prefilter sees only the words."""
    module, _, attribute = name.rpartition(".")
    given = "('x', 'w')"
    here = f"import {module}\n" if module else ""
    ways = [f"{here}{name}{given}", f"{here}{name} \\\n {given}", f"{here}f = {name}\nf{given}"]
    if module:
        ways += [
            f"import {module} as m\nm.{attribute}{given}",
            f"import {module}\nm = {module}\nm.{attribute}{given}",
            f"from {module} import {attribute}\n{attribute}{given}",
            f"from {module} import {attribute} as f\nf{given}",
        ]
    return ways


@pytest.mark.parametrize("name", sorted({*KINDS, *OPENERS}))
def test_import_effects_finds_all_listed_functions(name):
    for source in spellings(name):
        assert [(e.kind, e.call) for e in import_effects(source)] == [
            (KINDS.get(name, EffectKind.WRITE), name)
        ], source
        assert import_effects(source.encode()) == import_effects(source)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_import_effects_finds_writing_methods(name):
    (effect,) = import_effects(f"import pathlib\npathlib.Path('x').{name}()")
    assert (effect.kind, effect.call) == (EffectKind.WRITE, f"(...).{name}")


def test_import_effects_normalizes_identifiers():
    """Python reads compatibility letters of names as the plain ones (PEP 3131)."""
    assert effects("import os\nos.\N{MATHEMATICAL BOLD SMALL S}ystem('ls')") != []


def test_import_effects_follows_own_functions():
    source = """
        import os

        def first():
            second()

        def second():
            os.system("ls")

        def never():
            os.system("rm")

        class Setup:
            def __init__(self):
                exec("x = 1")
            def later(self):
                exec("y = 1")

        class Body:
            os.remove("x")

        @first
        def decorated(): ...

        Setup()
        """
    found = import_effects(textwrap.dedent(source).strip("\n"))
    assert [(each.call, each.line, each.within) for each in found] == [
        ("os.system", 7, "second"),
        ("exec", 14, "Setup.__init__"),
        ("os.remove", 19, ""),
    ]


def test_import_effects_covers_defaults_and_decorators():
    assert effects("def f(x=eval('1')): ...\n@eval('g')\ndef h(): ...") == [
        ("eval", "eval", 1),
        ("eval", "eval", 2),
    ]


def test_import_effects_handles_recursion():
    assert effects("def f(): g()\ndef g(): f()\nf()") == []


def test_import_effects_handles_deeply_nested_calls():
    nested = "getattr(" * 50 + "os" + ", 'a')" * 50
    assert effects(f"import os\n{nested}()") == []


def test_every_effect_kind_has_a_label():
    assert {kind.value for kind in EffectKind} == {"process", "network", "write", "eval", "native"}


def test_read_effects_reports_too_large_source():
    hidden = "import os\n" + "x;" * 200_000 + "os.system('ls')\n"
    failure = read_effects(hidden)
    assert "too large" in failure.reason
    assert import_effects(hidden) == ()


def test_read_effects_scans_long_simple_source():
    text = "'''" + "a long text, in words. " * 100_000 + "'''\n# " + "comment " * 50_000 + "\n"
    (effect,) = import_effects(text + "import os\nos.system('ls')\n")
    assert effect.call == "os.system"


def test_read_effects_reports_syntax_error():
    assert read_effects("import os\nos.system('ls'\n").line == 2
