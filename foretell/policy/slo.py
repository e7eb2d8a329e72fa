"""SLO: the instance where a request most probably meets its targets without making others miss."""

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
    """The largest `P(TTFT <= target) * P(TPOT <= target) - lost`; see `worth`.

    Among candidates within `tolerance` of the best and those without a prediction, the least total
    delay decides (`foretell.policy.total_delay`). It alone decides for a request without targets.

    A request that can meet its targets anywhere therefore goes where it delays least. One with a
    tight target gets the instance that can still answer in time. One without a chance goes where
    others lose least: goodput counts the requests that are in time, not how late the others are.
    """

    name: ClassVar[str] = "slo"
    needs: ClassVar[Needs] = Needs.EXTERNALITY

    def __init__(self, *, tolerance: float = TOLERANCE) -> None:
        """Candidates whose `worth` is at most `tolerance` below the best count as equally good."""
        if not 0.0 <= tolerance <= 1.0:
            raise ValueError(f"tolerance must be a probability, from 0 to 1, not {tolerance}")
        super().__init__()
        self._tolerance = tolerance

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """Compare by worth, then by total delay among those that are nearly the best."""
        if not request.slo.given:
            return super().judge(request, candidates, memory)
        worths = _worths(request, candidates)
        best = _best(candidates, worths, self._tolerance)
        by_instance = {c.instance_id: found for c, found in zip(candidates, worths, strict=True)}
        return super().judge(request, best, memory)._replace(worths=by_instance)


def _best(
    candidates: Sequence[Candidate], worths: Sequence[float | None], tolerance: float
) -> list[Candidate]:
    """Those nearly as good as the best one, and those of unknown worth."""
    least = max((w for w in worths if w is not None), default=-inf) - tolerance
    return [c for c, w in zip(candidates, worths, strict=True) if w is None or w >= least]


def _worths(request: RequestSpec, candidates: Sequence[Candidate]) -> list[float | None]:
    """The worth of each candidate; None if it has no trusted prediction."""
    prediction_of = trusted(candidates)
    answers = [prediction_of(candidate) for candidate in candidates]
    # Without added latencies, a candidate would seem to cost others nothing: count all or none.
    all_tell = all(a is None or a.added_e2e_s is not None for a in answers)
    return [None if a is None else worth(request, a, counting_lost=all_tell) for a in answers]


def worth(request: RequestSpec, prediction: Prediction, *, counting_lost: bool = True) -> float:
    """Return how many more requests meet their targets with `request` there: 1 at most, and
    possibly negative.

    TTFT and TPOT of the request count as independent. What the others lose is known in seconds
    only. `lost` converts these seconds, assuming that the others have the request's targets, with
    slack that is uniform between 0 and the target.
    """
    slo = request.slo
    own = share_within(ttft_quantiles(prediction), slo.ttft_s)
    own *= share_within(tpot_quantiles(request.length, prediction), slo.tpot_s)
    return own - lost(slo, request.length, prediction) if counting_lost else own


def lost(slo: Slo, length: LengthEstimate, prediction: Prediction) -> float:
    """Return the expected number of other requests that miss targets because of the request.

    `added_ttft_s / ttft + added_e2e_s / (ttft + tpot * (tokens - 1))`, with the targets. A term is
    0 if its target is not given, its added latency was not predicted, or the others gain.
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
    """Return the predicted quantiles of TTFT; if there are none, the mean as the median."""
    return prediction.ttft_quantiles or ((0.5, prediction.ttft_s),)


def tpot_quantiles(length: LengthEstimate, prediction: Prediction) -> Quantiles:
    """Return pairs of level and TPOT in seconds: `(e2e_s - ttft_s) / (tokens - 1)`, all three at
    that level.

    Long answers end late, so e2e and length are taken at the same level. If the length has no
    quantiles and is no hint, its distribution is unknown here, and only the mean is returned.
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
    """Return the probability of a value up to `target`: linear between quantiles, flat beyond.

    The values need not ascend; what counts is the share of levels with values within the target.
    """
    level, value = quantiles[0]
    share = level if value <= target else 0.0
    for next_level, next_value in quantiles[1:]:
        share += (next_level - level) * _part_within(value, next_value, target)
        level, value = next_level, next_value
    return share + (1.0 - level if value <= target else 0.0)


def _part_within(one: float, other: float, target: float) -> float:
    """The share of the interval between two values that is not above `target`."""
    low, high = min(one, other), max(one, other)
    if high <= target:
        return 1.0
    if not low <= target:  # also if it is NaN
        return 0.0
    return (target - low) / (high - low)  # 0 of an infinite interval


def value_at(quantiles: Quantiles, level: float) -> float:
    """Return the value at `level`: linear between quantiles, flat beyond them."""
    before = quantiles[0]
    for after in quantiles:
        if after[0] >= level:
            if after[0] == before[0] or after[1] == inf:
                return after[1]
            part = (level - before[0]) / (after[0] - before[0])
            return before[1] + part * (after[1] - before[1])
        before = after
    return before[1]
