"""What commands write, and where.

How commands fail: one clear message, a documented exit status, no traceback.

What shells offer for the arguments of commands; see click's shell completion.

Passphrases of keys: from the environment, or asked for.

Never from the command line, which others can see.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
from click.exceptions import Exit

from modpack.errors import ModpackError, TrialError

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem
    from rich.console import Console, RenderableType

_PLAIN_WIDTH = 120
"""Columns where no terminal says how many there are."""


def make_console(stderr: bool = False) -> Console:
    """A console on stdout or stderr: colours at a terminal only, wide enough in a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    is_sized = stream.isatty() or "COLUMNS" in os.environ
    return Console(
        file=stream, width=None if is_sized else _PLAIN_WIDTH, highlight=False, soft_wrap=False
    )


def show(content: RenderableType) -> None:
    """Render something onto stdout."""
    console = make_console()
    with console.capture() as captured:
        console.print(content)
    lines = (line.rstrip() for line in captured.get().splitlines())
    write("".join(f"{line}\n" for line in lines))


def write(content: str | bytes) -> None:
    """Write text, or bytes as they are, to stdout.

    Whoever reads from a pipe may close it when they have seen enough (``| head``): the rest is
    then not written, and the command's outcome stays what it is.
    """
    try:
        click.echo(content, nl=False, color=True)
    except BrokenPipeError:
        forget_stdout()


def write_file(path: Path, text: str) -> None:
    """Write a file so that under its name there is never a part of it; devices just get it.

    Raises:
        TargetError, OSError: it cannot be written; what was there before is still there.
    """
    from modpack.archive.target import open_sink

    if path.exists() and not path.is_file():
        path.write_bytes(text.encode())
        return
    sink = open_sink(path)
    try:
        sink.write(text.encode())
        sink.publish()
    finally:
        sink.discard()


def refuse_same(file: str, output: Path) -> None:
    """Refuse to overwrite a package by what is told of it."""
    from pathlib import Path

    if output.exists() and Path(file).exists() and output.samefile(file):
        raise click.UsageError(f"--output is {file} itself: name another file")


def warn(text: str) -> None:
    """Tell a warning on stderr."""
    click.secho(f"warning: {text}", err=True, fg="yellow")


def forget_stdout() -> None:
    """Send what is still buffered nowhere: Python would complain about it at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def settle_stdout() -> None:
    """Write what is still buffered, or forget it: an exit status must not depend on it."""
    try:
        sys.stdout.flush()
    except OSError:
        forget_stdout()


FINDINGS = 1
"""The command did its work and found something wrong."""
ERROR = 2
"""The command could not do its work."""
INTERRUPTED = 130
"""Somebody pressed Ctrl-C, as shells count it."""


@contextmanager
def failing_clearly(as_json: bool) -> Iterator[None]:
    """Turn a user's mistake into a message and :data:`ERROR`.

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
        settle_stdout()
        is_finding = isinstance(failure, TrialError)
        raise Exit(FINDINGS if is_finding else ERROR) from failure
    except KeyboardInterrupt as failure:
        click.echo("interrupted", err=True)
        raise Exit(INTERRUPTED) from failure


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


def _tell(failure: Exception, as_json: bool) -> None:
    message = _message(failure)
    trace = str(getattr(failure, "trace", ""))
    if as_json:
        from modpack.report.json_output import dumps, error_document

        more = {"traceback": trace} if trace else {}
        try:
            write(dumps(error_document(type(failure).__name__, message, **more)))
            return
        except OSError:  # nothing can be written to stdout: stderr may do
            forget_stdout()
    if trace:
        click.echo(trace, err=True, nl=False)
    from modpack.core.text import printable

    click.secho("Error: ", err=True, fg="red", nl=False)
    click.echo(printable(message, keep="\n\t"), err=True)  # it may quote a hostile package


def _message(failure: Exception) -> str:
    if isinstance(failure, click.UsageError):
        return failure.format_message()
    if isinstance(failure, OSError) and not isinstance(failure, ModpackError):
        reason = failure.strerror or str(failure) or type(failure).__name__
        return f"{failure.filename}: {reason}" if failure.filename else reason
    return str(failure)


def complete_file(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell offer files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_code(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the codes of findings, behind a comma too."""
    from click.shell_completion import CompletionItem

    from modpack.report.audit_facts import Severity
    from modpack.report.finding_codes import CODES

    before, comma, begun = incomplete.rpartition(",")
    words = [*CODES, *(severity.value for severity in Severity), "licence:"]
    offered = [word for word in dict.fromkeys(words) if word.startswith(begun)]
    return [CompletionItem(f"{before}{comma}{word}") for word in offered]


def complete_module(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the modules of the package that the command line names, as far as it can be read."""
    from click.shell_completion import CompletionItem

    from modpack.errors import ModpackError

    try:
        # Before an option's value, click has not told arguments from one another yet.
        modules = _modules(ctx.params.get("file") or next(iter(ctx.args), ""))
    except (ModpackError, OSError):
        return []  # whoever presses the tab key is not helped by an error
    return [CompletionItem(module) for module in modules if module.startswith(incomplete)]


def _modules(file: str) -> list[str]:
    """The modules of a package: those that it holds, and the extern ones."""
    from modpack.archive.layout import EXTERN_MODULES, is_internal
    from modpack.archive.reader import open_archive

    with open_archive(file) as archive:
        code = [name for name in archive.names() if name.endswith(".py") and not is_internal(name)]
        held = [name.removesuffix(".py").removesuffix("/__init__") for name in code]
        listed = archive.read(EXTERN_MODULES) if archive.has(EXTERN_MODULES) else b""
    externs = listed.decode("utf-8", "replace").split("\n")
    names = {*(name.replace("/", ".") for name in held), *filter(None, externs)}
    return sorted(name for name in names if name.isprintable())


VARIABLE: Final = "MODPACK_KEY_PASSPHRASE"


def ask(key: str) -> str:
    """The passphrase of a key that is there.

    Raises:
        KeyFileError: it is not in the environment, and nobody can be asked.
    """
    return _given() or _asked(key, f"Passphrase of {key}", is_new=False)


def ask_twice(key: str) -> str:
    """The passphrase of a new key.

    Raises:
        KeyFileError: it is not in the environment, and nobody can be asked.
    """
    return _given() or _asked(key, f"New passphrase for {key}", is_new=True)


def _given() -> str | None:
    return os.environ.get(VARIABLE)


def _asked(key: str, text: str, is_new: bool) -> str:
    if not sys.stdin.isatty():
        from modpack.errors import KeyFileError

        reason = f"it needs a passphrase. Remedy: put it into {VARIABLE}, or call at a terminal"
        raise KeyFileError(key, reason)
    try:
        answer: str = click.prompt(text, hide_input=True, confirmation_prompt=is_new, err=True)
    except click.Abort as failure:
        raise KeyboardInterrupt from failure
    return answer
