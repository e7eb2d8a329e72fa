"""Externality: the least total delay, to the newcomer and to everyone already there."""

from collections.abc import Sequence
from math import isnan
from typing import ClassVar

from foretell.model import Prediction, RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.trust import trusted


class ExternalityPolicy:
    """`e2e_s + added_e2e_s`: seconds by which the sum of all requests' e2e latencies grows.

    The newcomer's own latency and what it adds to those of the others (their *externality*, as
    economists call a cost that another one pays) weigh the same. Whoever is placed elsewhere adds
    nothing here, so the choice with the least growth is the one that leaves the cluster with the
    least sum of latencies, given all placements so far and as if nobody came any more.
    """

    name: ClassVar[str] = "externality"
    needs: ClassVar[Needs] = Needs.EXTERNALITY

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate that adds the least delay in all."""
        prediction_of = trusted(candidates)

        def delay_s(candidate: Candidate) -> float | None:
            answer = prediction_of(candidate)
            return None if answer is None else total_delay_s(answer)

        return pick_lowest_known(candidates, delay_s, draw)


def total_delay_s(prediction: Prediction) -> float | None:
    """Not below 0, even where the newcomer helps others by more; None: the others' is unknown."""
    added_s = prediction.added_e2e_s
    if added_s is None or isnan(added_s):
        return None
    return max(0.0, prediction.e2e_s + added_s)
