"""What a predictor keeps about its engine, and what it learns from snapshots."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.engine import SnapshotPredictor
from foretell.engine.ledger import MAX_RESERVATIONS
from foretell.latency.linear import LinearStepTime
from foretell.length.distribution import knots
from foretell.length.prefix import chained
from foretell.model import (
    OFFLINE_PRIORITY,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    Prediction,
    RequestSpec,
    RequestState,
)
from tests.unit.asked import asked
from tests.unit.exact_lengths import conditional_mean

CONFIG = EngineConfig("m", 16, 100, 8, 64, 1024)
START = 1000.0


def new_predictor(dispatch_delay_s: float = 0.0) -> SnapshotPredictor:
    return SnapshotPredictor(
        dispatch_delay_s=dispatch_delay_s, length_row=knots, prior_tokens=100.0
    )


def reserved(predictor: SnapshotPredictor, now: float) -> list[str]:
    """Which of the requests a, b and c are still reserved."""
    predictor.ledger.expire(now)
    return [name for name in "abc" if predictor.ledger.is_reserved(name)]


def spec(request_id: str) -> RequestSpec:
    return RequestSpec(request_id, 32, 0, LengthEstimate(10.0), sequences=1)


def state(request_id: str, *, output: int = 0, arrival: float = START) -> RequestState:
    return RequestState(f"cmpl-{request_id}", request_id, 32, output, 32, 100, arrival)


def snapshot(
    sequence: int, at: float, *running: RequestState, run: str = "run", free: int = 90
) -> EngineSnapshot:
    return EngineSnapshot("e", run, sequence, at, at, CONFIG, free, running, (), (), ())


def test_a_reservation_holds_until_shown_ended_or_expired() -> None:
    predictor = new_predictor()
    predictor.hear(snapshot(1, START))
    for name in "abc":
        predictor.reserve(spec(name), START, ttl_s=5.0)
    assert reserved(predictor, START) == ["a", "b", "c"]
    predictor.hear(snapshot(2, START + 1, state("a")))
    predictor.complete("b")
    assert reserved(predictor, START + 1) == ["c"]
    assert reserved(predictor, START + 6) == []
    predictor.reserve(spec("a"), START + 6, ttl_s=5.0)  # too late: a snapshot has shown it already
    assert reserved(predictor, START + 6) == []


def test_load_counts_reservations() -> None:
    predictor = new_predictor()
    assert predictor.load(START) is None
    predictor.hear(snapshot(1, START, state("x"), free=98))
    predictor.reserve(spec("a"), START, ttl_s=5.0)
    load = predictor.load(START)
    assert load is not None
    assert (load.running, load.reserved, load.used_blocks) == (1, 1, 2)
    assert load.waiting_prefill_blocks == 2


@pytest.mark.parametrize("co_schedules", [False, True])
def test_offline_requests_are_told_from_online_ones(co_schedules: bool) -> None:
    """By their priority, also where the engine schedules them apart."""
    predictor, config = new_predictor(), replace(CONFIG, co_schedules=co_schedules)
    running = state("online", output=1), replace(state("offline"), priority=OFFLINE_PRIORITY)
    predictor.hear(replace(snapshot(1, START, *running, free=96), config=config))
    load = predictor.load(START)
    assert load is not None
    assert load.offline_blocks == (2 if co_schedules else 0)
    for index in range(9):
        line = spec(f"line {index}")._replace(priority=OFFLINE_PRIORITY)
        predictor.reserve(line, START + 1.0, ttl_s=5.0)
    (coming,) = predictor.ledger.expected(START + 1.0)
    # Offline arrivals get only what online requests leave, so they are not worth expecting.
    assert (coming.sequences < 30) == co_schedules


def test_ttft_is_counted_from_the_reservation() -> None:
    predictor = new_predictor()
    predictor.hear(snapshot(1, START))
    predictor.reserve(spec("a"), START, ttl_s=5.0)
    predictor.hear(snapshot(2, START + 0.5, state("a")))
    predictor.hear(snapshot(3, START + 0.75, state("a", output=1)))
    predictor.hear(snapshot(4, START + 1.0, state("a", output=2), state("stranger", output=5)))
    seen = predictor.complete("a")
    assert (seen.ttft_s, seen.output_tokens, seen.prompt_tokens) == (0.75, 2, 32)
    # A snapshot may arrive before Reserve: then the arrival in the engine counts.
    assert predictor.complete("stranger").ttft_s == 1.0
    assert predictor.complete("never").output_tokens == 0


def delay_after(requests: int, *, busy: bool) -> float:
    """The delay learned when each request shows up 40 ms after its reservation."""
    predictor = new_predictor(0.002)
    others = (state("other", output=1),) if busy else ()
    at, sequence = START, 1
    for i in range(requests):
        predictor.hear(snapshot(sequence, at, *others))
        predictor.reserve(spec(f"r{i}"), at, ttl_s=5.0)
        arrival = at + 0.03  # when the API server received it
        at, sequence = at + 0.04, sequence + 1
        predictor.hear(snapshot(sequence, at, *others, state(f"r{i}", arrival=arrival)))
        predictor.complete(f"r{i}")
        at, sequence = at + 1.0, sequence + 1
    return predictor.dispatch_delay_s


def test_the_dispatch_delay_is_learned() -> None:
    assert delay_after(0, busy=False) == 0.002
    # An idle engine schedules at once; a busy one received it between 30 and 40 ms after that.
    assert delay_after(80, busy=False) == pytest.approx(0.040)
    assert 0.0299 <= delay_after(80, busy=True) <= 0.0401


def test_what_has_come_of_late_is_expected_to_come() -> None:
    def predicted(*, announced_only: bool) -> float:
        predictor = SnapshotPredictor(dispatch_delay_s=0.0, length_row=knots, prior_tokens=100.0)
        predictor.hear(snapshot(1, START))
        for i in range(200):
            predictor.reserve(spec(f"r{i}"), START + 0.1 * i, ttl_s=0.05)
        long = RequestSpec("new", 32, 0, LengthEstimate(500.0, source="hint"))
        step_time = LinearStepTime((0.01, 0, 0, 0, 1e-3, 0))
        seen = asked(predictor, long, step_time, START + 20.0, announced_only=announced_only)
        return seen.e2e_s

    assert predicted(announced_only=False) > 1.05 * predicted(announced_only=True)


@pytest.mark.parametrize("generated", [1, 50, 300])
def test_who_waits_for_a_seat_is_told_by_what_has_been_generated_since(generated: int) -> None:
    """A running request's estimate is revised by its tokens, and placements use the revised one."""
    length = LengthEstimate(210.0, ((0.1, 10.0), (0.5, 30.0), (0.6, 350.0), (0.9, 450.0)))
    one_seat = replace(CONFIG, max_num_seqs=1)
    predictor = new_predictor()
    predictor.hear(replace(snapshot(1, START), config=one_seat))
    predictor.reserve(RequestSpec("a", 32, 0, length), START, ttl_s=5.0)
    running = replace(state("a", output=generated), computed_tokens=31 + generated, max_tokens=900)
    later = replace(snapshot(2, START + 1, running, free=60), config=one_seat)
    predictor.hear(later)
    seen = asked(
        predictor,
        RequestSpec("new", 32, 0, LengthEstimate(10.0, source="hint")),
        LinearStepTime((0.01, 0, 0, 0, 0, 0)),
        START + 1,
    )
    left = conditional_mean(np.array(knots(length)), float(generated)) - generated
    assert seen.ttft_s == pytest.approx(0.01 * left, rel=0.1)


