"""Names of private namespaces, and the records by which other processes reopen packages.

A pickled object names its class by the full name of a packaged module. The name of the namespace
has 32 hex digits of the package's digest, and 16 of a hash of the trust policy if there is one.
Loading leaves a record in the cache, by which a process that has not loaded the package finds the
file: path, digest, options, and policy. A record is used only if it belongs to this user and no
other user can change it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from modpack.archive.manifest import canonical_json
from modpack.core.cache_dir import (
    cache_folder,
    make_private,
    read_private,
    replace_file,
    require_trusted_path,
)
from modpack.core.codec import from_json, record_to_json
from modpack.core.json_values import as_mapping, as_text
from modpack.core.names import PACKAGES

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy
    from modpack.options import OnMismatch, VerifyLevel

LOCAL = "_local"
"""The end of names of namespaces that cannot be reopened: their options cannot be sent."""
_MOST_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class PackageRecord(NamedTuple):
    """What a process needs to reopen a package.

    Attributes:
        digest: The package's whole digest.
        path: The absolute path of the package in the last load with this policy.
        verify: The option of that load.
        on_mismatch: The option of that load.
        policy: The trust policy.
        lazy: The option of that load.
    """

    digest: str
    path: str
    verify: VerifyLevel
    on_mismatch: OnMismatch
    policy: TrustPolicy | None
    lazy: bool | None = None


def namespace_name(digest: str, policy: TrustPolicy | None, is_filtered: bool = False) -> str:
    """Return the full name of a package's private namespace.

    The last part is an identifier, because TorchScript and generated code contain the name.

    Args:
        digest: The package's digest.
        policy: The trust policy.
        is_filtered: Whether ``module_allowed`` was given, a function that cannot be sent.
    """
    # Twelve digits could be made to collide in 2^24 attempts.
    name = f"{PACKAGES}.p{digest[:32]}"
    if policy is not None:
        name += f"_{hashlib.sha256(canonical_json(record_to_json(policy))).hexdigest()[:16]}"
        # An object of a derived class may judge by more than its fields.
        is_filtered = is_filtered or type(policy).__module__ != "modpack.core.policy"
    return name + LOCAL if is_filtered else name


def record_file(name: str) -> Path:
    """Return the path of a namespace's record.

    Args:
        name: The name of the namespace, without a number.

    Raises:
        RuntimeError: If the user has no cache folder.
    """
    return _records_folder(cache_folder()) / f"{name.rpartition('.')[2]}.json"


def _records_folder(cache: Path) -> Path:
    return cache / "packages" / "v1"


def leave_record(name: str, record: PackageRecord) -> None:
    """Leave the record by which other processes reopen a package, if the cache is writable.

    The last load replaces the record of earlier ones: the package may have been moved since.

    Args:
        name: The name of the package's namespace, without a number.
        record: The record of this load.
    """
    if name.endswith(LOCAL):
        return
    content = json.dumps(record_to_json(record)).encode()
    try:
        file = record_file(name)
        try:
            if read_private(file, _MOST_BYTES) == content:
                return
        except OSError:
            make_private(file.parent)
        replace_file(file, content, 0o600)
    except (OSError, RuntimeError) as failure:
        _log.debug("%s: other processes cannot reopen the package: %s", record.path, failure)


def remove_stale_records(cache: Path) -> None:
    """Remove the records of packages that no longer exist."""
    for file in _records_folder(cache).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if not os.path.lexists(json.loads(read_private(file, _MOST_BYTES))["path"]):
                file.unlink()


def read_record(name: str) -> PackageRecord:
    """Return the record of a namespace.

    Args:
        name: The name of the namespace, without a number.

    Raises:
        FileNotFoundError: If there is none.
        OSError: If another user could have written it.
        ValueError: If its contents are invalid, or it belongs to another name.
        RuntimeError: If the user has no cache folder.
    """
    from modpack.core.policy import TrustPolicy

    file = record_file(name)
    content = read_private(file, _MOST_BYTES)
    require_trusted_path(file.parent)
    try:
        document = as_mapping(json.loads(content), "the record")
        given = document["policy"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first process has warned about the policy
            policy = None if given is None else from_json(TrustPolicy, given, "the policy")
        record = PackageRecord(
            as_text(document["digest"], "the digest"),
            as_text(document["path"], "the path"),
            cast("VerifyLevel", document["verify"]),
            cast("OnMismatch", document["on_mismatch"]),
            policy,
            cast("bool | None", document.get("lazy")),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as failure:
        raise ValueError(f"the record {file} is invalid: {failure}") from failure
    # The name contains a hash of the policy, so a changed record cannot allow more.
    if namespace_name(record.digest, policy) != name:
        raise ValueError(f"the record {file} belongs to another package or policy")
    return record
