"""Total delay: what placing a request costs in latency, to itself and to everyone already there."""

from collections.abc import Sequence
from math import isfinite, isnan
from statistics import fmean

from foretell.model import Prediction
from foretell.policy.base import Candidate
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.trust import trusted

USUAL_PART = 0.1
"""A wait of this part of what requests usually take weighs four times what its seconds say; one
twice as long, nine times."""
_MEMORY = 50
"""Choices over which the usual latency is averaged."""


class TotalDelay:
    """Chooses the candidate with the least `total_delay_s`, and learns how long requests
    usually take.

    Deterministic given the choices before.
    """

    def __init__(self) -> None:
        self._usual_s = 0.0
        self._choices = 0

    def choose(self, candidates: Sequence[Candidate], draw: float) -> str:
        """The `instance_id` of the candidate with the least total delay; `draw` breaks ties."""
        prediction_of = trusted(candidates)
        answers = {c.instance_id: prediction_of(c) for c in candidates}
        told = [a for a in answers.values() if a is not None and isfinite(a.e2e_s)]
        usual_s = self._usual_s
        if not self._choices and told:
            usual_s = fmean(answer.e2e_s for answer in told)
        decoding_s, preempting = _at_best_s(told), _preempting(told)

        def delay_s(candidate: Candidate) -> float | None:
            answer = answers[candidate.instance_id]
            if answer is None:
                return None
            stalled_s = preempting * (answer.e2e_s - answer.ttft_s - decoding_s)
            wait_s = answer.ttft_s + (stalled_s if isfinite(stalled_s) else 0.0)
            return total_delay_s(answer, wait_s, USUAL_PART * usual_s)

        chosen = pick_lowest_known(candidates, delay_s, draw)
        answer = answers[chosen]
        if answer is not None and isfinite(answer.e2e_s):
            self._choices += 1
            self._usual_s += (answer.e2e_s - self._usual_s) / min(self._choices, _MEMORY)
        return chosen


def total_delay_s(prediction: Prediction, wait_s: float, long_s: float) -> float | None:
    """`wait_s * (1 + wait_s / long_s) ** 2 + added_ttft_s + added_e2e_s`, in seconds.

    What a request adds to the latencies of others is theirs to bear (an *externality*, as
    economists call a cost that another one pays); whoever is placed elsewhere adds nothing here.
    So by `e2e_s + added_e2e_s` the least choice would leave the cluster with the least sum of
    end-to-end latencies, given all placements so far and as if no further request came.

    Requests do come, though, and a sum does not mind who bears it. Queueing behind a full engine
    costs those who are there nothing, so the least sum buries a few requests there. Therefore the
    request's own wait weighs more the longer it is beside `long_s`, which is `USUAL_PART` of what
    requests usually take; its own decoding does not count.

    Its wait is that for its first token and, where memory is short, the time for which it is
    preempted later: whoever came last is preempted first, so that is mostly its own loss and no
    other's. No forecast tells the two apart from slow decoding, so it is what decoding takes longer
    than where it is fastest, times the share of instances that preempt somebody meanwhile.

    This form and USUAL_PART were chosen with the families of `bench.placement.yardstick` that
    decide; its page says which others were tried.

    Never below 0, even where the request helps others by more than it costs. None: the delay of
    the others is unknown.
    """
    added_s = others_delay_s(prediction)
    if added_s is None or isnan(added_s):
        return None
    impatience = wait_s / long_s if long_s > 0 else 0.0
    return max(0.0, wait_s * (1.0 + impatience) ** 2 + added_s)


def _at_best_s(told: Sequence[Prediction]) -> float:
    """What all tokens but the first take where they come fastest."""
    return min((answer.e2e_s - answer.ttft_s for answer in told), default=0.0)


def _preempting(told: Sequence[Prediction]) -> float:
    """The share of instances that preempt somebody while the request is there."""
    return fmean(min(1.0, answer.preemptions) for answer in told) if told else 0.0


def others_delay_s(prediction: Prediction) -> float | None:
    """Seconds added to the TTFT and end-to-end latency of others; None where nobody asked."""
    if prediction.added_ttft_s is None or prediction.added_e2e_s is None:
        return None
    return prediction.added_ttft_s + prediction.added_e2e_s
