"""What every command shares: ``--json``, output, failures, completion, passphrases."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click
from click.exceptions import Exit

from modpack.errors import ModpackError, ModpackWarning, SelfTestError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.console import Console, RenderableType

    from modpack.core.json_values import Json

_PLAIN_WIDTH = 120
"""Columns where no terminal says how many there are."""
_FINDINGS = 1
"""The command did its work and found something wrong."""
_ERROR = 2
"""The command could not do its work."""
_INTERRUPTED = 130
"""Somebody pressed Ctrl-C, as shells count it."""
FILE: Final = click.Path(readable=False)
"""The type of an argument or option that shells complete as a file."""
PASSPHRASE_VARIABLE: Final = "MODPACK_KEY_PASSPHRASE"


def command(
    name: str,
    *,
    epilog: str,
    cls: type[click.Command] = click.Command,
    group: click.Group | None = None,
    json_help: str | None = "Print JSON.",
) -> Callable[[Callable[..., bool | None]], click.Command]:
    """Make a command of a function, whose docstring is the help.

    The command fails clearly, and its exit status is 1 if the function returns True: it found
    something wrong.

    Args:
        name: how it is called.
        epilog: the end of its help, about the exit status.
        cls: the command's class.
        group: the group that it belongs to.
        json_help: help for ``--json``, which the function gets as ``as_json``; None for no such
            option.
    """

    def decorate(function: Callable[..., bool | None]) -> click.Command:
        @functools.wraps(function)
        def callback(**given: object) -> None:
            with _failing_clearly(bool(given.get("as_json"))):
                found = function(**given)
            raise Exit(_FINDINGS if found else 0)

        made = click.command(name, cls=cls, epilog=epilog)(callback)
        if json_help is not None:
            made.params.append(click.Option(["--json", "as_json"], is_flag=True, help=json_help))
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def make_console() -> Console:
    """A console on stdout: colors at a terminal only, wide enough in a pipe."""
    from rich.console import Console

    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(
        file=sys.stdout, width=None if is_sized else _PLAIN_WIDTH, highlight=False, soft_wrap=False
    )


def show(content: RenderableType) -> None:
    """Render something onto stdout."""
    console = make_console()
    with console.capture() as captured:
        console.print(content)
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def write(content: str | bytes) -> None:
    """Write text, or bytes as they are, to stdout.

    Whoever reads from a pipe may close it when they have seen enough (``| head``): the rest is
    then not written, and the command's outcome stays what it is.
    """
    try:
        click.echo(content, nl=False, color=True)
    except BrokenPipeError:
        _forget_stdout()


def write_json(document: Mapping[str, object]) -> None:
    """Write a document to stdout, with the number of its schema first."""
    from modpack.report.json_output import SCHEMA, dumps

    write(dumps(cast("dict[str, Json]", {"schema": SCHEMA, **document})))


def write_file(path: Path, text: str) -> None:
    """Write a file so that under its name there is never a part of it; devices just get it.

    Raises:
        TargetError, OSError: it cannot be written; what was there before is still there.
    """
    from modpack.archive.target import write_atomically

    if path.exists() and not path.is_file():
        path.write_bytes(text.encode())
    else:
        write_atomically(path, text.encode())


def refuse_same(file: str, output: Path) -> None:
    """Refuse to overwrite a package by what is told of it."""
    if output.exists() and Path(file).exists() and output.samefile(file):
        raise click.UsageError(f"--output is {file} itself: name another file")


def warn(text: str) -> None:
    """Print a warning to stderr."""
    click.secho(f"Warning: {text}", err=True, fg="yellow")


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Keep modpack's own warnings for the report; all others are shown as ever."""
    collected: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ModpackWarning)
        shown_as_ever = warnings.showwarning

        def collect(message: Warning | str, category: type[Warning], *where: object) -> None:
            if issubclass(category, ModpackWarning):
                collected.append(str(message))
            else:
                shown_as_ever(message, category, *where)  # type: ignore[arg-type]

        warnings.showwarning = collect  # type: ignore[assignment]
        yield collected


