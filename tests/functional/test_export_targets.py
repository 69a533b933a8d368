"""A failed export leaves its target and its folder unchanged."""

from __future__ import annotations

import gc
import io
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modpack import ModpackError, PackageExporter, PackageImporter, PackagingError, PicklingError
from modpack.errors import ArchiveError, TargetError

OLD = b"the package that was there before"


@pytest.fixture(params=["over an old package", "nothing there"])
def target(request, tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "out.pt"
    path.parent.mkdir()
    if request.param == "over an old package":
        path.write_bytes(OLD)
        path.chmod(0o640)
    return path


@pytest.fixture
def unchanged(target: Path):
    """Check at the end that the folder has the same files with the same bytes."""
    before = state_of(target.parent)
    yield
    assert state_of(target.parent) == before


def state_of(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        file.name: (file.read_bytes(), file.stat().st_mode, file.stat().st_ino)
        for file in folder.iterdir()
    }


def fill(exporter: PackageExporter) -> None:
    exporter.save_pickle("model", "tensors.pkl", {"w": torch.ones(1000), "v": torch.rand(3)})
    exporter.save_text("model", "notes.txt", "hello")
    exporter.save_source_string("code_of_it", "import json")


def breaks_with_exception(target: Path) -> None:
    with PackageExporter(target) as exporter:
        fill(exporter)
        raise ZeroDivisionError


def breaks_with_interrupt(target: Path) -> None:
    with PackageExporter(target) as exporter:
        fill(exporter)
        raise KeyboardInterrupt


def breaks_with_problems(target: Path) -> None:
    with PackageExporter(target) as exporter:
        fill(exporter)
        exporter.save_source_string("needs", "import not_there_at_all")


def breaks_with_unpicklable(target: Path) -> None:
    with PackageExporter(target) as exporter:
        fill(exporter)
        exporter.save_pickle("model", "match.pkl", [torch.ones(5), re.match("a", "a")])


def breaks_with_a_name_taken(target: Path) -> None:
    with PackageExporter(target) as exporter:
        fill(exporter)
        exporter.save_text("model", "notes.txt", "again")


def breaks_with_wrong_type(target: Path) -> None:
    with PackageExporter(target) as exporter:
        fill(exporter)
        exporter.save_text("model", "more.txt", 3)  # type: ignore[arg-type]


def breaks_with_interrupt_while_closing(target: Path) -> None:
    def interrupt(exporter: PackageExporter, name: str) -> None:
        raise KeyboardInterrupt

    with PackageExporter(target) as exporter:
        fill(exporter)
        exporter.save_source_string("late", "import late_dependency")
        exporter.extern("late_dependency")
        exporter.register_extern_hook(interrupt)


def is_dropped(target: Path) -> None:
    exporter = PackageExporter(target)
    fill(exporter)
    exporter.plan()
    del exporter
    gc.collect()


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (breaks_with_exception, ZeroDivisionError),
        (breaks_with_interrupt, KeyboardInterrupt),
        (breaks_with_interrupt_while_closing, KeyboardInterrupt),
        (breaks_with_problems, PackagingError),
        (breaks_with_unpicklable, PicklingError),
        (breaks_with_a_name_taken, ArchiveError),
        (breaks_with_wrong_type, TypeError),
    ],
)
def test_failed_export_leaves_no_trace(
    target: Path, unchanged, failing: Callable[[Path], None], error: type[BaseException]
):
    with pytest.raises(error):
        failing(target)


def test_exporter_that_is_never_closed_leaves_no_trace(target: Path, unchanged):
    is_dropped(target)


