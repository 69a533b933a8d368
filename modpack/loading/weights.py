"""Loading a package's weights without importing or running its code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import torch

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import local_source, open_archive
from modpack.archive.records import read_tensors
from modpack.core.names import resource_record
from modpack.core.tensors import TensorFacts, TensorKind
from modpack.errors import ModpackError, listed
from modpack.loading.checks import (
    find_entry,
    require_signature,
    require_storages,
    stricter_level,
)
from modpack.options import VerifyLevel, require_object_choice, require_options
from modpack.pickling.tensor_loading import StorageLoader

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy

_READ: Final = (layout.ENTRY, layout.BYTEORDER, layout.SHARDS)
"""Records that are otherwise read without a comparison with their digests."""
_PLAIN_FORMS: Final = frozenset({"", "conjugated", "negated", "subclass"})


def load_weights(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    package: str | None = None,
    resource: str | None = None,
    map_location: Any = None,
    policy: TrustPolicy | None = None,
    verify: VerifyLevel = "code",
) -> dict[str, torch.Tensor]:
    """Load the state dict of a packaged model without running the package's code.

    Only the records that describe tensors, and the tensors' storages, are read. Tensors are mapped
    from the file copy-on-write where possible: writing to them does not change the file. Tensors
    that share memory in the model share it in the result. Hooks of ``state_dict`` do not run. Only
    the required signature and ``verify`` of the policy apply.

    Sparse, quantized, and nested tensors cannot be mapped. For a model with such tensors, use
    :func:`modpack.load`.

    Args:
        path: Package file, binary file object, folder of an unzipped package, or URL.
        package: Package of the saved object. Pass it together with ``resource``. The default is the
            main resource, or the only saved object.
        resource: Name of the saved object in ``package``.
        map_location: Device of the tensors; see :func:`torch.load`.
        policy: Trust policy. None allows everything.
        verify: Tensors to compare with their digests first: ``'code'`` for none, which are mapped
            and not read; ``'full'`` for all that are loaded. The policy's level applies if it is
            stricter.

    Returns:
        The parameters and persistent buffers of a module, by their names in its ``state_dict``;
        or the tensors in a container, by their paths. All of them are plain tensors.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has an invalid value.
        ArchiveError: If the file is not a package, or is damaged.
        SignatureError: If the policy requires a signature that is missing or invalid.
        ModpackError: If the package does not record its tensors, or if some of them cannot be
            loaded without unpickling; the error lists them.
    """
    require_object_choice(package, resource)
    require_options(policy=policy, verify=verify)
    level = stricter_level(verify, policy)
    file = local_source(path)
    label = None if file is path else str(path)  # a URL
    with open_archive(file, label=label) as archive:
        manifest = read_manifest(archive)
        tensors = read_tensors(archive, manifest) if manifest is not None else None
        if manifest is None or tensors is None:
            raise ModpackError(
                f"{archive.path}: the package has no record of its tensors",
                hint="Use modpack.load, which runs the package's code, or export it again.",
            )
        verify_records(archive, manifest, filter(archive.has, _READ))
        if policy is not None:
            require_signature(archive, policy, file)
        if package is None or resource is None:
            package, resource = find_entry(archive)
        record = resource_record(package, resource)
        if record not in tensors:
            known = listed(map(repr, tensors), 10) or "none"
            raise ModpackError(
                f"{archive.path}: no tensors are recorded for {record!r}, only for {known}"
            )
        wanted = _weights(tensors[record])
        # Before tensors are compared with their digests, which may take long.
        _refuse_special(archive, wanted)
        require_storages(archive, (each.storage for each in wanted if each.storage), level)
        loader = StorageLoader(archive, map_location, record)
        dtypes = _dtypes(archive, wanted)
        # The file may be closed afterwards: a mapping outlives its descriptor.
        return {each.name: _load_tensor(loader, each, dtypes[each.dtype]) for each in wanted}


def _weights(tensors: Sequence[TensorFacts]) -> list[TensorFacts]:
    """Return the tensors of a module's state dict; all tensors if the object is not a module."""
    own = (TensorKind.PARAMETER, TensorKind.BUFFER)
    of_modules = [each for each in tensors if each.kind in own and each.is_persistent]
    return of_modules or [each for each in tensors if each.kind is TensorKind.VALUE]


def _refuse_special(archive: Archive, tensors: Sequence[TensorFacts]) -> None:
    """Refuse tensors that consist of more than a storage, and name the form of each."""
    special = [
        f"{each.name} ({each.form or 'not stored'})"
        for each in tensors
        if each.storage is None or each.form not in _PLAIN_FORMS
    ]
    if special:
        raise ModpackError(
            f"{archive.path}: these tensors can only be unpickled: {listed(special)}",
            hint="Use modpack.load. With policy=TrustPolicy(), it loads plain data without running "
            "code.",
        )


def _dtypes(archive: Archive, tensors: Sequence[TensorFacts]) -> Mapping[str, torch.dtype]:
    """Return dtypes by their own names, not by aliases such as ``double`` for ``float64``."""
    found: dict[str, torch.dtype] = {}
    unknown: list[str] = []
    for name in dict.fromkeys(each.dtype for each in tensors):
        dtype = vars(torch).get(name)  # getattr would import parts of torch
        if isinstance(dtype, torch.dtype) and str(dtype) == f"torch.{name}":
            found[name] = dtype
        else:
            unknown.append(name)
    if unknown:
        raise ModpackError(
            f"{archive.path}: tensors have types that this version of torch does not support: "
            f"{listed(map(repr, unknown))}"
        )
    return found


def _load_tensor(loader: StorageLoader, facts: TensorFacts, dtype: torch.dtype) -> torch.Tensor:
    # The loader refuses a smaller storage, so the tensor cannot reach beyond it.
    size = facts.offset + facts.span if facts.numel else 0
    storage = loader.load_bytes(facts.storage or "", facts.device, size, dtype)
    made = torch.empty(0, dtype=dtype, device=storage.device)
    made.set_(storage, facts.offset, facts.shape or (), facts.stride)
    if facts.form == "conjugated":
        return made.conj()
    return torch._neg_view(made) if facts.form == "negated" else made
