"""`foretell profile measure` without an endpoint: windows of a known engine give its speed."""

import random
from dataclasses import replace

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs
from foretell.tools.profiles.endpoint import cache_facts
from foretell.tools.profiles.fit import FitError, Window, fit_windows
from foretell.tools.profiles.plan import Beside, Decode, Limits, Lone, plan
from foretell.tools.profiles.probe import Probe, Tick, decode_pairs
from foretell.tools.profiles.session import steady

COEFFICIENTS_S = (12e-3, 60e-6, 9e-9, 0.8e-3, 0.15e-3, 0.4e-6)
REQUEST_S, REQUEST_TOKEN_S = 4e-3, 1.5e-6
LIMITS = Limits(
    max_model_len=4096,
    capacity_tokens=60_000,
    max_concurrency=64,
    prefill_tokens_per_s=12_000,
    seconds=90,
)


def true_s(window: Window) -> float:
    t, c = window.totals, COEFFICIENTS_S
    shape = (t.prefill_tokens, t.prefill_pairs, t.prefill_seqs, t.decode_seqs, t.decode_pairs)
    step_s = window.steps * c[0] + sum(x * y for x, y in zip(shape, c[1:], strict=True))
    return step_s + window.requests * REQUEST_S + window.request_tokens * REQUEST_TOKEN_S


def window_of(experiment: Lone | Beside | Decode) -> Window:
    """What an engine of those coefficients would show in it."""
    if isinstance(experiment, Lone):
        n = experiment.tokens
        window = Window(
            "lone", str(experiment), 0.0, 1, BatchShape(1, n, prefill_pairs(n, 0)), 1, n
        )
    elif isinstance(experiment, Beside):
        repeats = 10
        count, n, steps = experiment.prompts * repeats, experiment.tokens, 2 * repeats
        totals = BatchShape(
            count, count * n, count * prefill_pairs(n, 0), steps, decode_pairs(16, 4, 4 + steps)
        )
        window = Window("beside", str(experiment), 0.0, steps, totals)
    else:
        n = experiment.streams
        pairs = n * decode_pairs(experiment.context, 10, 50)
        totals = BatchShape(decode_seqs=40 * n, decode_pairs=pairs)
        window = Window("decode", str(experiment), 0.0, 40, totals)
    return replace(window, seconds=true_s(window))


def one_round() -> list[Window]:
    return [window_of(experiment) for experiment in plan(LIMITS)]


def test_exact_windows_give_the_exact_coefficients() -> None:
    fit = fit_windows(one_round())
    assert fit.coefficients_s == pytest.approx(COEFFICIENTS_S, rel=1e-4)
    assert (fit.request_s, fit.request_token_s) == pytest.approx((REQUEST_S, REQUEST_TOKEN_S))
    assert fit.relative_residual < 1e-4
    assert set(fit.residual_of) == {"lone", "beside", "decode"}


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_stalls_do_little_harm(seed: int) -> None:
    rng = random.Random(seed)
    windows = [
        replace(
            w, seconds=w.seconds * max(0.5, rng.gauss(1, 0.04)) * (3 if rng.random() < 0.1 else 1)
        )
        for _ in range(3)
        for w in one_round()
    ]
    found = LinearStepTime(fit_windows(windows).coefficients_s)
    truth = LinearStepTime(COEFFICIENTS_S)
    for shape in (
        BatchShape(decode_seqs=1, decode_pairs=100),
        BatchShape(decode_seqs=64, decode_pairs=64 * 500),
        BatchShape(decode_seqs=16, decode_pairs=16 * 2000),
        BatchShape(1, 512, prefill_pairs(512, 0)),
        BatchShape(1, 512, prefill_pairs(512, 2000), 8, 8 * 400),
    ):
        assert found.step_s(shape) == pytest.approx(truth.step_s(shape), rel=0.1), shape


