"""The load of a live measurement: seeded, bursty, bounded."""

from itertools import pairwise
from math import log
from statistics import fmean, median, pstdev

import pytest

from foretell.tools.live.load import MixedLengths, bursty
from foretell.tools.live.measure import CannotMeasure, completed


def test_the_rate_is_the_one_asked_for_and_only_stretches_time() -> None:
    slow, fast = (bursty(4000, rate, MixedLengths(), seed=1) for rate in (2.0, 8.0))
    assert abs(4000 / slow[-1].t_s - 2.0) < 0.1
    assert [a.prompt_tokens for a in slow] == [a.prompt_tokens for a in fast]
    assert fast[-1].t_s * 4 == slow[-1].t_s
    assert bursty(10, 2.0, MixedLengths(), seed=2) != bursty(10, 2.0, MixedLengths(), seed=1)


def test_it_is_burstier_than_poisson_and_has_rushes() -> None:
    times = [a.t_s for a in bursty(4000, 1.0, MixedLengths(), seed=3)]
    gaps = [b - a for a, b in pairwise(times)]
    assert pstdev(gaps) / fmean(gaps) > 1.3
    counts = [sum(20 * i <= t < 20 * (i + 1) for t in times) for i in range(160)]
    assert max(counts[3::8]) > 25  # the peak of the eight phases
    assert fmean(counts[3::8]) > 2 * fmean(counts[4::8])


def test_lengths_stay_within_their_bounds() -> None:
    lengths = MixedLengths()
    found = bursty(2000, 1.0, lengths, seed=4)
    prompts, outputs = [a.prompt_tokens for a in found], [a.output_tokens for a in found]
    assert (min(prompts) >= 16, max(prompts) <= 1000) == (True, True)
    assert (min(outputs) >= 8, max(outputs) <= 300) == (True, True)
    assert abs(log(median(prompts)) - (log(16) + log(1000)) / 2) < 0.15
    small = lengths.within(512)
    assert small.most_prompt + small.most_output <= 512
    assert lengths.within(0) is lengths
    assert [a.request_id for a in found[:2]] == ["live-4-0", "live-4-1"]


def test_work_is_run_to_its_end_or_its_failure_told() -> None:
    async def seven() -> int:
        return 7

    async def failing() -> int:
        raise CannotMeasure("the engine is asleep")

    assert completed(seven()) == 7
    with pytest.raises(SystemExit, match="accuracy: the engine is asleep"):
        completed(failing())
