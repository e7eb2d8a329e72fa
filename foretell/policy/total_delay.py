"""Total delay: what placing a request costs in latency, to itself and to everyone already there."""

from collections.abc import Iterable, Sequence
from math import isfinite, isnan
from statistics import fmean

from foretell.model import Prediction
from foretell.policy.base import Candidate
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.trust import trusted

USUAL_PART = 0.1
"""A wait for the first token of this part of what requests usually take weighs twice what its
seconds say; one twice as long, three times."""
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
        told_s = [a.e2e_s for a in answers.values() if a is not None and isfinite(a.e2e_s)]
        usual_s = self._usual_s if self._choices or not told_s else fmean(told_s)
        long_s = USUAL_PART * usual_s + _shared_wait_s(answers.values())

        def delay_s(candidate: Candidate) -> float | None:
            answer = answers[candidate.instance_id]
            return None if answer is None else total_delay_s(answer, long_s)

        chosen = pick_lowest_known(candidates, delay_s, draw)
        answer = answers[chosen]
        if answer is not None and isfinite(answer.e2e_s):
            self._choices += 1
            self._usual_s += (answer.e2e_s - self._usual_s) / min(self._choices, _MEMORY)
        return chosen


def total_delay_s(prediction: Prediction, long_s: float) -> float | None:
    """`ttft_s * (1 + ttft_s / long_s) + added_ttft_s + added_e2e_s`, in seconds.

    What a request adds to the latencies of others is theirs to bear (an *externality*, as
    economists call a cost that another one pays); whoever is placed elsewhere adds nothing here.
    So by `e2e_s + added_e2e_s` the least choice would leave the cluster with the least sum of
    end-to-end latencies, given all placements so far and as if no further request came.

    Requests do come, though, and a sum does not mind who bears it. Queueing behind a full engine
    costs those who are there nothing, so the least sum buries a few requests there. Therefore the
    request's own wait weighs more the longer it is beside `long_s`; its own decoding does not
    count. A wait is long beside what requests usually take. Where memory is short everywhere, it
    must also be long beside the wait that all have: nobody is buried alone there, and if waits as
    such weighed much, they would outweigh the preemptions that choosing by them causes.

    What each part is worth is measured by `bench.placement.parts`; this form
    and USUAL_PART were chosen with the families of `bench.placement.yardstick` that decide.

    Never below 0, even where the request helps others by more than it costs. None: the delay of
    the others is unknown.
    """
    added_s = others_delay_s(prediction)
    if added_s is None or isnan(added_s):
        return None
    ttft_s = prediction.ttft_s
    impatience = ttft_s / long_s if long_s > 0 else 0.0
    return max(0.0, ttft_s * (1.0 + impatience) + added_s)


def _shared_wait_s(answers: Iterable[Prediction | None]) -> float:
    """The least wait for a first token, in seconds, times the share of instances that preempt
    somebody while the request is there."""
    told = [answer for answer in answers if answer is not None]
    waits_s = [answer.ttft_s for answer in told if isfinite(answer.ttft_s)]
    if not waits_s:
        return 0.0
    return min(waits_s) * fmean(min(1.0, answer.preemptions) for answer in told)


def others_delay_s(prediction: Prediction) -> float | None:
    """Seconds added to the TTFT and end-to-end latency of others; None where nobody asked."""
    if prediction.added_ttft_s is None or prediction.added_e2e_s is None:
        return None
    return prediction.added_ttft_s + prediction.added_e2e_s
