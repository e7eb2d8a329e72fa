"""A whole cluster in virtual time, running the very same policies and twin."""

from foretell.sim.cluster import ClusterConfig, simulate, true_length
from foretell.sim.instance import InvariantError
from foretell.sim.report import Report, Served

__all__ = ["ClusterConfig", "InvariantError", "Report", "Served", "simulate", "true_length"]
