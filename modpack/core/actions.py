"""What can happen to a module when a package is made."""

from __future__ import annotations

from enum import Enum

__all__ = ["Action", "Owner"]


class Action(str, Enum):
    """The decision about one module."""

    INTERN = "intern"
    """Take its source along."""
    EXTERN = "extern"
    """Import it from where the package is loaded."""
    MOCK = "mock"
    """Replace it by a stand-in that fails when it is really used."""
    DENY = "deny"
    """Refuse to make a package that needs it."""

    @property
    def past(self) -> str:
        """The participle, for sentences: ``interned``, ``externed``, ``mocked``, ``denied``."""
        return {"intern": "interned", "extern": "externed", "mock": "mocked", "deny": "denied"}[
            self.value
        ]


class Owner(str, Enum):
    """Who is responsible for a module in the environment that exports it."""

    STDLIB = "stdlib"
    """Python itself."""
    RUNTIME = "runtime"
    """torch and modpack: whatever loads a package has them."""
    INSTALLED = "installed"
    """An installed distribution that is not an editable install."""
    BOUND = "bound"
    """An installed distribution that a policy leaves where it is: it has compiled code, or
    something that stays there requires it."""
    LOCAL = "local"
    """Nobody else: the user's own code, editable installs, loose files."""
