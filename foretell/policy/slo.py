"""SLO: where a request most probably meets its targets without making others miss theirs."""

from collections.abc import Sequence
from math import inf, isnan
from typing import ClassVar

from foretell.model import LengthEstimate, Prediction, RequestSpec, Slo
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, Memory
from foretell.policy.total_delay import TotalDelayPolicy
from foretell.policy.trust import trusted

TOLERANCE = 0.05

Quantiles = Sequence[tuple[float, float]]


class SloPolicy(TotalDelayPolicy):
    """The most `P(TTFT <= target) * P(TPOT <= target) - lost`; see `worth`.

    Among candidates within `tolerance` of the best, and those that did not answer, the least
    delay in total decides (`foretell.policy.total_delay`). It alone decides for a request without
    targets.

    A request that can meet its targets anywhere thus goes where it delays least. One with a tight
    target gets the instance that can still answer in time. One that has no chance goes where it
    makes the others lose least: goodput counts who is in time, not how late the others are.
    """

    name: ClassVar[str] = "slo"
    needs: ClassVar[Needs] = Needs.EXTERNALITY

    def __init__(self, *, tolerance: float = TOLERANCE) -> None:
        """Candidates whose `worth` is up to `tolerance` below the best one's are equally good."""
        if not 0.0 <= tolerance <= 1.0:
            raise ValueError(f"tolerance must be a probability, from 0 to 1, not {tolerance}")
        super().__init__()
        self._tolerance = tolerance

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By worth, then by total delay among those that are nearly the best."""
        if not request.slo.given:
            return super().judge(request, candidates, memory)
        worths = _worths(request, candidates)
        best = _best(candidates, worths, self._tolerance)
        by_instance = {c.instance_id: found for c, found in zip(candidates, worths, strict=True)}
        return super().judge(request, best, memory)._replace(worths=by_instance)


def _best(
    candidates: Sequence[Candidate], worths: Sequence[float | None], tolerance: float
) -> list[Candidate]:
    """Those nearly as good as the best one, and those of whom nothing is known."""
    least = max((w for w in worths if w is not None), default=-inf) - tolerance
    return [c for c, w in zip(candidates, worths, strict=True) if w is None or w >= least]


def _worths(request: RequestSpec, candidates: Sequence[Candidate]) -> list[float | None]:
    """The worth of each candidate; None where nothing is known of it."""
    prediction_of = trusted(candidates)
    answers = [prediction_of(candidate) for candidate in candidates]
    # Beside others, an engine that says nothing of what a request adds would seem to lose nothing.
    all_tell = all(a is None or a.added_e2e_s is not None for a in answers)
    return [None if a is None else worth(request, a, counting_lost=all_tell) for a in answers]


def worth(request: RequestSpec, prediction: Prediction, *, counting_lost: bool = True) -> float:
    """How many more requests meet their targets with `request` there: at most 1, perhaps below 0.

    The request's own chances of TTFT and TPOT count as independent. What the others lose is known
    in seconds only: `lost` is what these seconds cost if the others have targets like the
    request's, and times that they can spare spread evenly from nothing to all of the target.
    """
    slo = request.slo
    own = share_within(ttft_quantiles(prediction), slo.ttft_s)
    own *= share_within(tpot_quantiles(request.length, prediction), slo.tpot_s)
    return own - lost(slo, request.length, prediction) if counting_lost else own


def lost(slo: Slo, length: LengthEstimate, prediction: Prediction) -> float:
    """`added_ttft_s / ttft + added_e2e_s / (ttft + tpot * (tokens - 1))`, of the targets.

    Expected number of others that miss targets because of the request; a target that is not there
    costs nobody anything. 0 where nobody asked, or where the others gain.
    """
    total = 0.0
    decoding_s = slo.tpot_s * max(1.0, length.expected_tokens - 1.0)
    for added_s, spare_s in (
        (prediction.added_ttft_s, slo.ttft_s),
        (prediction.added_e2e_s, slo.ttft_s + decoding_s),
    ):
        if added_s is not None and not isnan(added_s) and added_s > 0 and spare_s < inf:
            total += added_s / spare_s if spare_s > 0 else inf
    return total


def ttft_quantiles(prediction: Prediction) -> Quantiles:
    """The predicted quantiles of TTFT; the mean as the only one where there are none."""
    return prediction.ttft_quantiles or ((0.5, prediction.ttft_s),)


def tpot_quantiles(length: LengthEstimate, prediction: Prediction) -> Quantiles:
    """(level, seconds): `(e2e_s - ttft_s) / (tokens - 1)`, all three at that level.

    A long answer ends late, so the level of e2e is taken to be that of the length. Where the
    length has no quantiles and is no hint, how it spreads is unknown here: then the mean.
    """
    certain = length.source == "hint"
    if not prediction.e2e_quantiles or not (length.quantiles or certain):
        return ((0.5, prediction.tpot_s),)
    found = []
    for level, e2e_s in prediction.e2e_quantiles:
        tokens = length.expected_tokens if certain else value_at(length.quantiles, level)
        ttft_s = value_at(ttft_quantiles(prediction), level)
        decoding_s = inf if e2e_s == inf else max(0.0, e2e_s - ttft_s)
        found.append((level, decoding_s / max(1.0, tokens - 1.0)))
    return found


def share_within(quantiles: Quantiles, target: float) -> float:
    """The probability of a value up to `target`: linear between quantiles, flat beyond the last.

    They need not ascend: each is where its level is, and what counts is how many levels lie within.
    """
    level, value = quantiles[0]
    share = level if value <= target else 0.0
    for next_level, next_value in quantiles[1:]:
        share += (next_level - level) * _part_within(value, next_value, target)
        level, value = next_level, next_value
    return share + (1.0 - level if value <= target else 0.0)


def _part_within(one: float, other: float, target: float) -> float:
    """The share of the interval between two values that lies up to `target`."""
    low, high = min(one, other), max(one, other)
    if high <= target:
        return 1.0
    if not low <= target:  # nor is a NaN
        return 0.0
    return (target - low) / (high - low)  # nothing of an infinite way


def value_at(quantiles: Quantiles, level: float) -> float:
    """The value at `level`: linear between quantiles, flat beyond them."""
    before = quantiles[0]
    for after in quantiles:
        if after[0] >= level:
            if after[0] == before[0] or after[1] == inf:
                return after[1]
            part = (level - before[0]) / (after[0] - before[0])
            return before[1] + part * (after[1] - before[1])
        before = after
    return before[1]
