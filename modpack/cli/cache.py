"""``modpack cache``: list, prune, and verify the package cache."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from modpack.cli._common import command, show, warn, write, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from modpack.loading.cache_maintenance import CachedTree, Scans
    from modpack.report.json_output import CachedPackage

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@click.group("cache")
def cache_command() -> None:
    """List, prune, and verify the package cache.

    Loading a package unpacks its code into the cache folder: MODPACK_CACHE_DIR, or the platform's
    cache folder for the user. Removing cached files is safe, because modpack re-creates them.

    \b
    Examples:
      modpack cache list
      modpack cache prune --older-than 30d --max-size 5G
      modpack cache verify
    """


@command("list", group=cache_command, epilog="Exit status: 0, or 2 if the cache cannot be read.")
def _list(as_json: bool) -> None:
    """List cached packages, most recently used first."""
    from modpack.loading.cache_maintenance import list_scans, list_trees

    folder = _cache_folder()
    trees, scans = list_trees(folder), list_scans(folder)
    if as_json:
        from modpack.report.json_output import CachedScans, CacheListDocument

        packages = tuple(map(_cached_package, trees))
        cached_scans = CachedScans(scans.files, scans.size_bytes)
        write_json(CacheListDocument(str(folder), packages, cached_scans))
    else:
        _show_list(folder, trees, scans)


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse the value of ``--older-than``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,6})([smhdw])", value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not a duration such as 30d, 12h, or 2w.", ctx, parameter
        )
    return float(match[1]) * _UNITS[match[2]]


def _bytes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse the value of ``--max-size``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", value, re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size such as 5G or 800M.", ctx, parameter)
    return int(match[1]) * _SIZES[match[2].upper()]


@command(
    "prune",
    group=cache_command,
    epilog="Exit status: 0, or 2 if the cache cannot be locked or a DIGEST is unknown.",
)
@click.argument("digests", metavar="[DIGEST]...", nargs=-1)
@click.option(
    "--older-than",
    metavar="TIME",
    callback=_seconds,
    help="Remove packages not used for this long, for example 30d.",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=_bytes,
    help="Remove the least recently used packages until the cache fits SIZE, for example 5G.",
)
@click.option("--all", "everything", is_flag=True, help="Remove all packages.")
def _prune(
    digests: tuple[str, ...],
    older_than: float | None,
    max_size: int | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Remove cached packages that no running process uses.

    DIGEST is the beginning of a digest that modpack cache list shows. Without a DIGEST or an
    option, the command removes only incomplete folders of processes that have ended.

    \b
    Examples:
      modpack cache prune --older-than 30d
      modpack cache prune 3f2a81c09d44
    """
    from modpack.core.text import counted, human_size
    from modpack.loading.cache_maintenance import prune

    folder = _cache_folder()
    pruned = prune(
        folder,
        digests=digests,
        older_than=older_than,
        max_size=max_size,
        everything=everything,
    )
    if as_json:
        from modpack.report.json_output import CachedScans, CachePruneDocument

        write_json(
            CachePruneDocument(
                str(folder),
                tuple(map(_cached_package, pruned.removed)),
                tuple(map(_cached_package, pruned.kept)),
                CachedScans(pruned.scans.files, pruned.scans.size_bytes),
                pruned.leftovers,
                pruned.freed_bytes,
            )
        )
        return
    for tree in pruned.kept:
        warn(f"{_label(tree)} was not removed, because a process uses it.")
    removed = counted(len(pruned.removed), "package")
    if pruned.scans.files:
        removed += f", {counted(pruned.scans.files, 'scan')} of sources"
    if pruned.leftovers:
        removed += f", {counted(pruned.leftovers, 'leftover')}"
    write(f"Removed {removed}: {human_size(pruned.freed_bytes)}\n")


@command(
    "verify",
    group=cache_command,
    epilog="Exit status: 0 if all files match their digests, 1 if not, 2 if the cache cannot be "
    "read.",
)
def _verify(as_json: bool) -> bool:
    """Compare every cached file with its digest.

    modpack re-creates damaged files when it loads their package again.
    """
    from modpack.core.text import counted, printable
    from modpack.loading.cache_maintenance import damaged_files, list_trees

    folder = _cache_folder()
    checked = [(tree, damaged_files(tree)) for tree in list_trees(folder)]
    damaged = [(tree, files) for tree, files in checked if files]
    if as_json:
        from modpack.report.json_output import CacheVerifyDocument, VerifiedPackage

        packages = (
            VerifiedPackage(**vars(_cached_package(tree)), damaged_files=files)
            for tree, files in checked
        )
        write_json(CacheVerifyDocument(str(folder), not damaged, tuple(packages)))
    else:
        for tree, files in damaged:
            for file in files:
                write(
                    f"{_label(tree)}: {printable(file)} is missing or does not match its digest\n"
                )
        write(f"{counted(len(checked), 'package')} verified, {len(damaged)} damaged\n")
    return bool(damaged)


def _cache_folder() -> Path:
    """Return the cache folder, which need not exist.

    Raises:
        CacheError: If the path is not a folder, or the user has no home folder.
    """
    from modpack.core.cache_dir import cache_folder
    from modpack.errors import CacheError

    try:
        folder = cache_folder()
    except RuntimeError as failure:
        message = f"the cache folder cannot be determined: {failure}"
        raise CacheError(message, hint="Set MODPACK_CACHE_DIR to a folder.") from failure
    if folder.exists() and not folder.is_dir():
        hint = "Remove it, or set MODPACK_CACHE_DIR to another folder."
        raise CacheError(f"{folder}: the cache is not a folder", hint=hint)
    return folder


def _cached_package(tree: CachedTree) -> CachedPackage:
    from datetime import datetime, timezone

    from modpack.report.json_output import CachedPackage

    last_used = datetime.fromtimestamp(tree.used, timezone.utc).isoformat(timespec="seconds")
    return CachedPackage(tree.digest, tree.name, tree.files, tree.size_bytes, last_used)


def _label(tree: CachedTree) -> str:
    """Return a cached package's digest and name, for text."""
    from modpack.core.text import printable

    return f"{tree.digest[:16]} ({printable(tree.name or 'unknown')})"


def _show_list(folder: Path, trees: tuple[CachedTree, ...], scans: Scans) -> None:
    from datetime import datetime

    from rich import box
    from rich.table import Table

    from modpack.core.text import counted, human_size, printable

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("digest", "package", "last used"):
        table.add_column(column)
    for column in ("files", "size"):
        table.add_column(column, justify="right")
    for tree in trees:
        used = datetime.fromtimestamp(tree.used).strftime("%Y-%m-%d %H:%M")
        name = printable(tree.name or "unknown")
        size = human_size(tree.size_bytes)
        table.add_row(printable(tree.digest[:16]), name, used, str(tree.files), size)
    if trees:
        show(table)
    total = sum(tree.size_bytes for tree in trees) + scans.size_bytes
    kept = f"; {counted(scans.files, 'scan')} of sources" if scans.files else ""
    write(f"{counted(len(trees), 'package')}{kept}; {human_size(total)} in {folder}\n")
