"""How many instances there should be: strategies, and the core that applies what they propose.

The strategies themselves are in `foretell.provision.strategies`, which needs numpy.
"""

from foretell.provision.base import Proposal, Strategy, StrategyPlan
from foretell.provision.config import ProvisionConfig
from foretell.provision.core import Because, ProvisionDecision, Provisioner
from foretell.provision.facts import Facts, InstanceFacts, InstancePhase

__all__ = [
    "Because",
    "ProvisionDecision",
    "Facts",
    "InstanceFacts",
    "InstancePhase",
    "StrategyPlan",
    "Proposal",
    "ProvisionConfig",
    "Provisioner",
    "Strategy",
]
