"""Where a request goes: one policy per file, found here by its name."""

from foretell.policy.base import Candidate, Holding, Needs, Policy, Urgency
from foretell.policy.externality import ExternalityPolicy
from foretell.policy.foreseen import ForeseenPolicy
from foretell.policy.infaas import InfaasPolicy
from foretell.policy.late_binding import LateBindingPolicy
from foretell.policy.least_outstanding import LeastOutstandingPolicy
from foretell.policy.llumnix_minus import LlumnixMinusPolicy
from foretell.policy.min_qpm import MinQpmPolicy
from foretell.policy.predicted_latency import PredictedLatencyPolicy
from foretell.policy.random_choice import RandomPolicy
from foretell.policy.round_robin import RoundRobinPolicy
from foretell.policy.slo import SloPolicy

__all__ = ["POLICIES", "Candidate", "Holding", "Needs", "Policy", "Urgency", "make_policy"]

_ALL: tuple[type[Policy], ...] = (
    RandomPolicy,
    RoundRobinPolicy,
    LeastOutstandingPolicy,
    MinQpmPolicy,
    InfaasPolicy,
    LlumnixMinusPolicy,
    PredictedLatencyPolicy,
    ExternalityPolicy,
    LateBindingPolicy,
    ForeseenPolicy,
    SloPolicy,
)

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in _ALL}


def make_policy(name: str) -> Policy:
    """A fresh policy of that name. Raises ValueError that lists the names if there is none."""
    try:
        return POLICIES[name]()
    except KeyError:
        known = ", ".join(POLICIES)
        raise ValueError(f"unknown policy {name!r}; known: {known}") from None
