"""The reference page of the command line agrees with the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from modpack.cli import cli

PAGE = Path(__file__).parents[3].joinpath("docs", "reference", "cli.md").read_text()


def leaf_commands(
    group: click.Group = cli, prefix: str = "modpack"
) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        if isinstance(command, click.Group):
            yield from leaf_commands(command, path)
        else:
            yield path, command


COMMANDS = dict(leaf_commands())


def section(title: str) -> str:
    """Return the text below a heading of the page, with headings of lower levels."""
    match = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^\1 |^## |\Z)", PAGE, re.M | re.S)
    assert match is not None, f"the page has no section {title!r}"
    return match[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_reference_documents_every_option(name):
    rows = re.findall(r"^\| (`-.*?) \| ", section(name), re.M)
    documented = re.findall(r"`(--?[a-z][a-z-]*)", " ".join(rows))
    options = (each for each in COMMANDS[name].params if isinstance(each, click.Option))
    existing = [flag for each in options for flag in (*each.opts, *each.secondary_opts)]
    assert sorted(documented) == sorted(existing)


@pytest.mark.parametrize("name", COMMANDS)
def test_reference_shows_usage_of_command(name):
    command = COMMANDS[name]
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    assert f"    {usage}\n" in PAGE


def test_reference_lists_commands_with_their_summaries():
    rows = re.findall(r"^\| \[`modpack (.*?)`\]\(#.*?\) \| (.*?) \|", PAGE, re.M)
    summaries = {name: each.help.partition("\n")[0] for name, each in cli.commands.items()}
    assert dict(rows) == summaries
