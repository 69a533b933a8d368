"""What became of every hook: captured, travelling natively, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modpack.core.hookspec import HookSpec

__all__ = ["HookReport", "HookStatus"]


@dataclass(frozen=True)
class HookStatus:
    """What became of one hook.

    Attributes:
        name: the hook's name.
        status: ``captured``, ``travels natively`` or ``left out``.
        why: the reason, in a sentence.
        spec: its spec, if it is captured.
    """

    name: str
    status: str
    why: str
    spec: HookSpec | None = None


@dataclass(frozen=True)
class HookReport:
    """Every hook that was met while objects were saved. Printing it shows a line for each."""

    hooks: tuple[HookStatus, ...] = ()

    def __iter__(self) -> Iterator[HookStatus]:
        return iter(self.hooks)

    def __len__(self) -> int:
        return len(self.hooks)

    def __str__(self) -> str:
        if not self.hooks:
            return "no hooks"
        width = max(len(hook.name) for hook in self.hooks)
        return "\n".join(f"{h.name:<{width}}  {h.status}: {h.why}" for h in self.hooks)


def captured(spec: HookSpec) -> HookStatus:
    """The status of a hook that is in the package."""
    ways = {
        "reference": f"{spec.callable.name} is imported by its name",
        "source": f"the source of {spec.callable.name} is in the package",
        "object": f"{spec.callable.name} is pickled with its state",
    }
    return HookStatus(spec.name, "captured", ways[spec.callable.by], spec)


def left_out(spec: HookSpec) -> HookStatus:
    """The status of a hook that the user did not want in the package."""
    return HookStatus(spec.name, "left out", "the hooks argument does not name it")


def native(name: str, hook: object) -> HookStatus:
    """The status of a hook that belongs to one of torch's utilities."""
    kind = f"{type(hook).__module__}.{type(hook).__qualname__}"
    return HookStatus(name, "travels natively", f"{kind} is part of its module's state")
