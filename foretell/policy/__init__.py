"""Placement policies: one per file, found here by name.

Operators choose one of `POLICIES`; `foretell.policy.baselines` has those for comparison.
"""

from foretell.policy.base import Candidate, Needs, Policy, Urgency
from foretell.policy.baselines import BASELINES
from foretell.policy.discovery import check_parameters, policies_in

__all__ = ["POLICIES", "Candidate", "Needs", "Policy", "Urgency", "make_policy"]

_found = policies_in(__name__, __path__)
POLICIES = {name: policy for name, policy in _found.items() if name not in BASELINES}


def make_policy(name: str, **parameters: object) -> Policy:
    """Create a policy, one of `POLICIES` or `BASELINES`.

    `parameters` are the keyword-only arguments of its constructor. Raises ValueError for an unknown
    policy or parameter, with a list of the known ones, and for a value out of range.
    """
    policy = POLICIES.get(name) or BASELINES.get(name)
    if policy is None:
        raise ValueError(
            f"unknown policy {name!r}; choose one of {', '.join(POLICIES)}, "
            f"or for comparison one of {', '.join(BASELINES)}"
        )
    check_parameters(f"policy {name!r}", policy, parameters)
    return policy(**parameters)
