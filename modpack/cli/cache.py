"""``modpack cache``: what loaded packages keep unpacked, and what of it may go."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FINDINGS, failing_clearly, show, warn, write

if TYPE_CHECKING:
    from pathlib import Path

    from modpack.core.plan_json import Json
    from modpack.loading.cache_maintenance import CachedTree, Pruned, Scans

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_HELP = """\
Show and prune what modpack keeps on this machine.

Loading a package unpacks its code into the cache: into the folder that the environment
variable MODPACK_CACHE names, or the platform's cache folder of the user. Everything in it can
be made again.

\b
Examples:
  modpack cache list
  modpack cache prune --older-than 30d --max-size 5G
  modpack cache verify
"""


@click.group("cache", help=_HELP)
def cache_command() -> None:
    """Show and prune what modpack keeps on this machine."""


@cache_command.command("list", epilog="Exit status: 0; 2 if the cache could not be read.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _list(as_json: bool) -> None:
    """Show the unpacked packages, what was used last first."""
    with failing_clearly(as_json):
        from modpack.loading.cache_maintenance import list_scans, list_trees

        folder = _folder()
        trees, scans = list_trees(folder), list_scans(folder)
        if as_json:
            from modpack.report.json_output import SCHEMA, dumps

            listed: list[Json] = [_tree_to_json(tree) for tree in trees]
            write(
                dumps(
                    {
                        "schema": SCHEMA,
                        "folder": str(folder),
                        "trees": listed,
                        "scans": _scans_to_json(scans),
                    }
                )
            )
        else:
            _show_list(str(folder), trees, scans)


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """The callback of ``--older-than``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,6})([smhdw])", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no time: 30d, 12h, 2w", ctx, parameter)
    return float(match[1]) * _UNITS[match[2]]


def _bytes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The callback of ``--max-size``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", value, re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{value!r} is no size: 5G, 800M", ctx, parameter)
    return int(match[1]) * _SIZES[match[2].upper()]


@cache_command.command(
    "prune",
    epilog="Exit status: 0; 2 if the cache could not be locked, or a DIGEST is not in it.",
)
@click.argument("digests", metavar="[DIGEST]...", nargs=-1)
@click.option(
    "--older-than", metavar="TIME", callback=_seconds, help="What was not used for that long: 30d."
)
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=_bytes,
    help="What was not used for longest, until the rest is no larger: 5G.",
)
@click.option("--all", "everything", is_flag=True, help="Everything.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def _prune(
    digests: tuple[str, ...],
    older_than: float | None,
    max_size: int | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Remove unpacked packages that no living process uses.

    DIGEST is how a tree's digest begins, as modpack cache list shows it. Without DIGEST and
    options, only what killed processes left half made goes.
    """
    with failing_clearly(as_json):
        from modpack.loading.cache_maintenance import prune

        folder = _folder()
        pruned = prune(
            folder,
            digests=digests,
            older_than=older_than,
            max_size=max_size,
            everything=everything,
        )
        if as_json:
            _write_pruned(str(folder), pruned)
        else:
            _tell_pruned(pruned)


@cache_command.command(
    "verify",
    epilog="Exit status: 0 if all files are what was unpacked; 1 if not; 2 if the cache could not "
    "be read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def _verify(ctx: click.Context, as_json: bool) -> None:
    """Compare every unpacked file with the digest that it was written with.

    What is damaged is made again when its package is loaded the next time.
    """
    with failing_clearly(as_json):
        from modpack.loading.cache_maintenance import damaged_files, list_trees

        folder = _folder()
        found = [(tree, damaged_files(tree)) for tree in list_trees(folder)]
        damaged = [(tree, files) for tree, files in found if files]
        if as_json:
            _write_verified(str(folder), found)
        else:
            _tell_verified(len(found), damaged)
    ctx.exit(FINDINGS if damaged else 0)


def _folder() -> Path:
    """The cache folder; it need not be there.

    Raises:
        CacheError: something else is, or nobody can tell where it would be.
    """
    from modpack.core.cache_dir import cache_folder
    from modpack.errors import CacheError

    try:
        folder = cache_folder()
    except RuntimeError as failure:
        reason = f"where the cache is cannot be told: {failure}"
        raise CacheError(f"{reason}. Remedy: let MODPACK_CACHE name a folder") from failure
    if folder.exists() and not folder.is_dir():
        raise CacheError(f"the cache {folder} is no folder. Remedy: let MODPACK_CACHE name one")
    return folder


def _tree_to_json(tree: CachedTree) -> dict[str, Json]:
    from datetime import datetime, timezone

    return {
        "digest": tree.digest,
        "name": tree.name,
        "files": tree.files,
        "size_bytes": tree.size_bytes,
        "used": datetime.fromtimestamp(tree.used, timezone.utc).isoformat(timespec="seconds"),
    }


def _scans_to_json(scans: Scans) -> dict[str, Json]:
    return {"files": scans.files, "size_bytes": scans.size_bytes}


def _show_list(folder: str, trees: tuple[CachedTree, ...], scans: Scans) -> None:
    from datetime import datetime

    from rich import box
    from rich.table import Table

    from modpack.core.text import counted, human_size, printable

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("digest", "package", "used"):
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


def _write_pruned(folder: str, pruned: Pruned) -> None:
    from modpack.report.json_output import SCHEMA, dumps

    removed: list[Json] = [_tree_to_json(tree) for tree in pruned.removed]
    kept: list[Json] = [_tree_to_json(tree) for tree in pruned.kept]
    write(
        dumps(
            {
                "schema": SCHEMA,
                "folder": folder,
                "removed": removed,
                "in_use": kept,
                "scans": _scans_to_json(pruned.scans),
                "leftovers": pruned.leftovers,
                "freed_bytes": pruned.freed_bytes,
            }
        )
    )


def _tell_pruned(pruned: Pruned) -> None:
    from modpack.core.text import counted, human_size, printable

    for tree in pruned.kept:
        named = printable(tree.name or "unknown")
        warn(f"{tree.digest[:16]} ({named}) stays: a process uses it")
    more = f", {counted(pruned.scans.files, 'scan')} of sources" if pruned.scans.files else ""
    more += f", {counted(pruned.leftovers, 'leftover')}" if pruned.leftovers else ""
    write(
        f"removed {counted(len(pruned.removed), 'package')}{more}: "
        f"{human_size(pruned.freed_bytes)}\n"
    )


def _write_verified(folder: str, found: list[tuple[CachedTree, tuple[str, ...]]]) -> None:
    from modpack.report.json_output import SCHEMA, dumps

    listed: list[Json] = []
    for tree, files in found:
        damaged: list[Json] = list(files)
        listed.append({**_tree_to_json(tree), "damaged": damaged})
    write(dumps({"schema": SCHEMA, "folder": folder, "trees": listed}))


def _tell_verified(total: int, damaged: list[tuple[CachedTree, tuple[str, ...]]]) -> None:
    from modpack.core.text import counted, printable

    for tree, files in damaged:
        named = printable(tree.name or "unknown")
        for file in files:
            write(f"{tree.digest[:16]} ({named}): {printable(file)} was changed, or is missing\n")
    write(f"{counted(total, 'package')} verified, {len(damaged)} damaged\n")
