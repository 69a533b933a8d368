"""The command ``python net.modpack``: shows, runs, and tests the package that contains it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modpack.archive.manifest import package_digest, read_manifest
from modpack.archive.reader import open_archive
from modpack.archive.records import (
    load_environment,
    read_call_signatures,
    read_externs,
    read_objects,
    require_self_test,
)
from modpack.core.cache_dir import replace_file
from modpack.core.environment import EnvironmentRow, pip_install_command
from modpack.core.text import counted, printable
from modpack.errors import DataError, ModpackError
from modpack.loading.checks import compare_environment

if TYPE_CHECKING:
    from modpack.archive.base import Archive
    from modpack.predicting.rows import Outputs

_CANNOT_VOUCH: Final = (
    "This loader came with the package and cannot vouch for it: signatures and trust policies need "
    "an installed modpack."
)
_USAGE: Final = """
usage: python {0}                        show what the package is; runs none of its code
       python {0} ROWS.json [-o FILE]    run its model on the rows, or on the inputs of one call
       python {0} --self-test            test it: run its recorded examples again

ROWS.json is - for stdin. The outputs are JSON, too, on stdout or in FILE.
"""
_FAILED, _REFUSED = 1, 2


def main(package: str, arguments: Sequence[str]) -> int:
    """Run the command and return its exit status.

    Args:
        package: The package, as the user named it.
        arguments: The arguments of the command.
    """
    parser = argparse.ArgumentParser(
        f"python {package}",
        usage=argparse.SUPPRESS,
        description=_CANNOT_VOUCH + "\n" + _USAGE.format(package),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="?", metavar="ROWS.json", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--self-test", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.output is not None and chosen.rows is None:
        parser.error("-o needs ROWS.json")
    if chosen.self_test and chosen.rows is not None:
        parser.error("--self-test takes no ROWS.json")
    try:
        status = 0
        if chosen.self_test:
            status = _test(package)
        elif chosen.rows is not None:
            _run(package, chosen.rows, chosen.output)
        else:
            print("\n".join(_describe(package)))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has enough, as head does. Python would write the rest when it exits, and report
        # the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except ModpackError as failure:
        print(f"Error: {printable(str(failure), keep=chr(10))}", file=sys.stderr)
        return _REFUSED
    return status


def _describe(package: str) -> Iterator[str]:
    """Yield the lines that say what a package is, what it needs, and what is missing here."""
    with open_archive(package) as archive:
        manifest = read_manifest(archive)
        assert manifest is not None  # an archive without one is refused, because it has a loader
        yield printable(f"{package}: a package of {manifest.writer}")
        yield f"  digest    {package_digest(archive)}"
        entry = read_objects(archive, manifest).entry
        if entry is not None:
            yield printable(f"  object    {'/'.join(entry)}")
        for call in read_call_signatures(archive, manifest):
            yield printable(f"  call      {'/'.join(call.resource)}")
            for spec in call.inputs:
                yield printable(f"    input   {spec.name}: {spec}")
            for spec in call.outputs:
                yield printable(f"    output  {spec.name}: {spec}")
        rows = _environment_rows(archive)
        needed = (f"{row.name} {row.recorded or ''}".strip() for row in rows)
        yield printable(f"  made with {', '.join(needed)}")
        missing = [row for row in rows if row.is_notable]
        for row in missing:
            optional = ", which loading does not need" if row.is_optional else ""
            yield printable(f"  here      {row.name} is {row.installed_text}{optional}")
        command = pip_install_command(missing)
        if command is not None:
            yield printable(f"  run       {command}")
    yield _CANNOT_VOUCH


def _environment_rows(archive: Archive) -> Sequence[EnvironmentRow]:
    manifest = read_manifest(archive)
    made = load_environment(archive, manifest)
    return compare_environment(archive, made, read_externs(archive, manifest), manifest).rows


def _require_torch(package: str) -> None:
    """Refuse to go on without torch.

    Raises:
        ModpackError: If torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        with open_archive(package) as archive:
            rows = [each for each in _environment_rows(archive) if each.name == "torch"]
        command = pip_install_command(rows) or "pip install torch"
        raise ModpackError(f"{package}: torch is not installed", hint=f"Run: {command}")
    # torch warns on its import, but needs no NumPy, and neither does the loader.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")


