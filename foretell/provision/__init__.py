"""How many instances there should be: strategies, and the core that applies what they propose."""

from foretell.provision.base import Plan, Proposal, Strategy
from foretell.provision.config import ProvisionConfig, ScheduledBounds
from foretell.provision.core import Because, Decision, Provisioner
from foretell.provision.facts import Facts, InstanceFacts, Phase
from foretell.provision.strategies import STRATEGIES, make_strategy

__all__ = [
    "STRATEGIES",
    "Because",
    "Decision",
    "Facts",
    "InstanceFacts",
    "Phase",
    "Plan",
    "Proposal",
    "ProvisionConfig",
    "Provisioner",
    "ScheduledBounds",
    "Strategy",
    "make_strategy",
]
