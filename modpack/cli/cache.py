"""``modpack cache``: fill, list, and clear the cache."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from modpack.cli._command import command
from modpack.cli._options import PACKAGE, load_options
from modpack.cli._output import collect_warnings, show, warn, write, write_json
from modpack.core.text import counted, human_size, printable

if TYPE_CHECKING:
    from pathlib import Path

    from modpack.loading.cache_maintenance import CacheEntry

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@click.group("cache")
def cache_command() -> None:
    """Fill, list, and clear the package cache.

    Loading a package unpacks its code into the cache folder: MODPACK_CACHE_DIR, or the platform's
    cache folder for the user. The virtual environments of --isolated are in it, too. Removing
    cached files is safe, because modpack re-creates them.

    \b
    Examples:
      modpack cache warm net.modpack
      modpack cache list
      modpack cache clear --older-than 30d
    """


@command(
    "warm",
    group=cache_command,
    epilog="Exit status: 0, or 2 if a package cannot be loaded or cached.",
    has_json=False,
)
@click.argument("packages", metavar="PACKAGE...", nargs=-1, required=True, type=PACKAGE)
@load_options
def _warm(
    packages: tuple[str, ...], keys: tuple[str, ...], policy: str | None, **options: Any
) -> None:
    """Load packages once, so that later processes start faster.

    modpack unpacks each package into the cache, and compiles the modules that its model imports. It
    downloads packages at URLs. Run this when you build a container image: with the user, the
    Python, and the cache folder of the running container.

    This command executes the packages' code. Only use it for packages that you trust.

    \b
    Examples:
      modpack cache warm net.modpack
      MODPACK_CACHE_DIR=/var/cache/modpack modpack cache warm net.modpack --key team.pub
    """
    from modpack.cli._running import read_trust
    from modpack.report.progress import working

    trusted, folder = read_trust(policy, keys), _cache_folder()
    from modpack.importer import PackageImporter
    from modpack.loading.cache import require_cached

    for package in packages:
        with (
            working(f"Loading {package}"),
            collect_warnings() as collected,
            contextlib.redirect_stdout(sys.stderr),
            # Leaving it also executes the imports that wait, as a server does.
            PackageImporter(package, policy=trusted, **options) as importer,
        ):
            importer.load_model(*importer.main_resource(), map_location="cpu")
        for text in collected:
            warn(text)
        require_cached()
        write(f"{package}: cached in {folder}\n")


@command("list", group=cache_command, epilog="Exit status: 0, or 2 if the cache cannot be read.")
def _list(as_json: bool) -> None:
    """List cached packages and environments, most recently used first."""
    from datetime import datetime

    from modpack.loading.cache_maintenance import CacheContents, list_entries, list_scans
    from modpack.report.format import table

    # Scans are only counted: the cache has one for each source that was read.
    folder = _cache_folder()
    entries, scans = list_entries(folder), list_scans(folder)
    if as_json:
        write_json(CacheContents(str(folder), entries, scans))
        return
    rows = table(("", "left"), ("", "left"), ("", "left"), ("", "right"), ("", "right"))
    rows.add_row("digest", "package", "last used", "files", "size")
    for entry in entries:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        size = human_size(entry.size_bytes)
        rows.add_row(entry.digest[:16], _name(entry), used, str(entry.files), size)
    if entries:
        show(rows)
    total = sum(entry.size_bytes for entry in entries) + scans.size_bytes
    kept = f"; {counted(scans.files, 'scan')} of sources" if scans.files else ""
    write(f"{_count(entries)}{kept}; {human_size(total)} in {folder}\n")


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse the value of ``--older-than``."""
    if value is None:
        return None
    # Few digits, so that no duration reaches beyond the range of dates.
    match = re.fullmatch(r"(\d{1,6})([smhdw])", value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not a duration such as 30d, 12h, or 2w.", ctx, parameter
        )
    return float(match[1]) * _UNITS[match[2]]


@command("clear", group=cache_command, epilog="Exit status: 0, or 2 if the cache cannot be locked.")
@click.option(
    "--older-than",
    metavar="TIME",
    callback=_seconds,
    help="Remove only what was not used for this long, for example 30d.",
)
def _clear(older_than: float | None, as_json: bool) -> None:
    """Remove what no running process uses from the cache.

    \b
    Examples:
      modpack cache clear
      modpack cache clear --older-than 30d
    """
    from modpack.loading.cache_maintenance import clear

    cleared = clear(_cache_folder(), older_than)
    if as_json:
        write_json(cleared)
        return
    # Not an error: the next call removes what is free then.
    for entry in cleared.kept:
        warn(f"{entry.digest[:16]} ({_name(entry)}) was not removed, because a process uses it.")
    removed = _count(cleared.removed)
    if cleared.scans.files:
        removed += f", {counted(cleared.scans.files, 'scan')} of sources"
    if cleared.leftovers:
        removed += f", {counted(cleared.leftovers, 'leftover')}"
    write(f"Removed {removed}: {human_size(cleared.freed_bytes)}\n")


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


def _name(entry: CacheEntry) -> str:
    if entry.kind == "environment":
        return "environment of --isolated"
    return printable(entry.name or "unknown")


def _count(entries: tuple[CacheEntry, ...]) -> str:
    """Return the number of packages, and that of environments if there are any."""
    environments = sum(entry.kind == "environment" for entry in entries)
    text = counted(len(entries) - environments, "package")
    return f"{text}, {counted(environments, 'environment')}" if environments else text
