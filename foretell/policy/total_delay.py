"""Total delay: what placing a request costs in latency, its own and that of requests there."""

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from statistics import fmean
from typing import ClassVar

from foretell.model import Prediction, RequestSpec
from foretell.policy.base import Candidate
from foretell.policy.judgement import DelayParts, Judgement, JudgingPolicy, Memory
from foretell.policy.room import free_share, kinds, prices_s
from foretell.policy.scoring import lowest_known
from foretell.policy.trust import trusted

_MEMORY = 50
"""The number of choices over which the usual wait is averaged."""
_LEAST_USUAL_S = 0.15
"""The least usual wait where engines are of several kinds: below, waits of tenths of a second would
outweigh seconds of slower decoding."""


class TotalDelayPolicy(JudgingPolicy):
    """Chooses the candidate with the least `total_delay_s`, and learns how long requests usually
    wait: its memory is the mean predicted TTFT of recent choices.

    Deterministic given the earlier choices.
    """

    late_binding = True
    measure: ClassVar[str] = "delay in total, in seconds"

    def __init__(self) -> None:
        self._choices = 0

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """Compare by total delay."""
        assert not isinstance(memory, str), "a wait is remembered"
        prediction_of = trusted(candidates)
        answers = [prediction_of(candidate) for candidate in candidates]
        known = [a for a in answers if a is not None and isfinite(a.e2e_s)]
        usual_s = memory or 0.0
        if memory is None and known:
            usual_s = fmean(answer.ttft_s for answer in known)
        fastest = min(known, key=_decoding_s, default=None)
        of_kinds = kinds(known)
        rooms_s = prices_s(of_kinds)
        if len(of_kinds) > 1:
            usual_s = max(usual_s, _LEAST_USUAL_S)
        scores: list[float | None] = []
        parts: list[DelayParts | None] = []
        for answer in answers:
            part = answer and _part(answer, fastest, usual_s, rooms_s)
            parts.append(part)
            scores.append(None if part is None else total_delay_s(part))
        return lowest_known(candidates, scores)._replace(parts=parts)

    def remembered(self, chosen: str, judgement: Judgement) -> Memory:
        """Return the usual wait, updated by the chosen one's predicted TTFT if it was compared."""
        place = [candidate.instance_id for candidate in judgement.candidates].index(chosen)
        answer = judgement.candidates[place].prediction if judgement.parts[place] else None
        if answer is None or not isfinite(answer.e2e_s):
            return self.memory
        self._choices += 1
        usual_s = float(self.memory or 0.0)
        return usual_s + (answer.ttft_s - usual_s) / min(self._choices, _MEMORY)


def total_delay_s(part: DelayParts) -> float | None:
    """Return `weighed_wait_s + decoding_s + room_s + added_s`, in seconds.

    What a request adds to the latencies of others is an *externality*: a cost that others bear. If
    a choice minimized `e2e_s + added_e2e_s`, the cluster would have the least sum of end-to-end
    latencies, given all earlier placements and if no further requests came.

    But requests do come. Those that take the places of the present ones are slowed as well, so
    `added_s` counts the latter's end-to-end latencies twice (`LATER`). And a sum ignores fairness:
    queueing behind a full engine costs the requests there nothing, so the least sum would let a few
    requests wait there for very long. Therefore the request's own wait weighs more the longer it is
    compared to the usual TTFT.

    Its wait includes the time for which it is preempted later, if memory is short: the latest
    request is preempted first, so that is mostly its own loss. Slow decoding is no wait: an engine
    that decodes half as fast but has room is better than a full one.

    The engine that decodes fastest is the best for this request, but also for later ones. Extra
    decoding time elsewhere is therefore multiplied by the square of the free share of that engine:
    the probability that two requests, this one and the next, both find room there. A full engine is
    left to the requests that it delays least.

    `room_s` is the price of room on engines of a scarce kind (`foretell.policy.room`).

    This form was chosen with families of `bench.placement.yardstick`; results of other forms are in
    docs/adr/0007-placement-core.md.

    The result is never negative, even if the request helps others more than it costs. None: the
    delay of the others is unknown.
    """
    added_s = part.added_s
    if added_s is None or isnan(added_s):
        return None
    return max(0.0, part.weighed_wait_s + part.decoding_s + part.room_s + added_s)


def weighed_wait_s(wait_s: float, usual_s: float) -> float:
    """Return `wait_s * (1 + wait_s / usual_s) ** 3`, the weighted wait of a request.

    The usual wait counts 8 times its seconds, one twice as long 27 times.
    """
    impatience = wait_s / usual_s if usual_s > 0 else 0.0
    return wait_s * (1.0 + impatience) ** 3


def _part(
    answer: Prediction,
    fastest: Prediction | None,
    usual_s: float,
    rooms_s: Mapping[str, float],
) -> DelayParts:
    """The parts of the score of a candidate with this prediction; `fastest` decodes fastest."""
    longer_s = _decoding_s(answer) - (_decoding_s(fastest) if fastest else 0.0)
    longer_s = longer_s if isfinite(longer_s) else 0.0
    wait_s = answer.ttft_s + answer.preempted_s
    free = free_share(fastest.load) if fastest else 0.0
    return DelayParts(
        wait_s,
        weighed_wait_s(wait_s, usual_s),
        longer_s * free**2,
        rooms_s.get(answer.instance_id, 0.0),
        answer.added_ttft_s,
        answer.added_e2e_s,
    )


def _decoding_s(answer: Prediction) -> float:
    """Seconds from the first token to the last, without those in which it is preempted."""
    return answer.e2e_s - answer.ttft_s - answer.preempted_s
