"""Figure 5 of the Block paper: a random scheduler sends one request of a hundred to all instances.

The instance with the least predicted latency is then compared with the one that was the fastest.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import ClassVar

from bench.placement.simulated import simulated
from bench.report import Numbers
from foretell.model import RequestSpec
from foretell.policy import Candidate, Needs, make_policy
from foretell.sim import ServedRequest
from foretell.tools.simulate.options import SimulateOptions
from foretell.tools.simulate.run import relative_errors
from foretell.workload import Arrival

SAMPLED = 0.01
RIVAL = "llumnix_minus"


class Broadcast:
    """Chooses at random, but places each copy of a request on a different instance.

    The copies of request `r7` are `r7@0`, `r7@1` and so on.
    """

    name: ClassVar[str] = "broadcast"
    needs: ClassVar[Needs] = Needs.PREDICTION
    late_binding = False

    def __init__(self) -> None:
        self._rival = make_policy(RIVAL)
        self.by_rival: dict[str, str] = {}
        """Where `RIVAL` would have sent a request that has copies."""

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        name, _, copy = request.request_id.partition("@")
        if copy == "0":
            self.by_rival[name] = self._rival.choose(request, candidates, draw)
        return candidates[int(copy) if copy else int(draw * len(candidates))].instance_id


def broadcast(options: SimulateOptions, arrivals: Sequence[Arrival], seed: int) -> Numbers:
    """The errors of predictions; and, for the instance with the least predicted e2e latency and for
    that of `RIVAL`, how often it was the fastest, and how much longer than that one it took."""
    draws, sent = Random(f"{seed} sample"), []
    for each in arrivals:
        copies = range(options.engines[0].instances if draws.random() < SAMPLED else 0)
        sent += [replace(each, request_id=f"{each.request_id}@{n}") for n in copies] or [each]
    policy = Broadcast()
    report = simulated(options, sent, seed, policy=policy, foretell_every=0)
    copies_of: dict[str, dict[str, ServedRequest]] = defaultdict(dict)
    for served in report.served:
        name, _, copy = served.request_id.partition("@")
        if copy:
            copies_of[name][served.instance_id] = served
    found = relative_errors(report.served)
    predicted = {name: min(each.values(), key=_predicted_s) for name, each in copies_of.items()}
    rivals = {name: each[policy.by_rival[name]] for name, each in copies_of.items()}
    least_s = {name: min(one.e2e_s for one in each.values()) for name, each in copies_of.items()}
    for who, chosen in (("predicted_latency", predicted), (RIVAL, rivals)):
        over = [one.e2e_s / least_s[name] - 1 for name, one in chosen.items()]
        found[f"best {who}"] = round(over.count(0.0) / len(over), 5)
        found[f"over {who}"] = round(fmean(over), 5)
    return found


def _predicted_s(served: ServedRequest) -> float:
    assert served.predicted is not None
    return served.predicted.e2e_s
