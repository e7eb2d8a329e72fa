"""A whole cluster in virtual time, with the policies and the twin that serve real requests."""

from foretell.sim.cluster import check_fits, simulate
from foretell.sim.config import (
    ClusterConfig,
    Fault,
    FaultKind,
    InstanceConfig,
    Provisioning,
    true_length,
)
from foretell.sim.instance import InvariantError
from foretell.sim.report import FleetSize, Report, Served

__all__ = [
    "ClusterConfig",
    "Fault",
    "FaultKind",
    "FleetSize",
    "InstanceConfig",
    "InvariantError",
    "Provisioning",
    "Report",
    "Served",
    "check_fits",
    "simulate",
    "true_length",
]
