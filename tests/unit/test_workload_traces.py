from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import correlation, fmean, stdev

import pytest

from foretell.length.distribution import knots
from foretell.model import LengthEstimate, Slo
from foretell.workload import (
    Arrival,
    Trace,
    arrivals_of,
    noisy_length,
    parse_csv,
    parse_mooncake,
    residual_length,
    stated_length,
)

MOONCAKE = (
    '{"timestamp": 3000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 7, 8]}',
    '{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 4]}',
    "",
)


@pytest.mark.parametrize(
    "header",
    ["t,in_tok,out_tok", "arrived_at, num_prefill_tokens,num_decode_tokens"],
)
def test_csv_with_times(header: str) -> None:
    trace = parse_csv([header, "1.5,10,20", "0.5,0,7"])
    assert trace.timed
    assert trace.requests == (Arrival(0.5, 1, 7, ""), Arrival(1.5, 10, 20, ""))


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("num_prefill_tokens,num_decode_tokens,pd_ratio", "10,20,0.5"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "XXX,10,20"),
    ],
)
def test_csv_of_lengths_only(header: str, line: str) -> None:
    assert parse_csv([header, line]) == Trace((Arrival(0.0, 10, 20, ""),), timed=False)


def test_csv_with_targets_and_priorities() -> None:
    header = "in_tok,out_tok,priority,TTFT_SLO_S,tpot_slo_s"
    trace = parse_csv([header, "10,20,-1,0.5,0.08", "10,20,,,", "10,20,3,2.5,"])
    assert [(r.priority, r.slo) for r in trace.requests] == [
        (-1, Slo(0.5, 0.08)),
        (0, Slo()),
        (3, Slo(2.5)),
    ]
    coming = arrivals_of(trace, Random(1), qps=1.0)
    assert {(a.priority, a.slo) for a in coming} == {(r.priority, r.slo) for r in trace.requests}
    (plain,) = parse_csv(["in_tok,out_tok,tpot_slo_s", "1,2,0.1"]).requests
    assert (plain.priority, plain.slo) == (0, Slo(tpot_s=0.1))


def test_csv_with_what_was_believed() -> None:
    header = "in_tok,out_tok,Expected_Tokens,p50,p97.5,p2.5,pd_ratio"
    trace = parse_csv([header, "10,20,31.5,25,90.5,4,0.5", "11,21,8,8,8,8,0.5"])
    believed = {
        10: LengthEstimate(31.5, ((0.025, 4.0), (0.5, 25.0), (0.975, 90.5)), "model"),
        11: LengthEstimate(8.0, ((0.025, 8.0), (0.5, 8.0), (0.975, 8.0)), "model"),
    }
    coming = arrivals_of(trace, Random(1), qps=1.0)
    assert {a.prompt_tokens: stated_length(a) for a in coming} == believed
    (mean,) = parse_csv(["in_tok,out_tok,expected_tokens", "1,2,3"]).requests
    assert mean.length == LengthEstimate(3.0, source="model")
    (silent,) = parse_csv(["in_tok,out_tok,p50", "1,2,3"]).requests  # it does not say of what
    assert silent.length is None
    with pytest.raises(ValueError, match="does not tell"):
        stated_length(Arrival(0.0, 1, 2, "r0"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a,b", "1,2"], "in_tok"),
        (["t,in_tok,out_tok"], "no requests"),
        ([], "nothing"),
        (["t,in_tok,out_tok", "0,1,2", "0,x,2"], "line 3"),
        (["t,in_tok,out_tok", "yesterday,1,2"], "yesterday"),
        (["in_tok,out_tok", "1"], "line 2"),
        (["in_tok,out_tok,ttft_slo_s", "1,2,0"], "positive"),
        (["in_tok,out_tok,tpot_slo_s", "1,2,soon"], "line 2"),
        (["in_tok,out_tok,priority", "1,2,high"], "line 2"),
        (["in_tok,out_tok,expected_tokens", "1,2,0"], "no length"),
        (["in_tok,out_tok,expected_tokens", "1,2,inf"], "no length"),
        (["in_tok,out_tok,expected_tokens,p10,p90", "1,2,3,4,3"], "no length"),
        (["in_tok,out_tok,expected_tokens,p10,p90", "1,2,3,4,nan"], "no length"),
        (["in_tok,out_tok,expected_tokens,p10,p90", "1,2,3,4,"], "line 2"),
    ],
)
def test_csv_that_is_none(lines: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_csv(lines)


def test_mooncake_keeps_prefixes() -> None:
    trace = parse_mooncake(MOONCAKE)
    assert [r.t_s for r in trace.requests] == [0.0, 3.0]
    assert trace.requests[1].prefix == (0, 7, 8)
    with pytest.raises(ValueError, match="line 2"):
        parse_mooncake([MOONCAKE[0], "{}"])


def test_prefix_blocks_become_segments() -> None:
    named = Arrival(0.0, 1030, 5, "r0", (0, 7, 8))
    assert named.segments() == [("prefix 0", 512), ("prefix 7", 512), ("prefix 8", 6)]
    short = Arrival(0.0, 1030, 5, "r0", (3,))
    assert short.segments() == [("prefix 3", 512), ("prompt of r0", 518)]


def test_timed_arrivals_keep_their_rhythm() -> None:
    trace = parse_csv(["t,in_tok,out_tok", "10,1,1", "11,2,2", "14,3,3", "19,4,4"])
    as_it_is = arrivals_of(trace, Random(1))
    assert [a.t_s for a in as_it_is] == [0.0, 1.0, 4.0, 9.0]
    assert [a.t_s for a in arrivals_of(trace, Random(1), qps=1.0)] == [0.0, 1 / 3, 4 / 3, 3.0]
    assert [a.prompt_tokens for a in arrivals_of(trace, Random(1), count=2)] == [1, 2]


def test_rounded_times_are_spread() -> None:
    rows = tuple(Arrival(t_s, 1, 1, "") for t_s in (0.0,) * 50 + (3.0,) * 50)
    times_s = [a.t_s for a in arrivals_of(Trace(rows, True, resolution_s=3.0), Random(1))]
    assert times_s == sorted(times_s)
    assert len(set(times_s)) == 100
    assert times_s[0] == 0.0
    assert 5.0 < times_s[-1] < 6.0


def test_untimed_requests_come_once_each_in_any_order() -> None:
    trace = Trace(tuple(Arrival(0.0, i, i, "") for i in range(1, 101)), timed=False)
    arrivals = arrivals_of(trace, Random(1), qps=5.0)
    assert Counter(a.prompt_tokens for a in arrivals) == Counter(range(1, 101))
    assert [a.prompt_tokens for a in arrivals] != list(range(1, 101))
    assert arrivals == arrivals_of(trace, Random(1), qps=5.0)
    twice = Counter(a.prompt_tokens for a in arrivals_of(trace, Random(1), count=200, qps=5.0))
    assert set(twice.values()) == {2}
    with pytest.raises(ValueError, match="qps"):
        arrivals_of(trace, Random(1))


@pytest.mark.parametrize("cv", [1.0, 3.0])
def test_untimed_requests_come_at_their_rate(cv: float) -> None:
    trace = Trace((Arrival(0.0, 1, 1, ""),), timed=False)
    times_s = [a.t_s for a in arrivals_of(trace, Random(2), count=20_000, qps=5.0, cv=cv)]
    gaps = [b - a for a, b in pairwise(times_s)]
    assert fmean(gaps) == pytest.approx(0.2, rel=0.07)
    assert stdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.1)


