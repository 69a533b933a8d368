"""What the demo promises, held against what it found out."""

from __future__ import annotations

from modpack.core.actions import Action
from modpack.demo.facts import Check, Observation, Packaged, Reloaded

__all__ = ["GOOD_ENOUGH", "compare"]

GOOD_ENOUGH = 0.95
"""The share of test images that a model worth packaging reads right."""

CLIPPED_AT = 0.0625
"""Where the sample project clips its gradients."""


def compare(trained: Observation, packaged: Packaged, reloaded: Reloaded) -> tuple[Check, ...]:
    """Hold each promise against the facts.

    Args:
        trained: what the model did before the export.
        packaged: what went into the package.
        reloaded: what the clean interpreter reported.
    """
    again = reloaded.observed
    return (
        Check(
            f"the model reads more than {GOOD_ENOUGH:.0%} of the test images right",
            again.accuracy > GOOD_ENOUGH,
            f"{again.accuracy:.1%} of {again.images}",
        ),
        Check(
            "the project cannot be imported where the model was reloaded",
            set(reloaded.unknown) == _project_roots(packaged),
            f"unknown there: {', '.join(reloaded.unknown) or 'nothing'}",
        ),
        Check(
            "predictions are bit-identical",
            again.logits == trained.logits,
            _same(again.logits, trained.logits, "sha256 of the logits"),
        ),
        Check(
            "the hooks fire, and collect the same",
            _hooks(again) == _hooks(trained) and _all_fired(again),
            again.hooks,
        ),
        Check(
            "the gradients are clipped, and bit-identical",
            again.gradients == trained.gradients and again.largest_gradient <= CLIPPED_AT,
            f"largest {again.largest_gradient:.3f}, "
            + _same(again.gradients, trained.gradients, "sha256"),
        ),
        Check(
            "the mock fails only when it is used",
            bool(reloaded.mocked),
            reloaded.mocked or "it did not fail",
        ),
        Check(
            "each module was announced to its match hook, once",
            sorted(packaged.hook_calls) == sorted((f.action, f.module) for f in packaged.modules),
            f"{len(packaged.hook_calls)} calls for {len(packaged.modules)} modules",
        ),
    )


def _project_roots(packaged: Packaged) -> set[str]:
    return {
        fact.module.partition(".")[0]
        for fact in packaged.modules
        if fact.action in (Action.INTERN, Action.MOCK)
    }


def _hooks(observed: Observation) -> tuple[int, int, str, str]:
    return (
        observed.normalise_calls,
        observed.feature_map_calls,
        observed.feature_maps,
        observed.refusal,
    )


def _all_fired(observed: Observation) -> bool:
    return bool(observed.normalise_calls and observed.feature_map_calls and observed.refusal)


def _same(found: str, expected: str, what: str) -> str:
    if found == expected:
        return f"{what}: {found[:16]}..."
    return f"{what}: {found[:16]}..., was {expected[:16]}..."
