"""Shared parts of the commands: ``--json``, output, errors, completion, and passphrases."""

from __future__ import annotations

import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.exceptions import Exit

from modpack.errors import ModpackError, ModpackWarning, SelfTestError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.console import Console, RenderableType

_PLAIN_WIDTH = 120
"""Columns of output that does not go to a terminal."""
_FINDINGS = 1
"""The command found a problem with the model or the package."""
_ERROR = 2
"""The command failed."""
_INTERRUPTED = 130
"""The user pressed Ctrl-C: 128 + SIGINT, as in shells."""
FILE: Final = click.Path(readable=False)
"""The type of an argument or option that shells complete as a file."""

_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A size in bytes, with an optional unit: ``800M``.

    Args:
        least: The smallest size.
    """

    name = "size"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        found = re.fullmatch(r"(\d{1,15})([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is not a size such as 5G or 800M.", param, ctx)
        size = int(found[1]) * _SIZES[found[2].upper()]
        if size < self._least:
            self.fail(f"{value!r} is less than {self._least}.", param, ctx)
        return size


# The options of commands that open packages.
policy_option = click.option(
    "--policy",
    metavar="FILE",
    type=FILE,
    help="Reject a package that requires more than this trust policy allows (a TOML file).",
)

key_option = click.option(
    "--key",
    "keys",
    metavar="PUB",
    multiple=True,
    type=FILE,
    help="Require a valid signature of this public key (a PEM file). Repeatable: one valid "
    "signature is enough.",
)

on_mismatch_option = click.option(
    "--on-mismatch",
    type=click.Choice(["warn", "error", "ignore"]),
    default="warn",
    show_default=True,
    help="Warn, fail, or continue if installed versions differ from the recorded ones.",
)

verify_option = click.option(
    "--verify",
    type=click.Choice(["code", "full"]),
    default="code",
    show_default=True,
    help="Verify the digests of all records (full), or of all but tensors (code).",
)

isolated_option = click.option(
    "--isolated",
    is_flag=True,
    help="Run in a virtual environment that contains the package's requirements and nothing else.",
)

PASSPHRASE_VARIABLE: Final = "MODPACK_KEY_PASSPHRASE"


def command(
    name: str,
    *,
    epilog: str,
    cls: type[click.Command] = click.Command,
    group: click.Group | None = None,
    json_help: str | None = "Print JSON.",
) -> Callable[[Callable[..., bool | None]], click.Command]:
    """Turn a function into a command whose help is the function's docstring.

    The exit status is 1 if the function returns True, which means that it found a problem.

    Args:
        name: The name of the command.
        epilog: The end of its help: the exit statuses.
        cls: The class of the command.
        group: The group that contains the command.
        json_help: The help of ``--json``, which the function receives as ``as_json``. None
            omits the option.
    """

    def decorate(function: Callable[..., bool | None]) -> click.Command:
        @functools.wraps(function)
        def callback(**given: object) -> None:
            with _report_errors(bool(given.get("as_json"))):
                for parameter in click.get_current_context().command.params:
                    if parameter.type is FILE and parameter.name != "output":
                        refuse_addresses(given[str(parameter.name)])
                found = function(**given)
            raise Exit(_FINDINGS if found else 0)

        decorated = click.command(name, cls=cls, epilog=epilog)(callback)
        if json_help is not None:
            option = click.Option(["--json", "as_json"], is_flag=True, help=json_help)
            decorated.params.append(option)
        if group is not None:
            group.add_command(decorated)
        return decorated

    return decorate


def refuse_addresses(value: object) -> None:
    """Refuse a path, ``NAME=PATH``, or one of several, that is an address such as a URL.

    Raises:
        ModpackError: If it is one.
    """
    for path in value if isinstance(value, tuple) else (value,):
        if isinstance(path, str) and re.match(r"([^=:/]*=)?[a-zA-Z][\w+.-]+:/{1,2}", path):
            if not Path(path).exists():
                hint = "Download the file first."
                raise ModpackError(f"{path}: addresses are not supported yet", hint=hint)


def make_console() -> Console:
    """Return a console on stdout, with colors at a terminal only."""
    from rich.console import Console

    is_sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(
        file=sys.stdout, width=None if is_sized else _PLAIN_WIDTH, highlight=False, soft_wrap=False
    )


def show(content: RenderableType) -> None:
    """Render content to stdout."""
    console = make_console()
    with console.capture() as captured:
        console.print(content)
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def write(content: str | bytes) -> None:
    """Write text or bytes to stdout.

    A reader that closes the pipe early (``| head``) does not change the exit status.
    """
    try:
        click.echo(content, nl=False, color=True)
    except BrokenPipeError:
        _discard_stdout()


def write_json(document: object) -> None:
    """Write a document to stdout, starting with its schema number."""
    from modpack.report.json_output import dumps

    write(dumps(document))


def write_file(path: Path, text: str) -> None:
    """Replace a file atomically, or write to a device.

    Raises:
        TargetError: If the file cannot be written. The previous file is unchanged.
        OSError: If the device cannot be written.
    """
    from modpack.writing.target import write_atomically

    if path.exists() and not path.is_file():
        path.write_bytes(text.encode())
    else:
        write_atomically(path, text.encode())


def require_other_file(file: str, output: Path) -> None:
    """Check that writing the output does not overwrite the package.

    Raises:
        click.UsageError: If it would.
    """
    if output.exists() and Path(file).exists() and output.samefile(file):
        raise click.UsageError(f"--output {output} is the package. Pass another file.")


def warn(text: str) -> None:
    """Print a warning to stderr."""
    click.secho(f"Warning: {text}", err=True, fg="yellow")


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect modpack's warnings; all others are shown as usual."""
    collected: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ModpackWarning)
        show_warning = warnings.showwarning

        def collect(message: Warning | str, category: type[Warning], *location: object) -> None:
            if issubclass(category, ModpackWarning):
                collected.append(str(message))
            else:
                show_warning(message, category, *location)  # type: ignore[arg-type]

        warnings.showwarning = collect  # type: ignore[assignment]
        yield collected


