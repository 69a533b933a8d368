"""Native extensions in packages, for the platform of the export."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from modpack import PackageExporter, PackageImporter, sys_importer
from modpack.core.environment import NativeTag
from modpack.core.plan import FileKind, PackagingError, PackagingErrorReason
from modpack.errors import NativeModuleError, PlatformMismatchError

C_SOURCE = """
#include <Python.h>

static PyObject *twice(PyObject *self, PyObject *number) {{
    return PyNumber_Add(number, number);
}}

static PyObject *helped(PyObject *self, PyObject *unused) {{
    PyObject *helper = PyImport_ImportModule("fastshop.helper");
    if (helper == NULL) return NULL;
    PyObject *name = PyObject_GetAttrString(helper, "name");
    Py_DECREF(helper);
    return name;
}}

static PyMethodDef functions[] = {{
    {{"twice", twice, METH_O, ""}},
    {{"helped", helped, METH_NOARGS, ""}},
    {{NULL, NULL, 0, NULL}},
}};

static struct PyModuleDef definition = {{
    PyModuleDef_HEAD_INIT, "{name}", "", {size}, functions, {slots}
}};

PyMODINIT_FUNC PyInit_{name}(void) {{
    return {init};
}}
"""
ONE_PHASE = {"size": "-1", "slots": "NULL", "init": "PyModule_Create(&definition)"}
MULTI_PHASE = {
    "size": "0",
    "slots": "(PyModuleDef_Slot[]){{0, NULL}}",
    "init": "PyModuleDef_Init(&definition)",
}
LIBRARY = {
    "fastshop/__init__.py": "from fastshop import _one, _multi\n",
    "fastshop/helper.py": "name = 'helper'\n",
    "fastshop/notes.txt": "fast",
}


@pytest.fixture(scope="session")
def binaries(tmp_path_factory) -> dict[str, bytes]:
    """Extension modules with single-phase (``_one``) and multi-phase (``_multi``) init."""
    folder = tmp_path_factory.mktemp("compiled")
    built = {}
    for name, phases in {"_one": ONE_PHASE, "_multi": MULTI_PHASE}.items():
        source = folder / f"{name}.c"
        source.write_text(C_SOURCE.format(name=name, **phases))
        target = folder / f"{name}{EXTENSION_SUFFIXES[0]}"
        include = sysconfig.get_paths()["include"]
        command = ["cc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True)
        built[target.name] = target.read_bytes()
    return built


@pytest.fixture
def fastshop(installed, binaries, tmp_path):
    """Export a module that uses the native distribution fastshop."""

    def export(intern_native: bool = True, target: Path = tmp_path / "fast.pt") -> Path:
        compiled = {f"fastshop/{name}": content for name, content in binaries.items()}
        libraries = {"fastshop.libs/libneeded.so.1": b"\x7fELF", "fastshop/static.a": b"!"}
        site = installed("fastshop", {**LIBRARY, **compiled, **libraries})
        (site / "mine.py").write_text("import fastshop, fastshop.helper\n")
        with PackageExporter(target) as exporter:
            exporter.use_preset("hermetic", intern_native=intern_native)
            exporter.save_module("mine")
        return target

    return export


def environment(package: Path) -> dict[str, object]:
    with zipfile.ZipFile(package) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/environment.json"))
        found = json.loads(archive.read(name))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("namespace", ["private", "process"])
def test_native_extensions_run_without_their_distribution(fastshop, clean_python, namespace):
    done = clean_python(
        """
        import modpack
        importer = modpack.PackageImporter(package, namespace=namespace)
        fast = importer.import_module("mine").fastshop
        print(fast._one.twice(2), fast._multi.twice(3))
        print(fast._one.__name__ == importer.id() + ".fastshop._one" or fast._one.__name__)
        print(fast._one.__file__.startswith(str(fast.__path__[0])))
        """,
        package=fastshop(),
        namespace=namespace,
    )
    named = "True" if namespace == "private" else "fastshop._one"
    assert done.stdout == f"4 6\n{named}\nTrue\n"


def test_native_code_imports_by_real_names_in_process_namespace(fastshop, clean_python):
    done = clean_python(
        """
        import modpack
        importer = modpack.PackageImporter(package, namespace="process")
        print(importer.import_module("mine").fastshop._multi.helped())
        """,
        package=fastshop(),
    )
    assert done.stdout == "helper\n"


def test_plan_lists_native_files_and_package_records_platform(fastshop):
    package = fastshop()
    with zipfile.ZipFile(package) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
    suffix = EXTENSION_SUFFIXES[0]
    assert {n for n in names if n.startswith("fastshop") and not n.endswith(".py")} >= {
        f"fastshop/_one{suffix}",
        f"fastshop/_multi{suffix}",
        "fastshop/notes.txt",
        "fastshop.libs/libneeded.so.1",
    }
    assert "fastshop/static.a" not in names
    assert environment(package)["native"] == NativeTag.current()._asdict()


def test_native_distribution_is_extern_by_default(fastshop):
    package = fastshop(intern_native=False)
    assert "native" not in environment(package)
    with PackageImporter(package) as importer:
        assert "fastshop" in importer.extern_modules


def test_interning_native_module_by_rule_is_a_problem_by_default(installed, binaries):
    installed("fastshop", {**LIBRARY, **{f"fastshop/{n}": c for n, c in binaries.items()}})
    with pytest.raises(PackagingError) as caught, PackageExporter(None) as exporter:
        exporter.intern("fastshop.**")
        exporter.save_module("fastshop")
    problems = {problem.subject: problem.code for problem in caught.value.problems}
    assert problems["fastshop._one"] == PackagingErrorReason.IS_EXTENSION_MODULE


@pytest.mark.parametrize(
    "there",
    [
        NativeTag("win32", "AMD64", "cp311-win_amd64"),
        NativeTag("linux", "aarch64", "cpython-311-aarch64-linux-gnu", "glibc"),
        NativeTag("linux", "x86_64", "cpython-313-x86_64-linux-gnu", "glibc"),
    ],
)
def test_package_for_another_platform_is_rejected(fastshop, monkeypatch, there):
    package, here = fastshop(), NativeTag.current()
    monkeypatch.setattr(NativeTag, "current", staticmethod(lambda: there))
    with pytest.raises(PlatformMismatchError) as caught:
        PackageImporter(package)
    assert str(here) in str(caught.value)
    assert str(there) in str(caught.value)
    assert "intern_native" in str(caught.value)


def test_stable_abi_runs_on_later_python():
    tag = NativeTag.for_files(["pkg/_fast.abi3.so"])
    assert tag.abi == "abi3"
    later = NativeTag(tag.platform, tag.machine, "cpython-399-x86_64-linux-gnu", tag.libc)
    assert tag.runs_on(later)
    assert not NativeTag.for_files(["pkg/_fast.cpython-311-x86_64-linux-gnu.so"]).runs_on(later)


def test_noexec_cache_is_named(fastshop, monkeypatch):
    with PackageImporter(fastshop()) as importer:
        file = importer._tree / f"fastshop/_one{EXTENSION_SUFFIXES[0]}"
        file.write_bytes(b"not to be mapped")
        monkeypatch.setattr("modpack.loading.finder._may_execute", lambda path: False)
        with pytest.raises(NativeModuleError, match=r"noexec.*MODPACK_CACHE_DIR"):
            importer.import_module("mine")
        file.unlink()


def test_reexport_keeps_native_extensions(fastshop, clean_python, tmp_path):
    importer, again = PackageImporter(fastshop()), tmp_path / "again.pt"
    with PackageExporter(again, importer=[importer, sys_importer]) as exporter:
        exporter.use_preset("hermetic", intern_native=True)
        exporter.save_module("mine")
        plan = exporter.plan()
    compiled = {file.record for file in plan.files if file.kind is FileKind.NATIVE}
    assert "fastshop.libs/libneeded.so.1" in compiled
    done = clean_python(
        """
        import modpack
        print(modpack.PackageImporter(package).import_module("mine").fastshop._one.twice(21))
        """,
        package=again,
    )
    assert done.stdout == "42\n"
