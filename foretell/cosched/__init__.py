"""Online and offline requests on one engine, by Echo (`Echo: Efficient Co-Scheduling of Hybrid
Online-Offline Tasks for Large Language Model Serving`, arXiv 2504.03651).

Pure parts with the paper's names: `deadlines` (slack), `plan` (how much offline work a step takes),
`pool` (waiting offline requests: length buckets with a radix tree each, candidates), `selector`
(benefit and punishment), `online` (who is expected, and memory kept for bursts). vLLM's scheduler
with them is in `foretell.services.backend.vllm.cosched`. `plan` is not imported here: who only
reads what a request is needs no numpy.
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
