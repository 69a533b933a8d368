"""Helper processes that compile modules."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

from modpack.archive.module_index import ModuleIndex
from modpack.loading import cache as tree
from modpack.loading import compile as compileahead
from modpack.loading import compile as compilehelper
from modpack.loading.compile import code_store
from modpack.loading.finder import PackageFinder
from tests.compile_helpers import awaited_helpers

DIGEST = "ab12"
COUNT = 300
SOURCE = """
import os, sys
from app import m{next}
assert sys.modules["app"] or __debug__
def step(values):
    "Has a local import."
    import app.m{next}
    import app.m{next} as other, outside
    return [value * {number} for value in values]
"""
FIRST = compileahead._MISSES - 1
"""The modules that are compiled here in any case."""


def sources(count=COUNT):
    made = {f"app/m{n}.py": SOURCE.format(number=n, next=(n + 1) % count) for n in range(count)}
    return {"app/__init__.py": "from __future__ import annotations\n", **made}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.delenv("MODPACK_WORKERS", raising=False)
    monkeypatch.setattr(compileahead, "usable_cores", lambda: 2)


@pytest.fixture
def started(monkeypatch):
    return awaited_helpers(monkeypatch)


class Package:
    """An unpacked package, as the loaders of its modules use it."""

    def __init__(self, texts, prefix="modpack.packages.pab12."):
        records = {name: text.encode() for name, text in texts.items()}
        sizes = {name: len(content) for name, content in records.items()}
        self.tree = tree.unpack(DIGEST, sizes, records.__getitem__)
        self.index = ModuleIndex.build(records, {"outside": None})
        self.prefix = prefix
        self.stores = []
        self.store = self.opened()

    def opened(self):
        store = code_store(self.tree, self.prefix, self.index)
        self.stores.append(store)
        return store

    def loaders(self, store):
        finder = PackageFinder("file", self.prefix, self.index, self.tree, lambda _: None)
        vars(finder)["code"] = store
        for module, entry in self.index.entries.items():
            if entry.record.endswith(".py"):
                yield finder.find_spec(self.prefix + module, None).loader

    def get(self, store=None):
        """The code of all modules, and how many were compiled here."""
        store, here = store or self.store, []
        put, store.put = store.put, lambda *piece: (here.append(piece), put(*piece))
        codes = [loader.get_code(loader.name) for loader in self.loaders(store)]
        store.put = put
        return codes, len(here)

    def kept(self):
        return sorted((self.tree.parent / "code").glob("*/*"))


@pytest.fixture
def make(tmp_path, monkeypatch):
    packages = []

    def made(prefix="modpack.packages.pab12.", texts=None):
        monkeypatch.setenv("MODPACK_CACHE_DIR", str(tmp_path / "cache"))
        packages.append(Package(texts or sources(), prefix))
        return packages[-1]

    yield made
    for package in packages:
        for store in package.stores:
            store.write()


def described(codes):
    """All that code says of itself."""
    found, waiting = [], list(codes)
    for code in waiting:
        names = sorted(name for name in dir(code) if name.startswith("co_") and name != "co_lines")
        facts = {n: getattr(code, n) for n in names if n not in ("co_consts", "co_positions")}
        constants = [each for each in code.co_consts if not hasattr(each, "co_code")]
        found.append(
            (
                facts,
                repr(constants),
                list(code.co_lines()),
                list(getattr(code, "co_positions", tuple)()),
            )
        )
        waiting += [each for each in code.co_consts if hasattr(each, "co_code")]
    return found


@pytest.mark.parametrize("prefix", ["modpack.packages.pab12.", ""])
def test_helper_compiles_the_same_code(prefix, make, started, monkeypatch):
    package = make(prefix)
    helped, here = package.get()
    assert (here, len(started)) == (FIRST, 1)
    monkeypatch.setenv("MODPACK_WORKERS", "0")
    alone, here = package.get(package.opened())
    assert (here, len(started)) == (COUNT + 1, 1)
    assert described(helped) == described(alone)


def test_code_of_helper_is_stored(make, started):
    package = make()
    first, _ = package.get()
    package.store.write()
    assert len(package.kept()) == 1
    later, here = package.get(package.opened())
    assert (here, len(started)) == (0, 1)
    assert described(first) == described(later)


def test_unused_code_of_helper_is_not_stored(make, started, monkeypatch):
    package = make()
    loaders = list(package.loaders(package.store))
    for loader in loaders[:20]:
        loader.get_code(loader.name)
    package.store.write()
    monkeypatch.setenv("MODPACK_WORKERS", "0")
    assert package.get(package.opened())[1] == COUNT + 1 - 20


def test_helper_starts_with_last_module_and_skips_taken_ones(make):
    package = make()
    tasks = package.store._waiting()
    kind = ("x.", 0, False)
    job = (compilehelper.PYTHON, str(package.tree), *kind, ("app",), (), tasks)
    done, wanted, answers = bytearray(len(tasks)), iter([True] * 5 + [False]), []
    done[-2] = 1
    compilehelper.compile_all(job, done, lambda: next(wanted), lambda n, _: answers.append(n))
    assert answers == [len(tasks) - 1, *range(len(tasks) - 3, len(tasks) - 6, -1)]


def test_import_marks_modules_that_it_compiles(make, started, monkeypatch):
    monkeypatch.setattr(compileahead, "_START", "pass")
    package = make()
    assert package.get()[1] == COUNT + 1
    notes = package.store._ahead._helper._is_taken
    # Modules before the start are not marked: they no longer wait.
    assert bytes(notes) == b"\1" * (COUNT + 1 - FIRST)


@pytest.mark.parametrize("reason", ["one core", "switched off", "few modules", "kept", "Windows"])
def test_helper_is_not_started_if_disabled_or_not_worthwhile(reason, make, started, monkeypatch):
    texts = sources(compileahead._WORTH_A_START - 10) if reason == "few modules" else None
    package = make(texts=texts)
    if reason == "one core":
        monkeypatch.setattr(compileahead, "usable_cores", lambda: 1)
    elif reason == "switched off":
        monkeypatch.setenv("MODPACK_WORKERS", "0")
    elif reason == "kept":
        for loader in list(package.loaders(package.store))[:150]:
            loader.get_code(loader.name)
        del started[:]
        package.store.write()
    elif reason == "Windows":
        monkeypatch.delattr(os, "pread")
    codes, _ = package.get(package.opened())
    assert len(codes) == len(package.index.entries)
    assert started == []


def test_small_imports_start_no_helper(make, started):
    package = make()
    for number, loader in enumerate(package.loaders(package.store)):
        loader.get_code(loader.name)
        if number % FIRST == 0:
            package.store.write()
    assert started == []


def test_late_helper_is_not_started_again(make, monkeypatch, started):
    monkeypatch.setattr(compileahead, "_START", "pass")
    package = make()
    for number, loader in enumerate(package.loaders(package.store)):
        loader.get_code(loader.name)
        if number % 20 == 0:
            package.store.write()
    assert len(started) == 1


@pytest.mark.parametrize(
    "start",
    [
        "import os; os.abort()",
        "raise SystemExit(1)",
        "import os; os.write(1, os.urandom(100000))",
        "import os; os.write(1, bytes(100000))",
        "import os, struct; os.write(1, struct.pack('<II32s', 3, 5, bytes(32)) + b'hello')",
        "import os, struct; os.write(1, struct.pack('<II32s', 3, 1 << 31, bytes(32)) + b'cut')",
        "import os; os.write(1, b'cut')",
    ],
)
def test_failing_helper_does_not_change_the_import(start, make, monkeypatch, started):
    monkeypatch.setattr(compileahead, "_START", start)
    package = make()
    codes, here = package.get()
    assert (here, len(started)) == (COUNT + 1, 1)
    assert all(code.co_filename.startswith(str(package.tree)) for code in codes)
    package.store.write()


def test_answers_after_a_damaged_one_are_ignored(make, monkeypatch):
    start = compileahead._start
    position = 200_000

    def damage(job, answers):
        process, notes = start(job, answers)
        process.wait(60)
        [byte] = os.pread(answers.fileno(), 1, position)
        os.pwrite(answers.fileno(), bytes([byte ^ 1]), position)
        return process, notes

    monkeypatch.setattr(compileahead, "_start", damage)
    package = make()
    codes, here = package.get()
    assert FIRST < here < COUNT
    monkeypatch.setenv("MODPACK_WORKERS", "0")
    assert described(codes) == described(package.get(package.opened())[0])


@pytest.mark.parametrize("executable", ["", None, "python-that-is-not-there", "/usr/sbin/server"])
def test_without_a_python_to_start_everything_is_compiled_here(executable, make, monkeypatch):
    monkeypatch.setattr(sys, "executable", executable)
    package = make()
    assert package.get()[1] == COUNT + 1
    package.store.write()
    assert package.get(package.opened())[1] == 0


@pytest.mark.parametrize(
    "failure", [PermissionError(1, "seccomp"), RuntimeError("audit"), KeyError]
)
def test_failed_start_of_helper_is_silent(failure, make, monkeypatch):
    asked = []

    def refuse(*_, **__):
        asked.append(1)
        raise failure

    monkeypatch.setattr(subprocess, "Popen", refuse)
    package = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert package.get()[1] == COUNT + 1
        package.store.write()
        package.get(package.opened())
    assert asked == [1]


def test_without_a_temporary_folder_everything_is_compiled_here(make, monkeypatch):
    def refuse(*_, **__):
        raise FileNotFoundError(2, "no usable temporary directory")

    package = make()
    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert package.get()[1] == COUNT + 1


def test_helper_skips_modified_source(make, started):
    package = make()
    (package.tree / "app" / f"m{COUNT - 1}.py").write_text("changed = True\n")
    codes, here = package.get()
    assert here == FIRST + 1
    assert "changed" in codes[-1].co_names


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("value = 1 is 2", SyntaxWarning),
        (r"value = '\d'", DeprecationWarning),
        ("value = =", SyntaxError),
        ("value = '\0'", ValueError),
        ("# coding: nonsense", SyntaxError),
    ],
)
def test_compiler_warnings_appear_in_the_importing_process(text, category, make, started):
    package = make(texts={**sources(), "app/strange.py": text})
    package.store._waiting()
    *usual, strange = package.loaders(package.store)
    for loader in usual:
        loader.get_code(loader.name)
    assert len(started) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((category, SyntaxError)):  # a warning that is an error is one of these
            strange.get_code(strange.name)


def test_helper_ends_with_the_import(make, monkeypatch):
    monkeypatch.setattr(compileahead, "_START", "import time; time.sleep(600)")
    package = make()
    package.get()
    process = package.store._ahead._helper._process
    assert process.poll() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # files that were not closed
        package.store.write()
    assert process.returncode not in (None, 0)
    assert package.store._ahead._helper is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_does_not_use_helper_of_parent(make, monkeypatch):
    monkeypatch.setattr(compileahead, "_START", "import time; time.sleep(600)")
    package = make()
    package.get()
    process = package.store._ahead._helper._process
    child = os.fork()
    if child == 0:
        package.store._ahead._helper._lock.acquire()  # as another thread may have had it
        _, here = package.get()
        package.store.write()
        os._exit(0 if here == COUNT + 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert process.poll() is None
    package.store.write()
    assert process.returncode not in (None, 0)


def test_threads_take_each_module_once_or_compile_it(make, started, monkeypatch):
    package = make()
    monkeypatch.setattr(compileahead, "_MISSES", 1)
    loaders, codes = list(package.loaders(package.store)), {}

    def take(number):
        for loader in loaders[number::4]:
            codes[loader.name] = loader.get_code(loader.name)

    threads = [threading.Thread(target=take, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    package.store.write()
    monkeypatch.setenv("MODPACK_WORKERS", "0")
    alone, _ = package.get(package.opened())
    assert described([codes[each.name] for each in loaders]) == described(alone)


def test_helper_ends_with_its_parent(make, tmp_path):
    package = make()
    tasks = package.store._waiting()[:2]
    kind = ("x.", 0, False)
    job = (compilehelper.PYTHON, str(package.tree), *kind, ("app",), (), tasks)
    for asker, python, says in (
        (os.getpid(), compilehelper.PYTHON, True),
        (os.getpid() + 1, compilehelper.PYTHON, False),
        (os.getpid(), "another", False),
    ):
        said, given = tmp_path / "said", tmp_path / "given"
        given.write_bytes(bytes(2) + compilehelper.marshal.dumps((python, *job[1:])))
        home = str(Path(compileahead.__file__).parents[2])
        command = [sys.executable, "-I", "-S", "-c", compileahead._START, home, "2", str(asker)]
        with given.open("rb") as stdin, said.open("wb") as stdout:
            subprocess.run(command, stdin=stdin, stdout=stdout, check=True)
        assert (said.stat().st_size > 0) is says


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code knows no columns")
def test_helper_of_another_python_compiles_nothing():
    say = "from modpack.loading.compile import PYTHON; print(PYTHON)"
    found = [
        subprocess.run([sys.executable, *options, "-c", say], capture_output=True, text=True)
        for options in ([], ["-E"], ["-OO"], ["-X", "no_debug_ranges"])
    ]
    usual, isolated, optimized, without = [each.stdout.strip() for each in found]
    assert usual == isolated == optimized == compilehelper.PYTHON
    assert without not in ("", usual)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="importlib.metadata imports subprocess")
def test_opening_a_package_imports_nothing_to_start_processes_with():
    look = "import sys, modpack.importer; print('subprocess' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_helper_imports_no_package_code():
    code = compileahead._START.replace("main()", "print(*sys.modules)")
    home = str(Path(compileahead.__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", code, home]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "site", "subprocess", "modpack.loading.namespace"} & {*loaded}
