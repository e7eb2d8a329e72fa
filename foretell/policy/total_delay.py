"""Total delay: what placing a request costs in latency, to itself and to everyone already there."""

from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from statistics import fmean
from typing import ClassVar

from foretell.model import Prediction, RequestSpec
from foretell.policy.base import Candidate
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory, Part
from foretell.policy.room import free_share, prices_s
from foretell.policy.scoring import lowest_known
from foretell.policy.trust import trusted

_MEMORY = 50
"""Choices over which the usual wait is averaged."""


class TotalDelayPolicy(JudgingPolicy):
    """Chooses the candidate with the least `total_delay_s`, and learns how long requests
    usually wait: its memory is the mean TTFT predicted for the choices of late.

    Deterministic given the choices before.
    """

    late_binding = True
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
        known = [a for a in answers if a is not None and isfinite(a.e2e_s)]
        usual_s = memory or 0.0
        if memory is None and known:
            usual_s = fmean(answer.ttft_s for answer in known)
        fastest = min(known, key=_decoding_s, default=None)
        rooms_s = prices_s(known)
        scores: list[float | None] = []
        parts: list[Part | None] = []
        for answer in answers:
            part = answer and _part(answer, fastest, usual_s, rooms_s)
            parts.append(part)
            scores.append(None if part is None else total_delay_s(part))
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


def total_delay_s(part: Part) -> float | None:
    """`weighed_wait_s + decoding_s + room_s + added_ttft_s + added_e2e_s`, in seconds.

    What a request adds to the latencies of others is theirs to bear (an *externality*, as
    economists call a cost that another one pays); a request placed elsewhere adds nothing here.
    So by `e2e_s + added_e2e_s` the least choice would leave the cluster with the least sum of
    end-to-end latencies, given all placements so far and as if no further request came.

    Requests do come, though, and a sum does not mind who bears it. Queueing behind a full engine
    costs those who are there nothing, so the least sum buries a few requests there. Therefore the
    request's own wait weighs more the longer it is beside the TTFT that requests usually have.

    Its wait is that for its first token and, where memory is short, the time for which it is
    preempted later: the last to come is preempted first, so that is mostly its own loss and no
    other's. Decoding slowly is no waiting: an engine of half the pace with room is better than a
    full one.

    For its own decoding the engine that decodes fastest is the best, but so it is for those who
    come after it. What decoding takes longer elsewhere counts times the square of the share of that
    engine that is free: the chance of two requests, this one and a next, to find room there if each
    meets as much. Full engines are left to those whom they delay least.

    So is the room that a request takes on engines of a scarce kind (`foretell.policy.room`).

    This form was chosen with families of `bench.placement.yardstick`; what others came to is in
    docs/adr/0007-placement-core.md.

    Never below 0, even where the request helps others by more than it costs. None: the delay of
    the others is unknown.
    """
    if part.added_ttft_s is None or part.added_e2e_s is None:
        return None
    added_s = part.added_ttft_s + part.added_e2e_s
    if isnan(added_s):
        return None
    return max(0.0, part.weighed_wait_s + part.decoding_s + part.room_s + added_s)


def weighed_wait_s(wait_s: float, usual_s: float) -> float:
    """`wait_s * (1 + wait_s / usual_s) ** 3`: what a request's own wait counts.

    The usual wait counts eight times what its seconds say; one twice as long, 27 times.
    """
    impatience = wait_s / usual_s if usual_s > 0 else 0.0
    return wait_s * (1.0 + impatience) ** 3


def _part(
    answer: Prediction,
    fastest: Prediction | None,
    usual_s: float,
    rooms_s: Mapping[str, float],
) -> Part:
    """What the score of a candidate with this answer is made of; `fastest` decodes fastest."""
    longer_s = _decoding_s(answer) - (_decoding_s(fastest) if fastest else 0.0)
    longer_s = longer_s if isfinite(longer_s) else 0.0
    wait_s = answer.ttft_s + answer.preempted_s
    free = free_share(fastest.load) if fastest else 0.0
    return Part(
        wait_s,
        weighed_wait_s(wait_s, usual_s),
        longer_s * free**2,
        rooms_s.get(answer.instance_id, 0.0),
        answer.added_ttft_s,
        answer.added_e2e_s,
    )


def _decoding_s(answer: Prediction) -> float:
    """Seconds that all tokens but the first take while it runs."""
    return answer.e2e_s - answer.ttft_s - answer.preempted_s
