"""Policies as JSON, for another process of the same modpack; what users write is TOML."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from modpack.core.jsonvalues import as_list, as_mapping, as_text, as_truth
from modpack.core.planjson import Json
from modpack.core.trust import Signer, TrustPolicy
from modpack.errors import ModpackWarning

__all__ = ["policy_from_json", "policy_to_json"]


def policy_to_json(policy: TrustPolicy) -> dict[str, Json]:
    """A policy as JSON.

    >>> policy = TrustPolicy(externs="numpy.**", native=False)
    >>> policy_from_json(policy_to_json(policy)) == policy
    True
    """
    return {
        "allow_code": policy.allow_code,
        "externs": _listed(policy.externs),
        "standard_library": _listed(policy.standard_library),
        "pickle_globals": list(policy.pickle_globals),
        "hook_kinds": _listed(policy.hook_kinds),
        "signers": [[signer.name, signer.public_key] for signer in policy.signers],
        "native": policy.native,
        "verify": policy.verify,
    }


def policy_from_json(record: Json) -> TrustPolicy:
    """Read back what :func:`policy_to_json` gave.

    Raises:
        TypeError, ValueError, KeyError: it is something else.
    """
    fields = as_mapping(record, "a policy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModpackWarning)  # whoever made the policy was warned
        return _policy(fields)


def _policy(fields: Mapping[str, Json]) -> TrustPolicy:
    signers = (as_list(each, "a signer") for each in as_list(fields["signers"], "signers"))
    return TrustPolicy(
        allow_code=as_truth(fields["allow_code"], "allow_code"),
        externs=_patterns(fields["externs"]),
        standard_library=_patterns(fields["standard_library"]),
        pickle_globals=_patterns(fields["pickle_globals"]) or (),
        hook_kinds=_patterns(fields["hook_kinds"]),
        signers=tuple(
            Signer(as_text(name, "a name"), as_text(key, "a key")) for name, key in signers
        ),
        native=as_truth(fields["native"], "native"),
        verify=as_text(fields["verify"], "verify"),
    )


def _listed(patterns: Sequence[str] | None) -> list[Json] | None:
    return None if patterns is None else list(patterns)


def _patterns(value: Json) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(as_text(each, "a pattern") for each in as_list(value, "patterns"))
