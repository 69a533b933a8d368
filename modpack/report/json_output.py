"""JSON documents of the commands that have no facts of their own, and their text.

The results in other modules, such as ``AuditFacts`` and ``SignedPackage``, are the documents of
their commands. The annotations of a document describe its keys, and the ``Attributes`` of its
docstring explain them. ``make schemas`` writes the JSON schemas in ``docs/reference/json`` from
both. Under one schema number, keys are only added. A change that could mislead a reader of the
present documents increments :data:`SCHEMA`.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from modpack.core.codec import record_to_json

SCHEMA: Final = 1


def dumps(document: object) -> str:
    """Return a document as JSON text, in ASCII and with a newline at the end."""
    return json.dumps({"schema": SCHEMA, **record_to_json(document)}, indent=2) + "\n"


class ErrorFacts(NamedTuple):
    """An error that ended a command.

    Attributes:
        type: Class of the exception.
        message: The problem, its location and its fix, for people.
        hint: How to fix it. Empty if modpack knows no fix.
        traceback: Traceback of the user's own code with ``--debug``, or null.
    """

    type: str
    message: str
    hint: str = ""
    traceback: str | None = None


class ErrorDocument(NamedTuple):
    """The document of a command that could not do its work.

    Attributes:
        error: The error.
    """

    error: ErrorFacts


class SkippedRow(NamedTuple):
    """A row that could not be run.

    Attributes:
        path: File of the row, as the user named it.
        row: Number of the row in the file, from 1.
        line: Line of a text file where the row starts, from 1; null for other files.
        reason: The problem.
    """

    path: str
    row: int
    line: int | None
    reason: str


class OutputFacts(NamedTuple):
    """One output of all rows.

    Attributes:
        name: Its name in the call signature.
        type: The dtype of a tensor, or the type of a plain value.
        shape: Dimensions of a tensor, the rows first. Null if they differ between rows, and for
            plain values.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None


class RunDocument(NamedTuple):
    """A run of a package on files.

    Attributes:
        path: The package, as the user named it.
        output_path: The file of outputs. Null if none was written.
        device: Device of the inputs.
        rows: Number of rows that were run.
        skipped: Rows that were skipped.
        outputs: The outputs.
        seconds: Duration in seconds.
    """

    path: str
    output_path: str | None
    device: str
    rows: int
    skipped: tuple[SkippedRow, ...]
    outputs: tuple[OutputFacts, ...]
    seconds: float


class KeygenDocument(NamedTuple):
    """A key for signing packages.

    Attributes:
        key_id: SHA-256 of the public key, in hex.
        private_key: File of the private key.
        public_key: File of the public key.
        encrypted: Whether the private key is encrypted.
    """

    key_id: str
    private_key: str
    public_key: str
    encrypted: bool
