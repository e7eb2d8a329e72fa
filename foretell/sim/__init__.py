"""A whole cluster in virtual time, running the very same policies and twin."""

from foretell.sim.cluster import check_fits, simulate
from foretell.sim.config import ClusterConfig, Fault, FaultKind, InstanceConfig, true_length
from foretell.sim.instance import InvariantError
from foretell.sim.report import Report, Served

__all__ = [
    "ClusterConfig",
    "Fault",
    "FaultKind",
    "InstanceConfig",
    "InvariantError",
    "Report",
    "Served",
    "check_fits",
    "simulate",
    "true_length",
]