@contextmanager
def require_extra(extra: str, library: str, modules: tuple[str, ...]) -> Iterator[None]:
    """Name the extra of modpack that is missing if an import fails.

    Args:
        extra: The name of the extra and of the command.
        library: The library and its lowest version.
        modules: The top-level modules of the library.

    Raises:
        ModpackError: If one of the modules is not installed.
    """
    try:
        yield
    except ImportError as failure:
        if (failure.name or "").partition(".")[0] not in modules:
            raise
        raise ModpackError(
            f"modpack {extra} requires {library} or newer ({failure})",
            hint=f"Run: pip install 'modpack[{extra}]'",
        ) from failure


@contextmanager
def _report_errors(as_json: bool) -> Iterator[None]:
    """Turn an expected error into a message and an exit status.

    Any other exception is a bug in modpack and keeps its traceback.

    Args:
        as_json: Whether to print the error as JSON to stdout instead of as text to stderr.
    """
    try:
        yield
    except (ModpackError, OSError, click.UsageError) as failure:
        if isinstance(failure, click.UsageError) and not as_json:
            raise
        _print_error(failure, as_json)
        try:  # The exit status must not depend on a failing flush at interpreter exit.
            sys.stdout.flush()
        except OSError:
            _discard_stdout()
        raise Exit(_FINDINGS if isinstance(failure, SelfTestError) else _ERROR) from failure
    except KeyboardInterrupt as failure:
        click.echo("Interrupted.", err=True)
        raise Exit(_INTERRUPTED) from failure


def _print_error(failure: Exception, as_json: bool) -> None:
    from modpack.core.text import printable

    message = _message(failure)
    trace = str(getattr(failure, "trace", ""))
    if as_json:
        from modpack.report.json_output import ErrorDocument, ErrorFacts

        hint = getattr(failure, "hint", "")
        try:
            write_json(
                ErrorDocument(ErrorFacts(type(failure).__name__, message, hint, trace or None))
            )
            return
        except OSError:  # stdout cannot be written; try stderr
            _discard_stdout()
    if trace:
        click.echo(trace, err=True, nl=False)
    click.secho("Error: ", err=True, fg="red", nl=False)
    click.echo(printable(message, keep="\n\t"), err=True)  # the message may quote a hostile package


def _message(failure: Exception) -> str:
    if isinstance(failure, click.UsageError):
        return failure.format_message()
    if isinstance(failure, OSError) and not isinstance(failure, ModpackError):
        reason = failure.strerror or str(failure) or type(failure).__name__
        return f"{failure.filename}: {reason}" if failure.filename else reason
    return str(failure)


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that flushing it at exit does not fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def complete_module(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a module of the package that the command line names."""
    from click.shell_completion import CompletionItem

    from modpack.archive.layout import is_internal
    from modpack.archive.reader import open_archive
    from modpack.archive.records import read_externs

    # While completing an option's value, click has not assigned the arguments to parameters yet.
    file = ctx.params.get("file") or next(iter(ctx.args), "")
    try:
        with open_archive(file) as archive:
            records = [name for name in archive.names() if name.endswith(".py")]
            externs = read_externs(archive)
    except (ModpackError, OSError):
        return []  # an error message would garble the command line
    names = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in records
        if not is_internal(name)
    }
    names.update(externs)
    return [
        CompletionItem(name)
        for name in sorted(names)
        if name.isprintable() and name.startswith(incomplete)
    ]


def ask_passphrase(key: str, is_new: bool = False) -> str:
    """Return the passphrase of a key, from the environment or from a prompt.

    The command line is not an option: other users can see it.

    Raises:
        KeyFileError: If the environment has no passphrase, and stdin is not a terminal.
    """
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        from modpack.errors import KeyFileError

        raise KeyFileError(
            key,
            "the key requires a passphrase, but stdin is not a terminal",
            hint=f"Set {PASSPHRASE_VARIABLE}, or run the command in a terminal.",
        )
    text = f"New passphrase for {key}" if is_new else f"Passphrase of {key}"
    try:
        answer: str = click.prompt(text, hide_input=True, confirmation_prompt=is_new, err=True)
    except click.Abort as failure:
        raise KeyboardInterrupt from failure
    return answer
