"""The weights of a package, without its code: nothing is imported from it, nor run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

import torch

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.layout import hook_records
from modpack.archive.manifest import read_manifest, verify_records
from modpack.archive.reader import open_archive
from modpack.archive.records import read_tensors
from modpack.core.names import resource_record
from modpack.core.policy import TrustPolicy
from modpack.core.tensors import TensorFacts, TensorKind
from modpack.errors import ModpackError
from modpack.loading.checks import (
    find_entry,
    level_of,
    require_contents,
    require_policy,
    require_signature,
    require_storages,
)
from modpack.pickling.tensor_loading import StorageLoader, map_location_scope
from modpack.security.pickle_names import read_pickle

_READ: Final = (layout.ENTRY, layout.BYTEORDER)
"""Records that are read without a look at their digests."""
_PLAIN_FORMS: Final = frozenset({"", "conjugated", "negated", "subclass"})


def load_weights(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    package: str | None = None,
    resource: str | None = None,
    map_location: Any = None,
    policy: TrustPolicy | None = None,
    verify: str = "code",
) -> dict[str, torch.Tensor]:
    """The state dict of a packaged model, without running anything of the package.

    Only records that describe tensors, and the tensors' storages, are read. Tensors are mapped from
    the file where possible, copy-on-write: writing to them does not change it. Those that share
    memory in the model share it here. Hooks of ``state_dict`` do not run.

    What is saved in a state dict or another plain container, and is more than numbers in a row
    (sparse, quantized, nested), is unpickled as data: by the closed unpickler, which makes nothing
    but tensors and plain values. A model that has such tensors needs its code.

    Args:
        path: a package file, a binary file object, or the folder of an unzipped package.
        package: with ``resource``, of which saved object. By default the one that
            :func:`modpack.load` loads.
        resource: see ``package``; both or neither.
        map_location: where tensors go; see :func:`torch.load`.
        policy: whose signature is demanded, and what is compared with its digests; nothing else of
            a :class:`TrustPolicy` matters where nothing is run.
        verify: ``"full"`` compares the tensors with their digests before they are given out,
            ``"code"`` only what describes them. What the policy says counts if it is more.

    Returns:
        For a module its parameters and persistent buffers, by the names that its ``state_dict``
        has for them; for containers of tensors the tensors, by their paths. Plain tensors all.

    Raises:
        TypeError, ValueError: an argument is none of these.
        ArchiveError: it is no package, or a damaged one.
        SignatureError: the signature that the policy demands is missing or does not hold.
        ModpackError: the package does not record its tensors, or some of them cannot be had
            without unpickling; they are named.
    """
    if (package is None) != (resource is None):
        raise TypeError("give both package and resource, or neither")
    require_policy(policy)
    level = level_of(verify, policy)
    with open_archive(path) as archive:
        manifest = read_manifest(archive)
        tensors = read_tensors(archive, manifest) if manifest is not None else None
        if manifest is None or tensors is None:
            raise ModpackError(
                f"{archive.path} does not record its tensors. Remedy: modpack.load, which runs "
                "the package's code, or export it again"
            )
        verify_records(archive, manifest, filter(archive.has, _READ))
        if policy is not None:
            require_signature(archive, policy, path)
        if package is None or resource is None:
            package, resource = find_entry(archive)
        record = resource_record(package, resource)
        if record not in tensors:
            known = ", ".join(tensors) or "none"
            raise ModpackError(f"{archive.path} records no tensors of {record}, but of: {known}")
        wanted = _weights(tensors[record])
        if _special(wanted) and _is_data(archive, record):
            require_contents(archive, level)
            return _unpickled(archive, record, wanted, map_location)
        require_storages(archive, (each.storage for each in wanted if each.storage), level)
        return _loaded(archive, record, wanted, map_location)


def _loaded(
    archive: Archive, record: str, wanted: Sequence[TensorFacts], map_location: object
) -> dict[str, torch.Tensor]:
    _refuse_special(archive, wanted)
    loader = StorageLoader(archive, map_location, record)
    dtypes = _dtypes(archive, wanted)
    return {each.name: _tensor(loader, each, dtypes[each.dtype]) for each in wanted}


def _weights(tensors: Sequence[TensorFacts]) -> list[TensorFacts]:
    """What a state dict has; of what is no module, all tensors."""
    own = (TensorKind.PARAMETER, TensorKind.BUFFER)
    of_modules = [each for each in tensors if each.kind in own and each.is_persistent]
    return of_modules or [each for each in tensors if each.kind is TensorKind.VALUE]


def _is_data(archive: Archive, record: str) -> bool:
    """Whether an object can be unpickled without running anything."""
    contents = read_pickle(archive.read(record))
    has_hooks = any(map(archive.has, hook_records(record)))
    return not (has_hooks or contents.code_names or contents.unreadable)


def _unpickled(
    archive: Archive, record: str, wanted: Sequence[TensorFacts], map_location: Any
) -> dict[str, torch.Tensor]:
    from modpack.pickling.data_unpickler import unpickle_data  # most states do without

    with map_location_scope(map_location):
        storages = StorageLoader(archive, map_location, record)
        made = unpickle_data(archive.read(record), resource=record, storages=storages)
    found = dict(_tensors_in(made))
    return {each.name: found[each.name] for each in wanted if each.name in found}


def _tensors_in(root: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in containers, by their paths, as they are recorded."""
    entered: set[int] = set()
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        path, made = todo.pop()
        start = f"{path}." if path else ""
        if isinstance(made, torch.Tensor):
            yield path, made.detach()
        elif id(made) not in entered:
            entered.add(id(made))
            if isinstance(made, dict):
                todo += [(f"{start}{key}", value) for key, value in made.items()]
            elif isinstance(made, (list, tuple)):
                todo += [(f"{start}{number}", value) for number, value in enumerate(made)]


