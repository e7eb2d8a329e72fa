"""A recorded run in the twin, measured and calibrated."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig
from foretell.tools.intervals import quantile
from tests.sim.errors import accuracy, errors
from tests.sim.host_time import GROUPS, HostTime, calibrate, host_time, scaled
from tests.sim.recorded import Latency, RecordedRequest, ReplayConfig, replay

STEP_S = 0.010
STEADY = LinearStepTime((STEP_S, 0.0, 0.0, 0.0, 0.0, 0.0))
TOKEN_S = 0.001
PER_TOKEN = LinearStepTime((0.0, TOKEN_S, 0.0, 0.0, TOKEN_S, 0.0))
ENGINE = EngineConfig(
    model_name="m",
    block_size_tokens=16,
    total_blocks=1000,
    max_num_seqs=2,
    max_num_scheduled_tokens=100,
    max_model_len=2000,
    async_scheduling=True,
)
SYNC = ReplayConfig(replace(ENGINE, async_scheduling=False))
ASYNC = ReplayConfig(ENGINE)


def request(name: str, arrival_s: float, prompt: int = 50, output: int = 5) -> RecordedRequest:
    return RecordedRequest(name, prompt, output, arrival_s)


def test_an_idle_engine_starts_at_once() -> None:
    for config in (SYNC, ASYNC):
        (alone,) = replay([request("a", 7.0, prompt=250)], config, STEADY)
        assert alone.ttft_s == pytest.approx(3 * STEP_S)  # three chunks
        assert alone.e2e_s == pytest.approx(7 * STEP_S)
        assert alone.tpot_s == pytest.approx(STEP_S)


def test_async_scheduling_shows_an_arrival_a_step_later() -> None:
    requests = [request("a", 0.0, output=50), request("b", 0.104)]
    sync, late = (replay(requests, config, STEADY)[1] for config in (SYNC, ASYNC))
    # It arrives in the step from 0.10 to 0.11, and is in the next step or the one after it.
    assert sync.ttft_s == pytest.approx(0.016)
    assert late.ttft_s == pytest.approx(0.026)


def test_async_scheduling_frees_a_slot_a_step_later_while_others_run() -> None:
    requests = [request("a", 0.0), request("b", 0.0, output=50), request("c", 0.001)]
    sync, late = (replay(requests, config, STEADY)[2] for config in (SYNC, ASYNC))
    assert sync.ttft_s == pytest.approx(0.059)  # in the step after the last one of a
    assert late.ttft_s == pytest.approx(sync.ttft_s + STEP_S)


def test_an_end_that_is_foreseen_is_waited_for_where_there_is_nothing_else_to_do() -> None:
    requests = [request("a", 0.0), request("b", 0.0), request("c", 0.001)]
    sync, late = (replay(requests, config, STEADY)[2] for config in (SYNC, ASYNC))
    assert late.ttft_s == pytest.approx(sync.ttft_s) == pytest.approx(0.059)


def test_no_token_is_computed_behind_the_last() -> None:
    by_decode = LinearStepTime((STEP_S, 0.0, 0.0, 0.0, STEP_S, 0.0))
    for config in (SYNC, ASYNC):
        a, b = replay([request("a", 0.0, output=3), request("b", 0.0, output=6)], config, by_decode)
        assert a.e2e_s == pytest.approx((1 + 3 + 3) * STEP_S)
        assert b.e2e_s == pytest.approx((1 + 3 + 3 + 2 + 2 + 2) * STEP_S)


def test_lengths_do_not_depend_on_the_loop() -> None:
    requests = [request(str(i), 0.003 * i, prompt=30 + i, output=1 + i % 7) for i in range(20)]
    for config in (SYNC, ASYNC):
        for latency, asked in zip(replay(requests, config, STEADY), requests, strict=True):
            assert latency.output_tokens == asked.output_tokens
            decode_s = (asked.output_tokens - 1) * STEP_S
            assert latency.e2e_s - latency.ttft_s == pytest.approx(decode_s)


def test_the_frontend_delays_every_request() -> None:
    requests = [request("a", 0.0)]
    (slow,) = replay(requests, replace(ASYNC, frontend_s=0.5), STEADY)
    assert slow.ttft_s == pytest.approx(0.5 + STEP_S)


@pytest.mark.parametrize("config", [SYNC, ASYNC])
def test_clients_ask_again_once_they_are_answered(config: ReplayConfig) -> None:
    lengths = (5, 9, 7, 3, 6)
    requests = [request(str(n), 99.0, output=n) for n in lengths]
    two = replay(requests, replace(config, frontend_s=0.001), STEADY, clients=2)
    # With two seats neither client waits: each sends the next request when its last one has ended.
    assert all(latency.ttft_s < 3.1 * STEP_S for latency in two)
    assert [latency.output_tokens for latency in two] == list(lengths)
    assert all(latency.tpot_s < 1.5 * STEP_S for latency in two)
    # With five clients three wait until the first two requests have ended.
    five = replay(requests, config, STEADY, clients=9)
    assert five[2].ttft_s > two[2].ttft_s + 3 * STEP_S
    assert max(latency.e2e_s for latency in five) == pytest.approx(17 * STEP_S, abs=3 * STEP_S)


def test_answers_come_in_the_order_of_the_questions() -> None:
    requests = [request("late", 5.0, output=3), request("early", 0.0, output=9)]
    late, early = replay(requests, ASYNC, STEADY)
    assert (late.output_tokens, early.output_tokens) == (3, 9)
    assert early.e2e_s == pytest.approx(9 * STEP_S)


def test_the_first_requests_are_answered_as_in_the_whole_run() -> None:
    requests = [request(str(i), 0.002 * i, output=20) for i in range(12)]
    assert replay(requests, ASYNC, STEADY, first=4) == replay(requests, ASYNC, STEADY)[:4]


def test_ranks_share_the_requests_and_the_steps() -> None:
    requests = [request(str(i), 0.0, output=10) for i in range(4)]
    both = replay(requests, replace(ASYNC, ranks=2), STEADY)
    # Each rank runs two at once; on one engine two of the four requests would wait.
    assert max(latency.ttft_s for latency in both) == pytest.approx(STEP_S)
    assert max(latency.ttft_s for latency in replay(requests, ASYNC, STEADY)) > 5 * STEP_S
    # In lockstep a step of one rank takes as long as that of the other.
    per_token = LinearStepTime((0.0, 1e-3, 0.0, 0.0, 1e-3, 0.0))
    long, short = replay(
        [request("a", 0.0, prompt=100), request("b", 0.0, prompt=10)],
        replace(ASYNC, ranks=2),
        per_token,
    )
    assert long.ttft_s == short.ttft_s == pytest.approx(0.1)


@pytest.mark.parametrize("bad", [request("a", 0.0, prompt=0), request("a", 0.0, output=0)])
def test_impossible_requests_are_refused(bad: RecordedRequest) -> None:
    with pytest.raises(ValueError, match="no prompt or no output"):
        replay([bad], ASYNC, STEADY)


def test_a_request_larger_than_the_cache_is_refused() -> None:
    tiny = replace(ENGINE, total_blocks=10)
    for one_by_one in (False, True):
        engine = replace(tiny, async_scheduling=not one_by_one)
        with pytest.raises(ValueError, match="KV cache"):
            replay([request("a", 0.0, prompt=500)], ReplayConfig(engine), STEADY)


def test_errors_by_hand() -> None:
    found = errors([2.0, 1.0, 3.0], [1.0, 1.0, 4.0])
    assert found.mean_error == pytest.approx(0.0)
    assert found.p50_error == pytest.approx(1.0)
    assert found.p99_error == pytest.approx(2.98 / 3.94 - 1)
    assert found.mape == pytest.approx((1.0 + 0.0 + 0.25) / 3)
    assert quantile([1.0, 3.0], 0.5) == 2.0
    with pytest.raises(ValueError, match="positive"):
        errors([], [])
    with pytest.raises(ValueError, match="positive"):
        errors([1.0], [0.0])


def test_a_request_of_one_token_has_no_tpot() -> None:
    one, two = Latency(1.0, 1.0, 1), Latency(1.0, 3.0, 2)
    found = accuracy([one, Latency(1.0, 2.0, 2)], [one, two])
    assert found["tpot"].mape == pytest.approx(0.5)
    assert found["ttft"].mape == 0.0


def test_calibration_finds_a_slower_engine() -> None:
    prior = LinearStepTime((8e-3, 40e-6, 3e-9, 40e-6, 90e-6, 200e-9))
    truth = scaled(prior, np.array([0.5, 0.3, 0.0, 0.0, 0.5]))
    engine = replace(ENGINE, max_num_seqs=16, max_num_scheduled_tokens=512)
    config = ReplayConfig(engine)
    asked = [
        request(str(i), 0.2 * i, prompt=80 + 97 * i % 700, output=30 + i % 11) for i in range(30)
    ]
    actual = replay(asked, config, truth)
    seen = [replace(r, actual=a) for r, a in zip(asked, actual, strict=True)]
    found = calibrate(seen, config, prior, first=10)
    assert len(found.factors) == len(GROUPS)
    before = accuracy(replay(asked, config, prior)[10:], actual[10:])
    after = accuracy(replay(asked, config, found.model)[10:], actual[10:])
    assert before["e2e"].mape > 0.2
    assert after["e2e"].mape < 0.05


def test_calibration_finds_an_engine_that_preempts() -> None:
    """With another step time other requests are preempted, so latencies jump."""
    draws = np.random.default_rng(12)
    prior = LinearStepTime((8e-3, 40e-6, 3e-9, 40e-6, 90e-6, 200e-9))
    truth = scaled(prior, draws.normal(0.0, 0.5, len(GROUPS)))
    config = ReplayConfig(replace(ENGINE, total_blocks=300, max_num_seqs=64))
    lengths = draws.integers((20, 20), (900, 500), size=(120, 2)).tolist()
    asked = [
        request(str(i), 0.03 * i, prompt=prompt, output=output)
        for i, (prompt, output) in enumerate(lengths)
    ]
    actual = replay(asked, config, truth)
    noise = np.exp(draws.normal(0.0, 0.1, len(asked))).tolist()
    measured = [
        replace(a, e2e_s=a.ttft_s + (a.e2e_s - a.ttft_s) * factor)
        for a, factor in zip(actual, noise, strict=True)
    ]
    seen = [replace(r, actual=m) for r, m in zip(asked, measured, strict=True)]
    found = calibrate(seen, config, prior, first=40)
    before = accuracy(replay(asked, config, prior)[40:], actual[40:])
    after = accuracy(replay(asked, config, found.model)[40:], actual[40:])
    assert before["e2e"].mape > 0.1
    assert after["e2e"].mape < 0.03


@pytest.mark.parametrize("truth", [HostTime(2e-3), HostTime(0, 2e-5), HostTime(1e-3, 1e-5)])
def test_the_host_s_time_is_found_beside_the_gpu_s(truth: HostTime) -> None:
    gpu = LinearStepTime((8e-3, 40e-6, 3e-9, 40e-6, 90e-6, 200e-9))
    config = ReplayConfig(replace(ENGINE, max_num_seqs=64, max_num_scheduled_tokens=512))
    asked = [
        request(str(i), 0.05 * i, prompt=80 + 97 * i % 700, output=30 + 7 * i % 90)
        for i in range(60)
    ]
    actual = replay(asked, config, truth.added_to(gpu))
    seen = [replace(r, actual=a) for r, a in zip(asked, actual, strict=True)]
    found = host_time(seen, config, gpu, first=20)
    # Each may stand in for a part of the other; their sum is right.
    before = accuracy(replay(asked, config, gpu)[20:], actual[20:])
    after = accuracy(replay(asked, config, found.added_to(gpu))[20:], actual[20:])
    assert before["e2e"].mape > 4 * after["e2e"].mape
    assert after["e2e"].mape < 0.015


def test_a_faster_engine_than_its_tables_has_no_negative_host_time() -> None:
    gpu = LinearStepTime((8e-3, 40e-6, 3e-9, 40e-6, 90e-6, 200e-9))
    asked = [request(str(i), 0.2 * i, prompt=90, output=40) for i in range(9)]
    actual = replay(asked, ASYNC, scaled(gpu, np.full(5, -0.3)))
    seen = [replace(r, actual=a) for r, a in zip(asked, actual, strict=True)]
    found = host_time(seen, ASYNC, gpu, first=5)
    assert (found.step_s, found.sequence_s) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_calibration_needs_latencies() -> None:
    for first in (0, 1):
        with pytest.raises(ValueError, match="latencies"):
            calibrate([request("a", 0.0)], ASYNC, STEADY, first)
        with pytest.raises(ValueError, match="latencies"):
            host_time([request("a", 0.0)], ASYNC, STEADY, first)


def test_a_prompt_whose_tokens_are_known_hits_what_is_cached() -> None:
    uncached = ReplayConfig(replace(ENGINE, enable_prefix_caching=False))
    asked = [request("a", 0.0, prompt=64, output=2), request("b", 9.0, prompt=64, output=2)]
    same = [replace(r, prompt_token_ids=tuple(range(64))) for r in asked]
    assert replay(asked, ASYNC, PER_TOKEN)[1].ttft_s == pytest.approx(64 * TOKEN_S)
    # A prompt's last token is always computed, and with it its block.
    assert replay(same, ASYNC, PER_TOKEN)[1].ttft_s == pytest.approx(16 * TOKEN_S)
    assert replay(same, uncached, PER_TOKEN)[1].ttft_s == pytest.approx(64 * TOKEN_S)


def test_calibration_looks_at_nothing_after_the_first_have_ended() -> None:
    known = replace(request("a", 0.0), actual=Latency(0.02, 0.10, 5))
    future = [request(str(i), 0.2 + i, prompt=90, output=90) for i in range(3)]
    alone = calibrate([known], ASYNC, STEADY, first=1)
    beside = calibrate([known, *future], ASYNC, STEADY, first=1)
    assert beside.factors == alone.factors
