"""A whole cluster in virtual time, with the policies and the twin that serve real requests."""

from foretell.sim.cluster import check_fits, simulate
from foretell.sim.config import (
    ClusterConfig,
    Fault,
    FaultKind,
    Provisioning,
    SimInstanceConfig,
    true_length,
)
from foretell.sim.instance import InvariantError
from foretell.sim.report import FleetSize, Report, ServedRequest

__all__ = [
    "ClusterConfig",
    "Fault",
    "FaultKind",
    "FleetSize",
    "SimInstanceConfig",
    "InvariantError",
    "Provisioning",
    "Report",
    "ServedRequest",
    "check_fits",
    "simulate",
    "true_length",
]
