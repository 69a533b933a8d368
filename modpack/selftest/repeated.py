"""Results of runs for packages that differ from an earlier one only in the values of tensors.

A training loop saves one model again and again. Its code, structure, and hooks are those of the
package that was tested last, so that a clean interpreter would load the same objects. The live
objects and modules are compared with the earlier result, which costs no interpreter. The digests of
records cover the values of tensors.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from modpack.archive import layout
from modpack.archive.base import RecordDigest
from modpack.core.codec import record_to_json
from modpack.selftest.object_rows import Row
from modpack.selftest.process import Job, RunResult

_MAX_KEPT: Final = 4
"""Packages whose results are kept, for programs that save several models in turn."""
# The form in which descriptions of objects contain the checksum of a storage.
_VALUES: Final = re.compile(r" data [0-9a-f]{8}\b")
_kept: dict[str, RunResult] = {}


def key_of(digests: Mapping[str, RecordDigest], job: Job) -> str:
    """Return a key of everything that a job depends on except the values of saved tensors.

    Args:
        digests: The digests of the package's records.
        job: The job. The path of the package does not count.
    """
    key = hashlib.sha256()
    for name, digest in sorted(digests.items()):
        # The sizes of tensors count, because shapes and sharing depend on them.
        content = "" if layout.is_storage(name) else digest.sha256
        key.update(f"{name}\0{digest.size}\0{content}\0".encode())
    key.update(json.dumps(record_to_json(job._replace(package=""))).encode())
    return key.hexdigest()


def recall(key: str) -> RunResult | None:
    """Return the result of an earlier run, or None."""
    return _kept.get(key)


def keep(key: str, result: RunResult) -> None:
    """Keep the result of a run that passed."""
    # Added at the end again, because the first entry is removed first.
    _kept.pop(key, None)
    _kept[key] = result._replace(descriptions=tuple(map(without_values, result.descriptions)))
    while len(_kept) > _MAX_KEPT:
        del _kept[next(iter(_kept))]


def without_values(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows of an object without the checksums of its tensors."""
    return tuple(
        row._replace(text=_VALUES.sub("", row.text)) if row.kind == "tensor" else row
        for row in rows
    )