def test_the_error_of_step_times_widens_the_quantiles() -> None:
    predictor = new_predictor()
    predictor.hear(snapshot(1, START))
    model = LinearStepTime((0.01, 0, 0, 0, 0, 0))
    certain = RequestSpec("new", 32, 0, LengthEstimate(10.0, source="hint"))
    seen = [asked(predictor, certain, model, START, error=error) for error in (0.0, 0.1)]
    sure, unsure = dict(seen[0].e2e_quantiles), dict(seen[1].e2e_quantiles)
    assert unsure[0.1] < sure[0.1]
    assert unsure[0.9] > sure[0.9]
    assert seen[0].e2e_s == seen[1].e2e_s


def test_a_restart_forgets_what_the_engine_did_and_memory_is_bounded() -> None:
    predictor = new_predictor()
    predictor.hear(snapshot(9, START, state("a", output=3)))
    assert not predictor.hear(snapshot(8, START + 1))
    assert predictor.hear(snapshot(1, START + 1, run="another"))
    assert predictor.complete("a").output_tokens == 0
    for i in range(MAX_RESERVATIONS + 5):
        predictor.reserve(spec(str(i)), START, ttl_s=5.0)
    assert predictor.ledger.reserved == MAX_RESERVATIONS


def asks(name: str, chunks: int, text: bytes = b"") -> RequestSpec:
    """A request for the first `chunks` of 128 tokens of a long text, and ten tokens more."""
    prefix = chained((b"%d" % i for i in range(chunks)), text)
    length = LengthEstimate(10.0, source="hint")
    return RequestSpec(name, 128 * chunks + 10, 0, length, prefix=prefix, prefix_chunk_tokens=128.0)


def shown(request: RequestSpec, *, output: int = 0, cached: int = 0) -> RequestState:
    computed = request.prompt_tokens if output else 0
    return RequestState(
        f"cmpl-{request.request_id}",
        request.request_id,
        request.prompt_tokens,
        output,
        computed,
        100,
        START,
        cached_tokens=cached,
        scheduled_tokens=int(output > 0),
    )


PREFILL = LinearStepTime((0.001, 1e-3, 0, 0, 1e-4, 0))


def predicted(predictor: SnapshotPredictor, request: RequestSpec) -> Prediction:
    return asked(predictor, request, PREFILL, START)