def test_windows_that_do_not_tell_are_refused() -> None:
    windows = one_round()
    with pytest.raises(FitError, match="no windows"):
        fit_windows([])
    with pytest.raises(FitError, match="no time"):
        fit_windows([*windows, replace(windows[0], seconds=0.0)])
    with pytest.raises(FitError, match="requests, request_tokens"):
        fit_windows([w for w in windows if w.kind != "lone"])
    one_stream = [w for w in windows if w.totals.decode_seqs <= w.steps]
    short = [w for w in one_stream if w.kind != "decode"][:7]
    with pytest.raises(FitError, match="alike"):
        fit_windows(short)


def test_the_plan_keeps_the_limits() -> None:
    rng = random.Random(1)
    for _ in range(200):
        limits = Limits(
            max_model_len=rng.choice([128, 512, 2048, 32768]),
            capacity_tokens=rng.choice([0, 4096, 30_000, 400_000]),
            max_concurrency=rng.choice([2, 8, 64, 300]),
            prefill_tokens_per_s=10 ** rng.uniform(2, 5),
            seconds=rng.choice([5.0, 90.0]),
        )
        held = []  # (requests at once, tokens of each, the probe's prompt left out)
        for experiment in plan(limits):
            if isinstance(experiment, Lone):
                held.append((1, 1, experiment.tokens))
            elif isinstance(experiment, Beside):
                held.append((experiment.prompts + 1, experiment.prompts, experiment.tokens))
            else:
                held.append((experiment.streams, experiment.streams, experiment.context))
        assert max(at_once for at_once, _, _ in held) <= limits.max_concurrency
        assert min(tokens for _, _, tokens in held) >= 1
        assert max(tokens for _, _, tokens in held) < limits.max_model_len
        if limits.capacity_tokens:
            assert max(n * tokens for _, n, tokens in held) <= limits.capacity_tokens


def test_the_plan_has_all_kinds_even_for_a_small_engine() -> None:
    small = replace(LIMITS, max_model_len=256, capacity_tokens=2000, max_concurrency=4)
    for limits in (LIMITS, small):
        kinds = [type(experiment) for experiment in plan(limits)]
        assert set(kinds) == {Lone, Beside, Decode}
        assert set(kinds[:3]) == {Lone, Beside, Decode}  # they take turns
    assert fit_windows(one_round()).relative_residual < 1e-4


def test_the_kv_cache_is_read_off_the_metrics() -> None:
    told = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="128",engine="0",num_gpu_blocks="200"} 1.0\n'
    )
    assert cache_facts(told) == (128, 199)  # one is vLLM's null block
    assert cache_facts(told.replace("200", "None")) == (0, 0)
    assert cache_facts("") == (0, 0)


def test_pairs_of_decoding_are_those_of_its_steps() -> None:
    prompt, first, last = 40, 3, 9
    # The step that makes output token t feeds token t - 1: the prompt and t - 2 are before it.
    one_by_one = sum(prompt + (t - 2) + 1 for t in range(first + 1, last + 1))
    assert decode_pairs(prompt, first, last) == one_by_one
    assert decode_pairs(prompt, first, 5) + decode_pairs(prompt, 5, last) == one_by_one


def probe_until(tokens: int) -> Probe:
    """A stream with a token every second."""
    probe = Probe(prompt_tokens=16)
    probe.ticks = [Tick(float(n), n) for n in range(1, tokens + 1)]
    return probe


@pytest.mark.parametrize("seed", range(20))
def test_between_steady_ticks_all_streams_decode(seed: int) -> None:
    rng = random.Random(seed)
    posted, tokens = 5, 60
    # Each companion has its first token in some step after it was sent, soon or late.
    begins = [posted + rng.randint(1, 20) for _ in range(rng.choice([1, 4, 16]))]
    answered = max(begins) + tokens - 1 + rng.randint(0, 2)
    probe = probe_until(answered)
    found = steady(probe, posted, probe.ticks[-1], tokens)
    assert found is not None
    first, last, admitted = found
    assert max(begins) <= first.tokens < last.tokens <= min(begins) + tokens - 1
    assert posted < admitted <= max(begins) + 2


def test_streams_that_did_not_run_together_have_no_steady_ticks() -> None:
    tokens, posted = 60, 5
    probe = probe_until(posted + 2 * tokens + 3)  # the second half began when the first had ended
    assert steady(probe, posted, probe.ticks[-1], tokens) is None
