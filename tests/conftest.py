"""Fixtures for projects on disk, packages of them, and clean interpreters."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings

from modpack import PackageExporter, PackageImporter
from tests.warm_python import WarmPython, warm

# Property tests try the same examples in each run, and new ones in `make torture`. A machine that
# runs tests is busy, so their time says nothing.
settings.register_profile(
    "tests",
    derandomize="EXAMPLES_FACTOR" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

Project = Callable[[Mapping[str, str]], Path]


# Most tests are about something else than the load test at the end of each save, and some save
# packages that do not load. Those about it pass self_test=True, or remove the variable.
os.environ["MODPACK_SELF_TEST"] = "examples"


class Packaged(Protocol):
    """The signature of the fixture :func:`packaged`."""

    def __call__(
        self,
        files: Mapping[str, str],
        *,
        extern: Sequence[str] = (),
        mock: Sequence[str] = (),
        objects: Mapping[str, object] | None = None,
        dependencies: bool = True,
        namespace: str = "private",
        lazy: bool | None = None,
    ) -> PackageImporter: ...


class Installed(Protocol):
    """The signature of the fixture :func:`installed`."""

    def __call__(
        self,
        name: str,
        files: Mapping[str, str | bytes],
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> Path: ...


class CleanPython(Protocol):
    """The signature of the fixture :func:`clean_python`."""

    def __call__(
        self, code: str, *, check: bool = True, **values: object
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a cache folder of this test run, in subprocesses too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MODPACK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def packaged(tmp_path: Path) -> Iterator[Packaged]:
    """Package sources that are not on disk, and return the importer.

    ``packaged({"shop/__init__.py": "", "shop/till.py": "total = 3"})`` returns the importer
    of a package that interns both. Other files than ``.py`` become resources, ``objects`` pickles
    (``{"model/model.pkl": obj}``). Without ``dependencies`` imports are not resolved.
    The file is ``importer.filename``. The importer is closed after the test.
    """
    opened: list[PackageImporter] = []

    def package(
        files: Mapping[str, str],
        *,
        extern: Sequence[str] = (),
        mock: Sequence[str] = (),
        objects: Mapping[str, object] | None = None,
        dependencies: bool = True,
        namespace: str = "private",
        lazy: bool | None = None,
    ) -> PackageImporter:
        path = tmp_path / f"package{len(opened)}.pt"
        with PackageExporter(path) as exporter:
            for add_rule, patterns in ((exporter.extern, extern), (exporter.mock, mock)):
                if patterns:
                    add_rule(patterns)
            for name, text in files.items():
                _add_file(exporter, name, textwrap.dedent(text), dependencies)
            for name, obj in (objects or {}).items():
                folder, _, resource = name.rpartition("/")
                exporter.save_pickle(folder.replace("/", "."), resource, obj)
        opened.append(PackageImporter(path, namespace=namespace, lazy=lazy))
        return opened[-1]

    yield package
    for importer in opened:
        importer.close()


def _add_file(exporter: PackageExporter, name: str, text: str, dependencies: bool) -> None:
    if name.endswith(".py"):
        is_package = name.endswith("/__init__.py")
        module = name.removesuffix("/__init__.py" if is_package else ".py").replace("/", ".")
        exporter.save_source_string(module, text, is_package, dependencies)
    else:
        folder, _, resource = name.rpartition("/")
        exporter.save_text(folder.replace("/", "."), resource, text)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Write a project from a dict of files and make it importable during the test.

    ``project({"shop/__init__.py": "", "shop/till.py": "total = 3"})`` writes them below a fresh
    folder of its own, puts that folder first on ``sys.path`` and returns it. Sources are
    dedented. A test may call it several times: each call adds a folder, the last one first.
    Every module that the test loads from any of the folders is forgotten when it ends.
    """
    roots: list[Path] = []

    def write(files: Mapping[str, str]) -> Path:
        root = tmp_path / f"project{len(roots)}"
        root.mkdir()
        for name, text in files.items():
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text), encoding="utf-8")
        roots.append(root)
        monkeypatch.syspath_prepend(root)
        return root

    yield write
    for name in [n for n, module in list(sys.modules.items()) if _lives_below(module, roots)]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """Install made-up distributions like pip into one folder on ``sys.path``.

    ``installed("shop", {"shop/__init__.py": ""}, requires=["till>=2"])`` writes the files and a
    ``.dist-info`` with METADATA and RECORD, and returns the folder. ``metadata`` adds files to the
    ``.dist-info``. Sources are dedented. Their modules are forgotten when the test ends.
    """
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def write(
        name: str,
        files: Mapping[str, str | bytes],
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> Path:
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        head += [f"Requires-Dist: {other}" for other in requires]
        everything = {**files, f"{info}/METADATA": "\n".join(head) + "\n"}
        everything.update((f"{info}/{file}", text) for file, text in (metadata or {}).items())
        contents = {
            file: textwrap.dedent(content).encode() if isinstance(content, str) else content
            for file, content in everything.items()
        }
        rows = (f"{file},{_digest(data)},{len(data)}\n" for file, data in contents.items())
        contents[f"{info}/RECORD"] = f"{''.join(rows)}{info}/RECORD,,\n".encode()
        for file, data in contents.items():
            place = site / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        importlib.invalidate_caches()
        return site

    yield write
    for name in [n for n, module in list(sys.modules.items()) if _lives_below(module, [site])]:
        del sys.modules[name]


def _digest(data: bytes) -> str:
    """Return a digest in the format of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _lives_below(module: object, roots: list[Path]) -> bool:
    """Return whether a module was loaded from one of the folders, without running its code."""
    try:
        contents = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return False
    file = contents.get("__file__")
    places = [file] if isinstance(file, str) else list(contents.get("__path__") or ())
    return any(Path(place).is_relative_to(root) for place in places for root in roots)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Interpreters with torch already imported; see :mod:`tests.warm_python`."""
    yield warm
    warm.stop()


@pytest.fixture
def clean_python(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> CleanPython:
    """Run code in a fresh interpreter that can import modpack but none of a test's projects.

    ``clean_python("print(path.name)", path=tmp_path / "x.pt").stdout`` is ``"x.pt\\n"``: each
    keyword is a variable of the code (anything whose repr is an expression, and paths). The
    process is isolated (``-I``) and runs in an empty folder. If it fails, so does the test,
    with its stderr, unless ``check=False``. torch is imported already, unless the code mentions
    ``sys.modules``.
    """

    def run(code: str, *, check: bool = True, **values: object) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("elsewhere")
        known = "".join(f"{name} = {_expression(value)}\n" for name, value in values.items())
        script = folder / "script.py"
        script.write_text("from pathlib import Path\n" + known + textwrap.dedent(code))
        command = [sys.executable, "-I", str(script)]
        options = {"cwd": folder, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "timeout": 300}
        if "sys.modules" in code:  # such code checks what is imported
            done = subprocess.run(command, capture_output=True, text=True, **options)
        else:
            done = warm_python.run(command, **options)
        if check and done.returncode != 0:
            pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


def _expression(value: object) -> str:
    return f"Path({str(value)!r})" if isinstance(value, Path) else repr(value)