def _run(package: str, rows: str, output: str | None) -> None:
    """Run the package's main object, as ``modpack run`` does, and write the outputs.

    Raises:
        DataError: If an input or output cannot be used.
        ModpackError: If the package cannot be loaded.
    """
    if output is not None and os.path.exists(output):  # noqa: PTH110 - like samefile
        for other in (package, *([rows] if rows != "-" else [])):
            if os.path.exists(other) and os.path.samefile(other, output):  # noqa: PTH110, PTH121
                raise DataError(output, f"the output is {other}", hint="Pass another file to -o.")
    label = "<stdin>" if rows == "-" else rows
    try:
        # Before torch is imported, so that a wrong path is reported at once.
        content = sys.stdin.buffer.read() if rows == "-" else Path(rows).read_bytes()
    except OSError as failure:
        raise DataError(label, failure.strerror or "the file cannot be read") from failure
    _require_torch(package)
    from modpack.predicting.predictor import Predictor
    from modpack.predicting.row_sources import open_document
    from modpack.predicting.rows import layout_of, merge, run_rows

    # The package may print, and stdout contains the outputs only.
    with contextlib.redirect_stdout(sys.stderr), Predictor(package) as predictor:
        layout = layout_of(predictor.signature, None)
        source = open_document(label, layout, content)
        batches: list[Outputs] = []
        run_rows(predictor.predict, merge(source.chunks(), layout), layout, batches.append, "stop")
        if not any(each.row_count for each in batches):
            raise DataError(label, "there are no rows")
        document = _document(batches, is_single=source.is_whole and not layout.rows)
    # JSON is UTF-8, whatever the locale says. A surrogate without its pair becomes its JSON escape.
    text = json.dumps(document, ensure_ascii=False) + "\n"
    content = text.encode("utf-8", "backslashreplace")
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    try:
        replace_file(Path(output), content)
    except OSError as failure:
        raise DataError(output, failure.strerror or "the file cannot be written") from failure


def _document(batches: Sequence[Outputs], *, is_single: bool) -> dict[str, object]:
    """Return the outputs of all batches as values of JSON.

    Args:
        batches: The outputs.
        is_single: Whether they are those of one call without a dimension of rows.

    Raises:
        DataError: If the outputs of several batches cannot be joined.
    """
    from modpack.predicting.decoding import encode_value

    first = batches[0]
    if any(each.whole or each.rows.keys() != first.rows.keys() for each in batches[1:]):
        raise DataError(
            "outputs",
            "the outputs of one batch cannot be joined with those of the next",
            hint="Pass fewer rows at once.",
        )
    document: dict[str, object] = {}
    for name in first.rows:
        values = [encode_value(row) for each in batches for row in each.rows[name]]
        document[name] = values[0] if is_single else values
    return document | {name: encode_value(value) for name, value in first.whole.items()}


def _test(package: str) -> int:
    """Run the recorded examples again, report the result, and return the exit status.

    Raises:
        ModpackError: If the package has no self-test, or cannot be loaded.
    """
    with open_archive(package) as archive:
        recorded = require_self_test(archive, read_manifest(archive))
    _require_torch(package)
    from modpack.examples.recorded import case_differences, declare_operators
    from modpack.importer import PackageImporter

    declare_operators(recorded.operators)
    found = []
    with PackageImporter(package) as importer:
        for resource in recorded.objects:
            # Objects without examples must load, too.
            importer.load_model(*resource)
        for case in recorded.cases:
            differences = case_differences(importer, case, recorded.device)
            found += [str(each) for each in differences if not case.explains(each)]
    if found:
        print("self-test failed: the output differs from the recorded one")
        print(*(f"  {printable(each)}" for each in found), sep="\n")
        return _FAILED
    print(f"self-test passed: {counted(len(recorded.cases), 'example')}, {recorded.extent}")
    return 0