def test_noisy_lengths_are_honest() -> None:
    """The share of true lengths below an estimated quantile equals its level."""
    estimate = noisy_length(0.5, Random(1))
    draws = Random(2)
    lengths = [max(1, round(draws.lognormvariate(6.0, 2.0))) for _ in range(4000)]
    estimates = [estimate(Arrival(0.0, 1, tokens, "r")) for tokens in lengths]
    for place, level in ((0, 0.1), (2, 0.5), (4, 0.9)):
        below = sum(
            tokens <= e.quantiles[place][1] for tokens, e in zip(lengths, estimates, strict=True)
        )
        assert below / len(lengths) == pytest.approx(level, abs=0.03)
    assert knots(estimates[0])[3] == pytest.approx(estimates[0].quantiles[2][1])
    with pytest.raises(ValueError, match="sigma"):
        noisy_length(0.0, Random(1))


_DRAWS = Random(11)
UNLIKE_LENGTHS = {
    "log-normal": [max(1, round(_DRAWS.lognormvariate(5.0, 1.2))) for _ in range(4000)],
    "two humps": [_DRAWS.randint(50, 400) + 2000 * (_DRAWS.random() < 0.4) for _ in range(4000)],
    "uniform": [_DRAWS.randint(200, 8000) for _ in range(4000)],
}


@pytest.mark.parametrize("lengths", UNLIKE_LENGTHS.values(), ids=UNLIKE_LENGTHS)
def test_the_taggers_errors_are_honest_on_every_trace(lengths: list[int]) -> None:
    """Its intervals hold as many lengths as they claim, and its means rank requests as it does."""
    prompts = Random(2)
    trace = [Arrival(0.0, prompts.randint(1, 4000), tokens, "r") for tokens in lengths]
    estimates = list(map(residual_length(trace, Random(1)), trace))
    levels = [level for level, _ in estimates[0].quantiles]
    for low, high in ((0.25, 0.75), (0.1, 0.9), (0.025, 0.975)):
        first, last = levels.index(low), levels.index(high)
        held = fmean(
            e.quantiles[first][1] <= tokens <= e.quantiles[last][1]
            for e, tokens in zip(estimates, lengths, strict=True)
        )
        assert held == pytest.approx(high - low, abs=0.03)
    assert fmean(e.expected_tokens for e in estimates) == pytest.approx(fmean(lengths), rel=0.15)
    means = [e.expected_tokens for e in estimates]
    assert correlation(ranks(means), ranks(lengths)) == pytest.approx(0.72, abs=0.05)


def test_the_taggers_errors_need_the_traces_lengths() -> None:
    with pytest.raises(ValueError, match="lengths"):
        residual_length([], Random(1))
    asked = Arrival(0.0, 1, 7, "r")
    constant = residual_length([asked] * 9, Random(1))(asked)
    assert constant.expected_tokens == 7.0
    assert {tokens for _, tokens in constant.quantiles} == {7.0}


def ranks(values: Sequence[float]) -> list[float]:
    found = [0.0] * len(values)
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        found[at] = float(rank)
    return found