def test_a_cached_prefix_shortens_the_prefill() -> None:
    predictor = new_predictor()
    predictor.hear(snapshot(1, START))
    cold = predicted(predictor, asks("a", 5))
    assert (cold.cached_tokens, cold.ttft_s) == (0, pytest.approx(0.65, rel=0.05))
    predictor.reserve(asks("a", 5), START, ttl_s=5.0)
    predictor.hear(snapshot(2, START, shown(asks("a", 5), output=1)))
    predictor.hear(snapshot(3, START))
    assert predictor.complete("a").cached_tokens == 0
    warm = predicted(predictor, asks("b", 5))
    assert (warm.cached_tokens, warm.ttft_s) == (640, pytest.approx(0.01, rel=0.2))
    predictor.reserve(asks("b", 5), START, ttl_s=5.0)
    predictor.hear(snapshot(4, START, shown(asks("b", 5), output=1, cached=640)))
    assert predictor.complete("b").cached_tokens == 640


def test_hits_of_those_who_wait_are_believed_until_they_run() -> None:
    """An engine looks up cached blocks only at admission."""

    def behind(*, known: bool) -> float:
        predictor = new_predictor()
        predictor.hear(snapshot(1, START))
        if known:
            predictor.reserve(asks("a", 5), START, ttl_s=5.0)
            predictor.hear(snapshot(2, START, shown(asks("a", 5), output=1)))
        predictor.reserve(asks("b", 5), START, ttl_s=5.0)
        waiting = (shown(asks("b", 5)),)
        predictor.hear(replace(snapshot(3, START), waiting=waiting))
        return predicted(predictor, spec("c")).ttft_s

    assert behind(known=False) - behind(known=True) == pytest.approx(0.64, rel=0.05)


@pytest.mark.parametrize("when", ["on its way", "waiting", "running"])
def test_a_request_whose_length_is_revised_finds_and_proves_what_it_did_before(when: str) -> None:
    """Its own chunks are not hits, and that it did not find them says nothing about others."""
    predictor, revised = new_predictor(), asks("b", 3, b"another")
    predictor.hear(snapshot(1, START))
    predictor.reserve(asks("a", 5), START, ttl_s=5.0)
    predictor.hear(snapshot(2, START, shown(asks("a", 5), output=1)))
    predictor.hear(snapshot(3, START))
    predictor.complete("a", answered=True)
    predictor.reserve(revised, START, ttl_s=5.0)
    if when == "waiting":
        predictor.hear(replace(snapshot(4, START), waiting=(shown(revised),)))
    elif when == "running":
        predictor.hear(snapshot(4, START, shown(revised, output=1)))
    before = predicted(predictor, spec("d"))
    predictor.reserve(revised._replace(length=LengthEstimate(10.0)), START, ttl_s=5.0)
    assert predicted(predictor, spec("d")).ttft_s == pytest.approx(before.ttft_s)
    predictor.hear(snapshot(5, START, shown(revised, output=2)))
    assert predictor.complete("b", answered=True).cached_tokens == 0
    assert predicted(predictor, asks("c", 5)).cached_tokens == 640


def test_a_snapshot_that_was_faster_than_the_announcement_still_tells_what_is_cached() -> None:
    predictor = new_predictor()
    predictor.hear(snapshot(1, START))
    predictor.hear(snapshot(2, START, shown(asks("a", 5), output=1)))
    predictor.reserve(asks("a", 5), START, ttl_s=5.0)
    predictor.hear(snapshot(3, START, shown(asks("a", 5), output=2)))
    predictor.complete("a", answered=True)
    assert predicted(predictor, asks("b", 5)).cached_tokens == 640


@pytest.mark.parametrize("why", ["no caching", "another run", "never arrived", "never ran"])
def test_there_are_no_hits_of_what_is_not_there(why: str) -> None:
    predictor = new_predictor()
    first = snapshot(1, START)
    if why == "no caching":
        first = replace(first, config=replace(CONFIG, enable_prefix_caching=False))
    predictor.hear(first)
    predictor.reserve(asks("a", 5), START, ttl_s=0.0 if why == "never arrived" else 5.0)
    if why == "another run":
        predictor.hear(snapshot(1, START, run="next"))
    elif why == "never arrived":
        assert reserved(predictor, START) == []
    elif why == "never ran":
        predictor.hear(replace(snapshot(2, START), waiting=(shown(asks("a", 5)),)))
        predictor.hear(snapshot(3, START))
        predictor.complete("a")
    assert predicted(predictor, asks("b", 5)).cached_tokens == 0


def test_what_no_snapshot_showed_running_has_no_known_hits() -> None:
    predictor = new_predictor()
    predictor.hear(snapshot(1, START))
    predictor.reserve(asks("a", 5), START, ttl_s=5.0)
    predictor.hear(replace(snapshot(2, START), waiting=(shown(asks("a", 5)),)))
    assert predictor.complete("a").cached_tokens is None
