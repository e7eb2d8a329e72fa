"""Externality: the least delay in all, to the newcomer and to everyone already there."""

from collections.abc import Sequence
from math import isnan
from typing import ClassVar

from foretell.model import Prediction, RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.trust import trusted

PATIENCE_S = 1.0
"""A wait for the first token of so long weighs twice what its seconds say."""


class ExternalityPolicy:
    """`ttft_s * (1 + ttft_s / PATIENCE_S) + added_ttft_s + added_e2e_s`, in seconds.

    What a newcomer adds to the latencies of others is theirs to bear (an *externality*, as
    economists call a cost that another one pays); whoever is placed elsewhere adds nothing here.
    So by `e2e_s + added_e2e_s` the least choice would leave the cluster with the least sum of e2e
    latencies, given all placements so far and as if nobody came any more.

    Somebody comes, though, and a sum does not mind who bears it. Queueing behind a full engine
    costs those who are there nothing, so the least sum buries a few requests there. Therefore the
    newcomer's wait weighs more the longer it is; its own decoding does not count.

    What each part is worth is measured by `bench.placement.policies`.
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
    added_s = others_delay_s(prediction)
    if added_s is None or isnan(added_s):
        return None
    return max(0.0, prediction.ttft_s * (1.0 + prediction.ttft_s / PATIENCE_S) + added_s)


def others_delay_s(prediction: Prediction) -> float | None:
    """What the newcomer adds to the others' TTFT and e2e latencies; None where nobody asked."""
    if prediction.added_ttft_s is None or prediction.added_e2e_s is None:
        return None
    return prediction.added_ttft_s + prediction.added_e2e_s
