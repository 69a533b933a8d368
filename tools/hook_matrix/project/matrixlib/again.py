"""Classes that register hooks when they are loaded."""

from __future__ import annotations

import torch

REGISTER = {
    "forward_pre": lambda m, hook: m.register_forward_pre_hook(hook),
    "forward": lambda m, hook: m.register_forward_hook(hook),
    "full_backward_pre": lambda m, hook: m.register_full_backward_pre_hook(hook),
    "full_backward": lambda m, hook: m.register_full_backward_hook(hook),
    "state_dict_pre": lambda m, hook: m.register_state_dict_pre_hook(hook),
    "load_state_dict_post": lambda m, hook: m.register_load_state_dict_post_hook(hook),
    "tensor": lambda m, hook: m.weight.register_hook(hook),
    "post_accumulate_grad": lambda m, hook: m.weight.register_post_accumulate_grad_hook(hook),
    "multi_grad": lambda m, hook: torch.autograd.graph.register_multi_grad_hook(
        [m.weight, m.bias], hook
    ),
}


class Again(torch.nn.Linear):
    """A layer with a hook, which it registers again or to which it adds one when it is loaded.

    Args:
        kind: The kind of hook.
        adds: Whether it adds a hook, instead of registering its own again.
    """

    def __init__(self, kind: str, adds: bool) -> None:
        super().__init__(1, 1)
        self.kind, self.adds, self.log = kind, adds, []
        self.register("own")

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        if not self.adds:
            for name, table in vars(self).items():
                if name.endswith("_hooks"):
                    table.clear()
        self.register("added" if self.adds else "own")

    def register(self, name: str) -> None:
        """Register a hook that logs a name."""
        log = self.log

        def hook(*args: object, **kwargs: object) -> None:
            log.append(name)

        self.handle = REGISTER[self.kind](self, hook)

    def observe(self) -> list[str]:
        """Return the hooks that run in a step, and when the state is saved and loaded."""
        self.log.clear()
        self(torch.ones(1, 1, requires_grad=True)).sum().backward()
        self.load_state_dict(self.state_dict())
        return list(self.log)
