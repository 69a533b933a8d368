"""What an exporter is told about modules: rules, policies, and hooks that hear of matches."""

from __future__ import annotations

from typing import Any

from modpack.core.actions import Action
from modpack.core.arguments import require_type
from modpack.core.globs import GlobGroup, GlobPattern
from modpack.core.rules import Rule
from modpack.exporter.workplace import Workplace
from modpack.planning.hooks import Match, MatchHook, require_hook
from modpack.planning.presets import asks_for_bound, preset_rules

__all__ = ["ExporterRules"]


class ExporterRules(Workplace):
    """The part of an exporter that is told what becomes of modules."""

    # -- rules -------------------------------------------------------------------------------

    def intern(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Take the source of matching modules along.

        Args:
            include: module path patterns: ``*`` within one component, ``**`` across.
            exclude: patterns for modules that do not match after all.
            allow_empty: if False, closing raises when no module matched.

        Raises:
            TypeError, ValueError: a pattern is none.
        """
        self._add_rule(Action.INTERN, include, exclude, allow_empty)

    def extern(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Import matching modules from where the package is loaded; see :meth:`intern`."""
        self._add_rule(Action.EXTERN, include, exclude, allow_empty)

    def mock(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Replace matching modules by stand-ins that fail when really used; see :meth:`intern`."""
        self._add_rule(Action.MOCK, include, exclude, allow_empty)

    def deny(
        self, include: GlobPattern, *, exclude: GlobPattern = (), allow_empty: bool = True
    ) -> None:
        """Refuse to write a package that needs matching modules; see :meth:`intern`."""
        self._add_rule(Action.DENY, include, exclude, allow_empty)

    def use_policy(self, policy: str, *, intern_native: bool = False) -> None:
        """Add a policy's rules behind all rules of one's own.

        Args:
            policy: ``"pinned"``: installed distributions are extern, all other code is
                interned; ``"hermetic"``: pure-Python distributions are interned too, so that
                only torch and what has compiled code must be installed where the package is
                loaded; ``"none"``: no rules.
            intern_native: whether hermetic takes compiled modules along as well. The package
                then loads on the same platform and Python only.

        Raises:
            ValueError: there is no such policy.
        """
        self._check_open()
        require_type(policy, str, "policy", "a policy's name")
        require_type(intern_native, bool, "intern_native", "a bool")
        rules = preset_rules(policy)
        self._planner.native = intern_native
        staying = self._ownership.portability(intern_native) if asks_for_bound(rules) else None
        self._planner.use_presets(rules, staying)

    # -- hooks -------------------------------------------------------------------------------

    def register_intern_hook(self, hook: MatchHook) -> Any:
        """Call a hook for each module that matches an intern rule, when it is decided.

        Args:
            hook: ``hook(exporter, module_name)``. Returning None keeps the decision, returning
                a :class:`modpack.Action` overrides it, raising refuses the module, which is
                reported with all other problems.

        Returns:
            A :class:`torch.utils.hooks.RemovableHandle`.

        Raises:
            TypeError: the hook cannot be called like that.
        """
        return self._register(Action.INTERN, hook)

    def register_extern_hook(self, hook: MatchHook) -> Any:
        """Like :meth:`register_intern_hook`, for extern rules, implicit ones included."""
        return self._register(Action.EXTERN, hook)

    def register_mock_hook(self, hook: MatchHook) -> Any:
        """Like :meth:`register_intern_hook`, for mock rules."""
        return self._register(Action.MOCK, hook)

    def register_deny_hook(self, hook: MatchHook) -> Any:
        """Like :meth:`register_intern_hook`, for deny rules."""
        return self._register(Action.DENY, hook)

    @property
    def current_match(self) -> Match | None:
        """From inside a hook: the module, the rule that matched, and who imports it."""
        return self._planner.hooks.current

    def _add_rule(
        self, action: Action, include: GlobPattern, exclude: GlobPattern, allow_empty: bool
    ) -> None:
        self._check_open()
        require_type(allow_empty, bool, "allow_empty", "a bool")
        pattern = GlobGroup(include, exclude=exclude)
        self._planner.add_rule(Rule(action, pattern, allow_empty))

    def _register(self, action: Action, hook: MatchHook) -> Any:
        from torch.utils.hooks import RemovableHandle

        self._check_open()
        require_hook(hook)
        hooks = self._planner.hooks.by_action[action]
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle
