"""From the bytes of a module to its syntax tree, or to the reason why there is none."""

from __future__ import annotations

import ast
import io
import itertools
import re
import threading
import tokenize
import warnings
from dataclasses import dataclass

from modpack.core.imports import ScanFailure

__all__ = ["ParsedSource", "is_large", "parse_source"]

_LONG = 200_000
"""Bytes below which no source is too large."""
_MOST_SIGNS = 200_000
"""Words, numbers, texts and other signs of a source: each may become a kilobyte of syntax tree."""
_SIGN = re.compile(
    rb'''("""|\'\'\')(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^'\\\n])*\''''
    rb"|#[^\n]*|\w+|[^\w\s]|\n",
    re.DOTALL,
)
_TOO_DEEP = "nested too deeply for Python's own parser"


@dataclass(frozen=True)
class ParsedSource:
    """A source that Python can parse.

    Attributes:
        text: the decoded source; its lines end in a line feed, whatever they ended in before.
        tree: its syntax tree.
    """

    text: str
    tree: ast.Module


def parse_source(source: str | bytes) -> ParsedSource | ScanFailure:
    """Decode and parse a source as the import system would, without compiling it.

    Args:
        source: text, or bytes in the encoding that their byte order mark or their coding
            cookie names (PEP 263); UTF-8 if they name none.

    Returns:
        The tree with its text, or what Python says against it. Nothing is raised for a
        source, however broken.
    """
    try:
        text = _decode(source)
        return ParsedSource(text, _parse(text))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return ScanFailure(f"bytes that are not {error.encoding}: {error.reason}", line)
    except UnicodeEncodeError as error:  # a lone surrogate in a text: no file can hold that
        line = error.object.count("\n", 0, error.start) + 1
        return ScanFailure(f"a character that is not text: {error.reason}", line)
    except SyntaxError as error:
        return ScanFailure(_one_line(error.msg), _known_line(error.lineno))
    except (RecursionError, MemoryError):
        return ScanFailure(_TOO_DEEP)
    except (ValueError, LookupError) as error:  # LookupError: a codec that is not for text
        return ScanFailure(_one_line(str(error)))


def is_large(source: str | bytes) -> bool:
    """Whether parsing a source takes hundreds of megabytes, which few real ones come near.

    >>> is_large("x = 1"), is_large("x;" * 200_000)
    (False, True)
    """
    if len(source) < _LONG:
        return False
    data = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    signs = itertools.islice(_SIGN.finditer(data), _MOST_SIGNS)
    return sum(1 for _ in signs) == _MOST_SIGNS


def _decode(source: str | bytes) -> str:
    if isinstance(source, bytes):
        source = source.decode(_encoding(source))
    text = source.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise SyntaxError("source code cannot contain null bytes", ("", line, None, None))
    return text


def _encoding(source: bytes) -> str:
    try:
        return tokenize.detect_encoding(io.BytesIO(source).readline)[0]
    except SyntaxError as error:
        source.decode("utf-8")  # where this fails, its error knows the line
        first, _, _ = source.partition(b"\n")
        error.lineno = 1 if b"coding" in first else 2
        raise


def _parse(text: str) -> ast.Module:
    try:
        return _parse_quietly(text)
    except RecursionError:
        # Python counts the caller's depth against the parser. An empty stack gives a source
        # the same answer wherever the scan was asked for.
        return _parse_on_an_empty_stack(text)


def _parse_quietly(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in other people's code
        return ast.parse(text)


def _parse_on_an_empty_stack(text: str) -> ast.Module:
    trees: list[ast.Module] = []
    errors: list[BaseException] = []

    def parse() -> None:
        try:
            trees.append(_parse_quietly(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            errors.append(error)

    thread = threading.Thread(target=parse, name="modpack-parse")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return trees[0]


def _one_line(message: str | None) -> str:
    return " ".join((message or "invalid syntax").split())


def _known_line(line: int | None) -> int | None:
    return line if line is not None and line >= 1 else None
