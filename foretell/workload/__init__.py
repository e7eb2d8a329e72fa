"""Seeded request streams: arrival times, lengths, and both together."""

from foretell.workload.arrivals import gamma, poisson
from foretell.workload.draws import Draws
from foretell.workload.lengths import EmpiricalLengths, Lengths, LogNormal, LogNormalLengths
from foretell.workload.stream import Arrival, stream

__all__ = [
    "Arrival",
    "Draws",
    "EmpiricalLengths",
    "Lengths",
    "LogNormal",
    "LogNormalLengths",
    "gamma",
    "poisson",
    "stream",
]
