"""Co-scheduling: online and offline requests on one engine, by Echo (`Echo: Efficient Co-Scheduling
of Hybrid Online-Offline Tasks for Large Language Model Serving`, arXiv 2504.03651).

Pure parts with the paper's names: `deadlines` (slack), `plan` (how much offline work a step takes),
`pool` (waiting offline requests: length buckets with a radix tree each, candidates), `selector`
(benefit and punishment), `online` (expected online requests, and memory reserved for bursts).
`foretell.services.backend.vllm.cosched` is vLLM's scheduler with them. `plan` is not imported here,
so that the class of a request can be read without numpy.
"""

from foretell.cosched.deadlines import JobClass, Targets, job_of
from foretell.cosched.online import BurstReserve, ExpectedOnline, OnlineWatch
from foretell.cosched.pool import OfflineCandidate, OfflinePool
from foretell.cosched.selector import Offer, best_of

__all__ = [
    "BurstReserve",
    "ExpectedOnline",
    "JobClass",
    "OfflineCandidate",
    "Offer",
    "OfflinePool",
    "OnlineWatch",
    "Targets",
    "best_of",
    "job_of",
]