def _special(tensors: Sequence[TensorFacts]) -> list[str]:
    """The tensors of which a storage is not all that there is."""
    return [
        f"{each.name} ({each.form or 'not stored'})"
        for each in tensors
        if each.storage is None or each.form not in _PLAIN_FORMS
    ]


def _refuse_special(archive: Archive, tensors: Sequence[TensorFacts]) -> None:
    if special := _special(tensors):
        raise ModpackError(
            f"{archive.path} holds tensors whose elements are more than numbers in a row, and "
            f"which only unpickling restores: {', '.join(special)}. Remedy: modpack.load, which "
            "runs the package's code"
        )


def _dtypes(archive: Archive, tensors: Sequence[TensorFacts]) -> Mapping[str, torch.dtype]:
    found = {name: _dtype(name) for name in {each.dtype: None for each in tensors}}
    if unknown := [name for name, dtype in found.items() if dtype is None]:
        raise ModpackError(
            f"{archive.path} has tensors of types that this torch does not know: "
            f"{', '.join(f'{name!r:.80}' for name in unknown)}"
        )
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def _dtype(name: str) -> torch.dtype | None:
    """An element type by its own name: ``double`` is a second name of ``float64``."""
    found = vars(torch).get(name)  # never getattr: torch imports parts of itself that are asked for
    return found if isinstance(found, torch.dtype) and str(found) == f"torch.{name}" else None


def _tensor(loader: StorageLoader, facts: TensorFacts, dtype: torch.dtype) -> torch.Tensor:
    size = facts.offset + facts.span if facts.numel else 0
    storage = loader.load_bytes(facts.storage or "", facts.device, size, dtype)
    made = torch.empty(0, dtype=dtype, device=storage.device)
    made.set_(storage, facts.offset, facts.shape or (), facts.stride)
    if facts.form == "conjugated":
        return made.conj()
    return torch._neg_view(made) if facts.form == "negated" else made