@contextmanager
def needing_extra(extra: str, needs: str, modules: tuple[str, ...]) -> Iterator[None]:
    """Say which extra of modpack is missing, where an import fails for that.

    Args:
        extra: its name, which is the command's too.
        needs: the library, and from which version on.
        modules: the top-level modules that come with it.

    Raises:
        ModpackError: one of them is not installed.
    """
    try:
        yield
    except ImportError as failure:
        if (failure.name or "").partition(".")[0] not in modules:
            raise
        raise ModpackError(
            f"modpack {extra} needs {needs} or newer ({failure}). "
            f"Remedy: pip install 'modpack[{extra}]'"
        ) from failure


@contextmanager
def _failing_clearly(as_json: bool) -> Iterator[None]:
    """Turn a user's mistake into a message and an exit status.

    What is left to propagate with a traceback is a mistake of modpack's own.

    Args:
        as_json: whether to tell it as JSON on stdout instead of as text on stderr.
    """
    try:
        yield
    except (ModpackError, OSError, click.UsageError) as failure:
        if isinstance(failure, click.UsageError) and not as_json:
            raise
        _tell(failure, as_json)
        try:  # An exit status must not depend on what is still buffered.
            sys.stdout.flush()
        except OSError:
            _forget_stdout()
        raise Exit(_FINDINGS if isinstance(failure, SelfTestError) else _ERROR) from failure
    except KeyboardInterrupt as failure:
        click.echo("interrupted", err=True)
        raise Exit(_INTERRUPTED) from failure


def _tell(failure: Exception, as_json: bool) -> None:
    from modpack.core.text import printable

    message = _message(failure)
    trace = str(getattr(failure, "trace", ""))
    if as_json:
        from modpack.report.json_output import error_document

        more = {"traceback": trace} if trace else {}
        try:
            write_json(error_document(type(failure).__name__, message, **more))
            return
        except OSError:  # nothing can be written to stdout: stderr may do
            _forget_stdout()
    if trace:
        click.echo(trace, err=True, nl=False)
    click.secho("Error: ", err=True, fg="red", nl=False)
    click.echo(printable(message, keep="\n\t"), err=True)  # it may quote a hostile package


def _message(failure: Exception) -> str:
    if isinstance(failure, click.UsageError):
        return failure.format_message()
    if isinstance(failure, OSError) and not isinstance(failure, ModpackError):
        reason = failure.strerror or str(failure) or type(failure).__name__
        return f"{failure.filename}: {reason}" if failure.filename else reason
    return str(failure)


def _forget_stdout() -> None:
    """Send what is still buffered nowhere: Python would complain about it at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def complete_module(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the modules of the package that the command line names, as far as it can be read."""
    from click.shell_completion import CompletionItem

    from modpack.archive.layout import EXTERN_MODULES, is_internal
    from modpack.archive.reader import open_archive

    # Before an option's value, click has not told arguments from one another yet.
    file = ctx.params.get("file") or next(iter(ctx.args), "")
    try:
        with open_archive(file) as archive:
            records = [name for name in archive.names() if name.endswith(".py")]
            externs = archive.read(EXTERN_MODULES) if archive.has(EXTERN_MODULES) else b""
    except (ModpackError, OSError):
        return []  # whoever presses the tab key is not helped by an error
    names = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in records
        if not is_internal(name)
    }
    names.update(filter(None, externs.decode("utf-8", "replace").split("\n")))
    return [
        CompletionItem(name)
        for name in sorted(names)
        if name.isprintable() and name.startswith(incomplete)
    ]


def ask_passphrase(key: str, is_new: bool = False) -> str:
    """Return the passphrase of a key: from the environment, or asked for.

    Never from the command line, which others can see.

    Raises:
        KeyFileError: it is not in the environment, and nobody can be asked.
    """
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        from modpack.errors import KeyFileError

        raise KeyFileError(
            key,
            f"it needs a passphrase. Remedy: put it into {PASSPHRASE_VARIABLE}, or call at a "
            "terminal",
        )
    text = f"New passphrase for {key}" if is_new else f"Passphrase of {key}"
    try:
        answer: str = click.prompt(text, hide_input=True, confirmation_prompt=is_new, err=True)
    except click.Abort as failure:
        raise KeyboardInterrupt from failure
    return answer
