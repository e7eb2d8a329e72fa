"""Total delay: what placing a request costs in latency, to itself and to everyone already there."""

from collections.abc import Sequence
from math import isfinite, isnan
from statistics import fmean
from typing import ClassVar

from foretell.model import Prediction, RequestSpec
from foretell.policy.base import Candidate
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory, Part
from foretell.policy.scoring import lowest_known
from foretell.policy.trust import trusted

_MEMORY = 50
"""Choices over which the usual wait is averaged."""


class TotalDelayPolicy(JudgingPolicy):
    """Chooses the candidate with the least `total_delay_s`, and learns how long requests
    usually wait: its memory is the mean TTFT predicted for the choices of late.

    Deterministic given the choices before.
    """

    measure: ClassVar[str] = "delay in total, in seconds"

    def __init__(self) -> None:
        self._choices = 0

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By total delay."""
        assert not isinstance(memory, str), "a wait is remembered"
        prediction_of = trusted(candidates)
        answers = [prediction_of(candidate) for candidate in candidates]
        told = [a for a in answers if a is not None and isfinite(a.e2e_s)]
        usual_s = memory or 0.0
        if memory is None and told:
            usual_s = fmean(answer.ttft_s for answer in told)
        decoding_s, preempting = _at_best_s(told), _preempting(told)
        scores: list[float | None] = []
        parts: list[Part | None] = []
        for answer in answers:
            if answer is None:
                scores.append(None)
                parts.append(None)
                continue
            stalled_s = preempting * (answer.e2e_s - answer.ttft_s - decoding_s)
            wait_s = answer.ttft_s + (stalled_s if isfinite(stalled_s) else 0.0)
            weighed_s = weighed_wait_s(wait_s, usual_s)
            scores.append(total_delay_s(answer, weighed_s))
            parts.append(Part(wait_s, weighed_s, answer.added_ttft_s, answer.added_e2e_s))
        return lowest_known(candidates, scores)._replace(parts=parts)

    def remembered(self, chosen: str, judgement: Judgement) -> Memory:
        """The usual wait with what was predicted for the chosen one, if that was compared."""
        place = [candidate.instance_id for candidate in judgement.candidates].index(chosen)
        answer = judgement.candidates[place].prediction if judgement.parts[place] else None
        if answer is None or not isfinite(answer.e2e_s):
            return self.memory
        self._choices += 1
        usual_s = float(self.memory or 0.0)
        return usual_s + (answer.ttft_s - usual_s) / min(self._choices, _MEMORY)


def total_delay_s(prediction: Prediction, weighed_s: float) -> float | None:
    """`weighed_wait_s(wait_s, usual_s) + added_ttft_s + added_e2e_s`, in seconds.

    What a request adds to the latencies of others is theirs to bear (an *externality*, as
    economists call a cost that another one pays); whoever is placed elsewhere adds nothing here.
    So by `e2e_s + added_e2e_s` the least choice would leave the cluster with the least sum of
    end-to-end latencies, given all placements so far and as if no further request came.

    Requests do come, though, and a sum does not mind who bears it. Queueing behind a full engine
    costs those who are there nothing, so the least sum buries a few requests there. Therefore the
    request's own wait weighs more the longer it is beside `usual_s`, the TTFT that requests usually
    have; its own decoding does not count.

    Its wait is that for its first token and, where memory is short, the time for which it is
    preempted later: whoever came last is preempted first, so that is mostly its own loss and no
    other's. No forecast tells the two apart from slow decoding, so it is what decoding takes longer
    than where it is fastest, times the share of instances that preempt somebody meanwhile.

    This form was chosen with families of `bench.placement.yardstick`; its page says which others
    were tried.

    Never below 0, even where the request helps others by more than it costs. None: the delay of
    the others is unknown.
    """
    added_s = others_delay_s(prediction)
    return None if added_s is None or isnan(added_s) else max(0.0, weighed_s + added_s)


def weighed_wait_s(wait_s: float, usual_s: float) -> float:
    """`wait_s * (1 + wait_s / usual_s) ** 3`: what a request's own wait counts.

    The usual wait counts eight times what its seconds say; one twice as long, 27 times.
    """
    impatience = wait_s / usual_s if usual_s > 0 else 0.0
    return wait_s * (1.0 + impatience) ** 3


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