def test_target_that_cannot_be_written_is_rejected_at_once(tmp_path: Path):
    for impossible in (tmp_path, tmp_path / "no" / "folder" / "x.pt", tmp_path / "nul\0"):
        with pytest.raises((TargetError, ValueError)):
            PackageExporter(impossible)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_loses_its_permissions_is_a_target_error(clean_python, tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out.pt").write_bytes(OLD)
    done = clean_python(
        """
        import os
        from modpack import PackageExporter
        from modpack.errors import TargetError
        if os.getuid() == 0:  # root ignores permissions, so switch to another user
            os.chown(folder, 65534, 65534), os.chown(folder / "out.pt", 65534, 65534)
            for parent in folder.parents:
                if parent != Path("/"):
                    parent.chmod(parent.stat().st_mode | 0o111)
            from torch import ones  # before its files become unreadable
            import modpack.saving.pickler
            os.setuid(65534)
        exporter = PackageExporter(folder / "out.pt")
        folder.chmod(0o500)
        try:
            exporter.save_text("model", "notes.txt", "hello" * 10_000)
            exporter.close()
        except TargetError as error:
            print(error)
        finally:
            folder.chmod(0o700)
        """,
        folder=folder,
    )
    assert "Permission denied" in done.stdout
    assert [file.name for file in folder.iterdir()] == ["out.pt"]
    assert (folder / "out.pt").read_bytes() == OLD


@pytest.mark.parametrize("where", ["in a storage", "while closing"])
def test_full_disk_is_a_target_error_and_leaves_no_trace(clean_python, tmp_path: Path, where):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out.pt").write_bytes(OLD)
    done = clean_python(
        """
        import resource, torch, modpack
        from modpack.errors import TargetError
        soft = 1 << 20
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, soft))
        try:
            with modpack.PackageExporter(folder / "out.pt") as exporter:
                if where == "in a storage":
                    exporter.save_pickle("m", "m.pkl", torch.ones(4 << 20))
                else:
                    exporter.save_binary("m", "m.bin", bytes((1 << 20) - 300))
                    exporter.save_source_string("code", "x = 1\\n" * 100)
        except TargetError as error:
            print(type(error).__name__, error)
        """,
        folder=folder,
        where=where,
    )
    assert done.stdout.startswith("TargetError cannot write ")
    assert "File too large" in done.stdout
    assert [file.name for file in folder.iterdir()] == ["out.pt"]
    assert (folder / "out.pt").read_bytes() == OLD


@pytest.mark.parametrize(
    "failing",
    [breaks_with_exception, breaks_with_interrupt, breaks_with_problems, breaks_with_unpicklable],
)
def test_failed_export_leaves_a_buffer_untouched(failing):
    buffer = io.BytesIO(OLD)
    buffer.seek(4)
    with pytest.raises(BaseException):  # noqa: B017 - each fails in its own way
        failing(buffer)
    assert buffer.getvalue() == OLD and buffer.tell() == 4


def test_successful_export_replaces_the_old_package_at_once(target: Path):
    seen: list[bytes | None] = []

    def look(exporter: PackageExporter, name: str) -> None:
        seen.append(target.read_bytes() if target.exists() else None)

    existed = target.exists()
    with PackageExporter(target) as exporter:
        exporter.register_extern_hook(look)
        fill(exporter)
    assert seen and set(seen) == {OLD if existed else None}
    assert [file.name for file in target.parent.iterdir()] == ["out.pt"]
    assert PackageImporter(target).load_text("model", "notes.txt") == "hello"


def test_link_is_followed_and_kept(tmp_path: Path):
    real = tmp_path / "real.pt"
    real.write_bytes(OLD)
    link = tmp_path / "link.pt"
    link.symlink_to(real)
    with PackageExporter(link) as exporter:
        exporter.save_text("a", "b.txt", "c")
    assert link.is_symlink() and PackageImporter(real).load_text("a", "b.txt") == "c"


def test_relative_path_uses_current_folder_at_creation(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exporter = PackageExporter("out.pt")
    exporter.save_text("a", "b.txt", "c")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    exporter.close()
    assert (tmp_path / "out.pt").exists() and not (elsewhere / "out.pt").exists()


def test_closed_exporter_only_answers_queries():
    exporter = PackageExporter(io.BytesIO())
    exporter.save_source_string("code_of_it", "import json")
    exporter.close()
    for use in (
        lambda: exporter.intern("a"),
        lambda: exporter.extern("a"),
        lambda: exporter.mock("a"),
        lambda: exporter.deny("a"),
        lambda: exporter.use_preset("none"),
        lambda: exporter.register_intern_hook(lambda *_: None),
        lambda: exporter.register_extern_hook(lambda *_: None),
        lambda: exporter.register_mock_hook(lambda *_: None),
        lambda: exporter.register_deny_hook(lambda *_: None),
        lambda: exporter.save_module("json"),
        lambda: exporter.save_source_file("a", __file__),
        lambda: exporter.save_source_string("a", ""),
        lambda: exporter.save_pickle("a", "b.pkl", 1),
        lambda: exporter.save_text("a", "b.txt", ""),
        lambda: exporter.save_binary("a", "b.bin", b""),
        lambda: exporter.close(),
        lambda: exporter.__enter__(),
    ):
        with pytest.raises(ModpackError, match="closed"):
            use()
    assert exporter.externed_modules() == ["json"]
    assert exporter.get_rdeps("json") == ["code_of_it"]
    assert exporter.plan().modules and exporter.dependency_graph_string()


@pytest.mark.parametrize("failing", [breaks_with_exception, breaks_with_problems])
def test_failed_exporter_is_closed_too(failing):
    kept: list[PackageExporter] = []
    original = PackageExporter.__enter__

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PackageExporter, "__enter__", lambda self: kept.append(self) or original(self)
        )
        with pytest.raises(Exception):  # noqa: B017 - each fails in its own way
            failing(io.BytesIO())
    with pytest.raises(ModpackError, match="closed"):
        kept[0].save_text("a", "b.txt", "c")


def test_closing_inside_the_with_block_is_enough():
    buffer = io.BytesIO()
    with PackageExporter(buffer) as exporter:
        exporter.save_text("a", "b.txt", "c")
        exporter.close()
        written = buffer.getvalue()
    assert written and buffer.getvalue() == written


def test_without_a_target_nothing_is_written(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with PackageExporter(None) as exporter:
        fill(exporter)
    assert exporter.interned_modules() == ["code_of_it"]
    assert list(tmp_path.iterdir()) == []
