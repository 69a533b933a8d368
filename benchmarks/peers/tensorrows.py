"""Models of tensors, and other state: loaded, saved, both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from figures import Goal
from goals import at_limit, at_limits, faster, no_more, under
from measuring import Job, Row

__all__ = ["loading", "round_trip", "saving"]

_GIB = 1 << 30
_MAPPED = "torch.load(mmap=True)"
_BARE = "limit: mapped, made by hand"
_KEPT = "limit: the same promises, by hand"
_KNOWN = "limit: by hand, the file's end known"
_HASHED = "limit: hashed and written"
_SYNCED = "limit: hashed, written and synced"
_PICKLED = "limit: the C pickler"
_REPLACED = "limit: 1 MB written, synced, mapped"
_FOUND = "limit: modpack, looking for nothing"
_DURABLE = "limit: torch.package, compared and synced"
_LOADED = (
    "modpack",
    "torch.package",
    "torch.load",
    _MAPPED,
    "safetensors",
    "cloudpickle",
)
_ALWAYS_LOADED = (_KEPT, _KNOWN, _BARE)
"""Limits whose figures are told for every model, those of goals or not."""
_SAVED = ("modpack", "torch.package", "torch.save", "torch.save and fsync", "cloudpickle")
_SAVED_TENSORS = (*_SAVED, "safetensors", _HASHED, _SYNCED)
_SAVED_OBJECTS = (*_SAVED, _PICKLED)
_WRITTEN_FOR = {
    "modpack": "modpack",
    "torch.package": "torch.package",
    "torch.save": "torch.load",
    "safetensors": "safetensors",
    "cloudpickle": "cloudpickle",
    _BARE: _BARE,
}


def loading(share: int) -> Iterator[Row]:
    """Models that are loaded, of which all is read afterwards."""
    yield _load(
        "load-one",
        "load, one 2 GiB tensor",
        ["tensors", 1, 2 * _GIB // share],
        faster("to the model", "torch.package", 100),
        faster("with a pass", "torch.package", 15),
        *(no_more("to the model", peer, 1.2) for peer in ("safetensors", _MAPPED)),
        *(no_more("with a pass", peer, 1.2) for peer in ("safetensors", _MAPPED)),
        limits=(_FOUND, _KEPT, _KNOWN, _BARE),
    )
    yield _load(
        "load-400",
        "load, 400 tensors, 2 GiB",
        ["tensors", _few(share), 2 * _GIB // share // _few(share)],
        faster("to the model", "torch.package", 50),
    )
    yield _load(
        "load-20000",
        "load, 20,000 tensors of 50 KB",
        ["tensors", 20_000 // share, 50_000],
        faster("with a pass", "torch.package", 2.5),
        no_more("to the model", _MAPPED, 1),
        no_more("with a pass", _MAPPED, 1),
    )


def _load(
    name: str,
    title: str,
    made: list[object],
    *goals: Goal,
    limits: Sequence[str] = (_KEPT,),
) -> Row:
    writing = Job("write_files", {"made": made, "savers": _WRITTEN_FOR})
    filling = [Job("load", {"how": how}, cache="warm") for how in ("modpack", _KEPT, _KNOWN)]
    loaded = dict.fromkeys((*_LOADED, *limits, *_ALWAYS_LOADED))
    subjects = {how: Job("load", {"how": how}, cache="warm") for how in loaded}
    memory = [
        no_more(metric, "safetensors", 1.1)
        for metric in ("private memory", "private memory after the pass")
    ]
    at_all = (*at_limits(limits, *goals), *at_limit(_KEPT, *memory))
    return Row(name, title, (writing, *filling), subjects, at_all)


def saving(share: int) -> Iterator[Row]:
    """Tensors and other objects that are saved."""
    as_fast = at_limit(
        _SYNCED,
        no_more("saving", "torch.save", 1),
        faster("saving", "torch.package", 1.5),
    )
    goals = (*as_fast, under("extra memory", 100e6, "B"))
    sizes = {
        "one": ("one 2 GiB tensor", 1, 2 * _GIB // share),
        "400": ("400 tensors, 2 GiB", _few(share), 2 * _GIB // share // _few(share)),
        "20000": ("20,000 tensors of 50 KB", 20_000 // share, 50_000),
    }
    for name, (what, count, size) in sizes.items():
        made = ["tensors", count, size]
        row = _save(f"save-{name}", f"save, {what}", made, _SAVED_TENSORS, *goals)
        yield row if share > 1 else replace(row, rounds=5)
    for name, what in {"plain": "small containers", "objects": "small objects"}.items():
        goal = faster("saving", "torch.package", 10)
        title = f"save, 200,000 {what}"
        made = [name, 200_000 // share]
        yield _save(f"save-{name}", title, made, _SAVED_OBJECTS, *at_limit(_PICKLED, goal))


def _few(share: int) -> int:
    return max(400 // share, 4)


def _save(name: str, title: str, made: list[object], savers: tuple[str, ...], *goals: Goal) -> Row:
    subjects = {how: Job("save", {"how": how, "made": made}) for how in savers}
    return Row(name, title, (), subjects, goals)


def round_trip() -> Row:
    """A small model, saved and loaded."""
    pairs = {
        "modpack": ("modpack", "modpack"),
        "modpack.save and load": ("modpack.save", "modpack.load"),
        "torch.package": ("torch.package", "torch.package"),
        "torch.save": ("torch.save", "torch.load"),
        "torch.save and fsync": ("torch.save and fsync", "torch.load"),
        "cloudpickle": ("cloudpickle", "cloudpickle"),
        _FOUND: (_FOUND, _FOUND),
        _DURABLE: (_DURABLE, _DURABLE),
        _KEPT: (_KEPT, _KEPT),
        _REPLACED: (_REPLACED, _REPLACED),
    }
    subjects = {
        name: Job("round_trip", {"saver": saver, "loader": loader, "times": 11}, cache="warm")
        for name, (saver, loader) in pairs.items()
    }
    goals = at_limits(
        (_FOUND, _DURABLE, _KEPT, _REPLACED),
        *(
            no_more(metric, "torch.package", 1, ours)
            for metric in ("first", "later")
            for ours in ("modpack", "modpack.save and load")
        ),
    )
    finding = subjects[_FOUND]  # what is known is known from here
    title = "save and load a model of 1 MB"
    return Row("round-trip", title, (finding,), subjects, goals)
