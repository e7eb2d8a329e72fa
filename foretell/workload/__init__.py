"""Seeded request streams: arrival times, lengths, and both together."""

from foretell.workload.arrivals import Draws, gamma, poisson
from foretell.workload.estimates import noisy_length, residual_length, stated_length
from foretell.workload.lengths import EmpiricalLengths, LengthSampler, LogNormal, LogNormalLengths
from foretell.workload.request_log import parse_request_log
from foretell.workload.sessions import Conversations, conversations
from foretell.workload.stream import Arrival, stream
from foretell.workload.traces import Trace, arrivals_of, parse_csv, parse_mooncake

__all__ = [
    "Arrival",
    "Conversations",
    "Draws",
    "EmpiricalLengths",
    "LengthSampler",
    "LogNormal",
    "LogNormalLengths",
    "Trace",
    "arrivals_of",
    "conversations",
    "gamma",
    "noisy_length",
    "parse_csv",
    "parse_mooncake",
    "parse_request_log",
    "poisson",
    "residual_length",
    "stream",
    "stated_length",
]
