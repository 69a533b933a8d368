"""What became of every hook: captured, traveling natively, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modpack.core.hookspec import CallableSpec, HookSpec
from modpack.hooks.collect import HANDLE, UnsavedHook
from modpack.hooks.describe import ObjectPaths, name_of
from modpack.hooks.kinds import kinds_of


@dataclass(frozen=True)
class HookStatus:
    """What became of one hook.

    Attributes:
        name: the hook's name.
        status: ``captured``, ``travels natively``, ``left out``, ``unsupported``, or
            ``unwrapped`` for a wrapper of which only the module inside is saved.
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


def captured(spec: HookSpec, emptied: tuple[str, ...] = ()) -> HookStatus:
    """The status of a hook that is in the package.

    Args:
        spec: the hook.
        emptied: what of its state was left behind.
    """
    ways = {
        "reference": f"{spec.callable.name} is imported by its name",
        "source": f"the source of {spec.callable.name} is in the package",
        "object": f"{spec.callable.name} is pickled with its state",
    }
    why = ways[spec.callable.by] + (f", emptied: {', '.join(emptied)}" if emptied else "")
    return HookStatus(spec.name, "captured", why, spec)


def left_out(spec: HookSpec) -> HookStatus:
    """The status of a hook that the user did not want in the package."""
    return HookStatus(spec.name, "left out", "the hooks argument does not name it")


def native(name: str, hook: object) -> HookStatus:
    """The status of a hook that belongs to one of torch's utilities."""
    why = f"{name_of(hook)} is part of its module's state"
    return HookStatus(name, "travels natively", why)


def missed(spec: HookSpec) -> HookStatus:
    """The status of a hook on a part that the object's class does not give to pickle."""
    return HookStatus(
        spec.name,
        "unsupported",
        "the class of what it hangs on, or of what holds that, rebuilds its parts when it is "
        "loaded, without their hooks. Remedy: register it again after loading",
        spec,
    )


def lost(hook: UnsavedHook, target: tuple[str, ...], called: CallableSpec) -> HookStatus:
    """The status of a hook that cannot be saved.

    Args:
        hook: the hook.
        target: the paths of what leads to it.
        called: what it calls.
    """
    path = "+".join(target)
    shown = f"{called.name} ({called.place})" if called.place else called.name
    if hook.kind == HANDLE:
        why = (
            f"the handle removes {shown}, which hangs on nothing that is saved. Remedy: save what "
            "it hangs on with the model, or register it again after loading"
        )
        return HookStatus(path, "left out", why)
    place = f"the node {hook.node} of a graph" if hook.node else "a graph"
    why = (
        f"{shown} hangs on {place}, which is not saved. Remedy: attach it to the module that makes "
        f"the output: modpack.hooks.attach(model, modpack.hooks.{_ATTACHED[hook.kind]})"
    )
    return HookStatus(f"{path}/{hook.kind}", "left out", why)


_ATTACHED = {
    "tensor": "OutputGrad(path, hook)",
    "multi_grad": "MultiGrad(paths, hook)",
    "graph.node": "NodeHook(path, hook)",
    "graph.node_pre": "NodePreHook(path, hook)",
}


def unwrapped(wrapper: object) -> HookStatus:
    """The status of a wrapper that is not saved."""
    why = "the module inside is saved; modpack.hooks.restore_comm_hook takes a new wrapper"
    return HookStatus(type(wrapper).__name__, "unwrapped", why)


def process_wide() -> Iterator[HookStatus]:
    """The status of the hooks of the whole process, if they were not asked for."""
    for kind in kinds_of("global"):
        for position, _ in enumerate(kind.find(kind.home)):
            why = "it belongs to the whole process; global_hooks=True captures it"
            yield HookStatus(ObjectPaths.hook_name((), kind.name, position), "left out", why)
