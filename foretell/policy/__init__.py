"""Where a request goes: one policy per file, found here by its name.

`POLICIES` are those that operators choose from; `foretell.policy.baselines` has those of the
laboratory.
"""

from foretell.policy.base import Candidate, Needs, Policy, Urgency
from foretell.policy.baselines import BASELINES
from foretell.policy.discovery import check_parameters, policies_in

__all__ = ["POLICIES", "Candidate", "Needs", "Policy", "Urgency", "make_policy"]

_found = policies_in(__name__, __path__)
POLICIES = {name: policy for name, policy in _found.items() if name not in BASELINES}


def make_policy(name: str, **parameters: object) -> Policy:
    """A fresh policy, one of `POLICIES` or of the laboratory's `BASELINES`.

    `parameters` are the keyword-only arguments of its constructor. Raises ValueError that lists
    what there is if there is no such policy or parameter, or if a value is out of range.
    """
    policy = POLICIES.get(name) or BASELINES.get(name)
    if policy is None:
        raise ValueError(
            f"unknown policy {name!r}; choose one of {', '.join(POLICIES)}, "
            f"or for comparison one of {', '.join(BASELINES)}"
        )
    check_parameters(f"policy {name!r}", policy, parameters)
    return policy(**parameters)
