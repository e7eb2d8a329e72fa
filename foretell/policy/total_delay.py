"""Total delay: what placing a request costs in latency, to itself and to everyone already there."""

from collections.abc import Sequence
from math import isnan

from foretell.model import Prediction
from foretell.policy.base import Candidate
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.trust import trusted

PATIENCE_S = 1.0
"""A wait of this length for the first token weighs twice what its seconds say."""


def least_delay(candidates: Sequence[Candidate], draw: float) -> str:
    """The `instance_id` of the candidate with the least `total_delay_s`; `draw` breaks ties."""
    prediction_of = trusted(candidates)

    def delay_s(candidate: Candidate) -> float | None:
        answer = prediction_of(candidate)
        return None if answer is None else total_delay_s(answer)

    return pick_lowest_known(candidates, delay_s, draw)


def total_delay_s(prediction: Prediction) -> float | None:
    """`ttft_s * (1 + ttft_s / PATIENCE_S) + added_ttft_s + added_e2e_s`, in seconds.

    What a request adds to the latencies of others is theirs to bear (an *externality*, as
    economists call a cost that another one pays); whoever is placed elsewhere adds nothing here.
    So by `e2e_s + added_e2e_s` the least choice would leave the cluster with the least sum of
    end-to-end latencies, given all placements so far and as if no further request came.

    Requests do come, though, and a sum does not mind who bears it. Queueing behind a full engine
    costs those who are there nothing, so the least sum buries a few requests there. Therefore the
    request's own wait weighs more the longer it is; its own decoding does not count. What each
    part is worth is measured by `bench.placement.parts`.

    Never below 0, even where the request helps others by more than it costs. None: the delay of
    the others is unknown.
    """
    added_s = others_delay_s(prediction)
    if added_s is None or isnan(added_s):
        return None
    return max(0.0, prediction.ttft_s * (1.0 + prediction.ttft_s / PATIENCE_S) + added_s)


def others_delay_s(prediction: Prediction) -> float | None:
    """Seconds added to the TTFT and end-to-end latency of others; None where nobody asked."""
    if prediction.added_ttft_s is None or prediction.added_e2e_s is None:
        return None
    return prediction.added_ttft_s + prediction.added_e2e_s
