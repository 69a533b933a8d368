"""The status of every hook: captured, native, left out, unsupported, or unwrapped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modpack.capturing.collect import HANDLE, UnsavedHook
from modpack.capturing.describe import ObjectPaths, callable_name
from modpack.core.hookspec import CallableSpec, HookSpec
from modpack.errors import with_hint
from modpack.hooks.kinds import kinds_of


@dataclass(frozen=True)
class HookStatus:
    """The status of one hook.

    Attributes:
        name: The hook's name.
        status: ``captured``, ``native`` for a hook that is part of its module's state,
            ``left out``, ``unsupported``, or ``unwrapped`` for a wrapper of which only the module
            inside is saved.
        why: The reason, as a clause.
        spec: Its spec, if it is captured or unsupported.
        hint: How to fix it, in complete sentences. Empty if there is nothing to fix.
    """

    name: str
    status: str
    why: str
    spec: HookSpec | None = None
    hint: str = ""

    @property
    def text(self) -> str:
        """The reason, followed by the hint."""
        return with_hint(self.why, self.hint)


@dataclass(frozen=True)
class HookReport:
    """All hooks found while objects were saved. Its text has one line for each."""

    hooks: tuple[HookStatus, ...] = ()

    def __iter__(self) -> Iterator[HookStatus]:
        return iter(self.hooks)

    def __len__(self) -> int:
        return len(self.hooks)

    def __str__(self) -> str:
        if not self.hooks:
            return "no hooks"
        width = max(len(hook.name) for hook in self.hooks)
        return "\n".join(f"{h.name:<{width}}  {h.status}: {h.text}" for h in self.hooks)


def captured(spec: HookSpec) -> HookStatus:
    """Return the status of a hook that is in the package."""
    ways = {
        "reference": f"{spec.callable.name} is imported by its name",
        "source": f"the source of {spec.callable.name} is in the package",
        "object": f"{spec.callable.name} is pickled with its state",
    }
    return HookStatus(spec.name, "captured", ways[spec.callable.by], spec)


def left_out(spec: HookSpec) -> HookStatus:
    """Return the status of a hook that the user excluded."""
    return HookStatus(spec.name, "left out", "the hooks argument does not name it")


def native(name: str, hook: object) -> HookStatus:
    """Return the status of a hook that belongs to one of torch's utilities."""
    return HookStatus(name, "native", f"{callable_name(hook)} is part of its module's state")


def unvisited(spec: HookSpec) -> HookStatus:
    """Return the status of a hook on a part that the object's class does not pass to pickle."""
    return HookStatus(
        spec.name,
        "unsupported",
        "a class rebuilds the part that it is registered on when it is loaded, without hooks",
        spec,
        "Register it again after loading.",
    )


def unsaved(hook: UnsavedHook, target: tuple[str, ...], called: CallableSpec) -> HookStatus:
    """Return the status of a hook that cannot be saved.

    Args:
        hook: The hook.
        target: The paths of the objects that refer to it.
        called: A description of its callable.
    """
    path = "+".join(target)
    shown = f"{called.name} ({called.location})" if called.location else called.name
    if hook.kind == HANDLE:
        why = f"the handle removes {shown}, which is not registered on a saved object"
        hint = "Save its target with the model, or register it again after loading."
        return HookStatus(path, "left out", why, hint=hint)
    owner = f"node {hook.node} of a graph" if hook.node else "a graph"
    return HookStatus(
        f"{path}/{hook.kind}",
        "left out",
        f"{shown} is registered on {owner}, which is not saved",
        hint="Attach it to the module that produces the output: "
        f"modpack.hooks.attach(model, modpack.hooks.{_ATTACHED[hook.kind]}).",
    )


_ATTACHED = {
    "tensor": "OutputGrad(path, hook)",
    "multi_grad": "MultiGrad(paths, hook)",
    "graph.node": "NodeHook(path, hook)",
    "graph.node_pre": "NodePreHook(path, hook)",
}


def unwrapped(wrapper: object) -> HookStatus:
    """Return the status of a wrapper that is not saved."""
    why = "the module inside is saved; modpack.hooks.restore_comm_hook takes a new wrapper"
    return HookStatus(type(wrapper).__name__, "unwrapped", why)


def process_wide() -> Iterator[HookStatus]:
    """Yield the status of process-wide hooks if the user did not ask for them."""
    # They apply to all models of a process, so they are saved only on request.
    for kind in kinds_of("global"):
        for position, _ in enumerate(kind.find(kind.global_module)):
            why = "it belongs to the whole process; global_hooks=True captures it"
            yield HookStatus(ObjectPaths.hook_name((), kind.name, position), "left out", why)
