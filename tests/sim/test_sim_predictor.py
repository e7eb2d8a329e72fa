"""Snapshots of a simulated predictor and of a service are equal, and lead to equal predictions."""

from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import numpy as np
import pytest

from foretell.engine import Content, Sequence, SnapshotPredictor, Twin
from foretell.engine.arrays import steps_in_flight
from foretell.engine.prefixes import PrefixIndex
from foretell.engine.published import Snapshot
from foretell.engine.publishing import PrefixNews
from foretell.engine.snapshot_cache import SnapshotCache
from foretell.engine.table import EngineTable
from foretell.kernel.snapshot_rows import REQUEST, SNAPSHOT
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime
from foretell.length import PRIOR_TOKENS
from foretell.length.distribution import knots
from foretell.length.prefix import chained
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
    Step,
)
from foretell.sim.config import SimInstanceConfig
from foretell.sim.events import Events
from foretell.sim.instance import SimInstance
from foretell.sim.predictor import Camera, SimPredictor
from tests.unit.asked import asked

STEP_TIME = LinearStepTime((0.010, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
BELIEVED = LinearStepTime((0.011, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
DELAY_S = 0.002
CHUNK_TOKENS = 8
SHAPE = ("prefill_seqs", "prefill_tokens", "prefill_pairs", "decode_seqs", "decode_pairs")


def snapshot_of(
    twin: Twin, specs: dict[str, RequestSpec], now_s: float, sequence: int
) -> EngineSnapshot:
    """The snapshot that a plugin would publish."""
    clock, tally = twin._clock, twin._tally
    order = [(int(clock["oldest"]) + i) % 2 for i in range(twin.in_flight)]
    counts = [twin._records["at"][name][0] for name in ("older", "newer")]
    scheduled: dict[int, int] = {}
    if order:
        entries = twin._entries(order[-1])[: int(counts[order[-1]]["scheduled"])]
        scheduled = dict(zip(entries["slot"].tolist(), entries["tokens"].tolist(), strict=True))

    def state(seq: Sequence) -> RequestState:
        return RequestState(
            request_id=seq.request_id,
            foretell_id=seq.request_id,
            prompt_tokens=seq.prompt_tokens,
            output_tokens=seq.output_tokens,
            computed_tokens=seq.computed_tokens,
            max_tokens=0,
            arrival_unix_s=seq.arrival_s,
            cached_tokens=seq.cached_tokens,
            predicted_output_tokens=specs[seq.request_id].length.expected_tokens,
            scheduled_tokens=scheduled.get(seq.slot, 0),
            in_flight_tokens=seq.placeholders if twin.config.async_scheduling else 0,
            preemptions=seq.preemptions,
        )

    steps = []
    for index in order:
        shape = BatchShape(*(int(counts[index][name]) for name in SHAPE))
        steps.append(Step(index, float(tally["begun_s"][index]), 0.0, shape))
    return EngineSnapshot(
        instance_id="engine-0",
        engine_run_id="run",
        sequence=sequence,
        taken_unix_s=now_s,
        published_unix_s=now_s,
        config=twin.config,
        free_blocks=twin.free_blocks,
        running=tuple(map(state, twin.running)),
        waiting=tuple(map(state, twin.waiting)),
        steps_in_flight=tuple(steps),
        completed_steps=(),
    )


def engine_of(draws: Random) -> EngineConfig:
    return EngineConfig(
        model_name="small",
        block_size_tokens=draws.choice([4, 16]),
        total_blocks=draws.choice([40, 120]),
        max_num_seqs=draws.randint(2, 8),
        max_num_scheduled_tokens=draws.choice([16, 64]),
        max_model_len=150,
        async_scheduling=draws.random() < 0.5,
    )


def requests_of(draws: Random) -> list[tuple[float, RequestSpec, int]]:
    """The arrival times, specs and true output tokens of requests.

    Prompts with the same topic share the chunks at their beginning, as far as both reach.
    """
    now_s, certain, result = 0.0, draws.random() < 0.5, []
    for index in range(30):
        now_s += draws.expovariate(draws.choice([5.0, 40.0]))
        output = draws.randint(1, 60)
        length = LengthEstimate(output * draws.uniform(0.5, 2.0), source="model")
        if certain:
            length = LengthEstimate(float(output), source="hint")
        prompt = draws.randint(1, 80)
        topic, chunks = draws.randint(0, 3), prompt // CHUNK_TOKENS
        prefix = chained((b"%d" % i for i in range(chunks)), b"%d" % topic)
        spec = RequestSpec(
            f"r{index}",
            prompt,
            0,
            length,
            prefix=prefix,
            prefix_chunk_tokens=float(CHUNK_TOKENS),
        )
        result.append((now_s, spec, output))
    return result


def content_of(spec: RequestSpec, block_size_tokens: int) -> Content:
    segments = [(str(name), CHUNK_TOKENS) for name in spec.prefix]
    rest = spec.prompt_tokens - CHUNK_TOKENS * len(segments)
    return Content([*segments, (spec.request_id, rest)], spec.request_id, block_size_tokens)


def assert_equal(ours: Snapshot, theirs: Snapshot, depth: int) -> None:
    """Check that both show the same engine, apart from the number of snapshots taken."""
    (mine,), (other,) = (np.frombuffer(each.header, SNAPSHOT) for each in (ours, theirs))
    assert mine["figures"].tolist() == other["figures"].tolist()
    steps = int(mine["steps"])
    assert steps == other["steps"]
    assert mine["shapes"][:steps].tolist() == other["shapes"][:steps].tolist()
    assert not steps or mine["begun_s"] == other["begun_s"]
    count, running = mine["figures"][:2].tolist()
    requests = [np.frombuffer(each.requests, REQUEST) for each in (ours, theirs)]
    for name in REQUEST.names or ():
        if name == "in_flight" and depth == 1:
            continue  # a snapshot has it with async scheduling only
        end = count if name not in ("computed", "blocks", "scheduled", "in_flight") else running
        rows = [each[name][:end].tolist() for each in requests]
        assert rows[0] == rows[1], name
    assert ours.reservations == theirs.reservations


@pytest.mark.parametrize("caches", [False, True], ids=["no cache", "prefix cache"])
def test_both_snapshots_give_the_same_predictions(seed: int, caches: bool) -> None:
    draws = Random(seed)
    config = replace(engine_of(draws), enable_prefix_caching=caches)
    announced_only = draws.random() < 0.5
    table = EngineTable(1)
    instance = SimInstance(
        "engine-0",
        SimInstanceConfig(config, STEP_TIME, BELIEVED),
        table,
        0,
        prefix_cache=caches,
        counted_s=(0.0, 0.0),
    )
    service = SnapshotPredictor(
        dispatch_delay_s=DELAY_S,
        length_row=knots,
        prior_tokens=PRIOR_TOKENS,
    )
    clock, cache, news = Events(), SnapshotCache(knots), PrefixNews()
    engine = cache.follow("engine-0")
    predictor = SimPredictor(
        0,
        instance,
        BELIEVED,
        Camera(table, 1),
        clock,
        dispatch_delay_s=DELAY_S,
        interval_s=0.1,
        is_heard=lambda: True,
        is_awaited=lambda: False,
        prefixes=PrefixIndex(config) if caches else None,
    )
    requests = requests_of(draws)
    specs = {spec.request_id: spec for _, spec, _ in requests}
    events: list[tuple[float, int, str, int]] = []
    for index, (at_s, _, _) in enumerate(requests):
        heappush(events, (at_s, index, "ask", index))
    compared, hit, published = 0, 0, 1
    service.hear(snapshot_of(instance.twin, specs, 0.0, published))
    while events:
        now_s, _, what, index = heappop(events)
        clock.now_s = now_s
        _, spec, output = requests[index]
        row = knots(spec.length)
        if what == "ask":
            predictor.has_changed()
            snapshot = predictor.publish()
            engine.hear(news.add(predictor.message(snapshot), predictor.ledger.prefixes), now_s)
            (ours,) = cache.predict(
                ["engine-0"],
                spec,
                now_s,
                announced_only=announced_only,
                externality=True,
                with_quantiles=True,
            )
            theirs = asked(
                service, spec, BELIEVED, now_s, announced_only=announced_only, externality=True
            )
            told = service.publish(OnlineStepTime(), now_s)
            assert told is not None
            assert_equal(snapshot, told, steps_in_flight(config))
            for name in ("ttft_s", "e2e_s", "tpot_s", "preempted_s", "added_ttft_s", "added_e2e_s"):
                assert getattr(ours, name) == pytest.approx(
                    getattr(theirs, name), rel=1e-9, abs=1e-9
                ), name
            assert (ours.load, ours.cached_tokens) == (theirs.load, theirs.cached_tokens)
            hit += ours.cached_tokens
            for ours_at, theirs_at in zip(ours.e2e_quantiles, theirs.e2e_quantiles, strict=True):
                assert ours_at == pytest.approx(theirs_at)
            compared += ours.ttft_s > 0.02
            predictor.reserve(spec, row, now_s)
            service.reserve(spec, now_s, 1e9)
            heappush(events, (now_s + DELAY_S, 1000 + index, "deliver", index))
        elif what == "deliver":
            content = content_of(spec, config.block_size_tokens) if caches else None
            instance.deliver(spec.request_id, spec.prompt_tokens, output, content, row, now_s)
            predictor.arrived(spec)
            if not instance.in_step:
                heappush(events, (now_s, 2000 + index, "advance", 0))
        elif what == "advance" or instance.in_step:
            finished = table.step(0, now_s)
            instance.forget(finished)
            for seq in finished:
                predictor.served(seq.request_id, seq.cached_tokens, seq.prompt_tokens)
                predictor.complete(seq.request_id, answered=True)
                service.complete(seq.request_id, answered=True)
            if instance.in_step:
                heappush(events, (float(instance.twin._clock["first_end_s"]), 3000, "advance", 0))
        if what != "ask":  # every change is published
            published += 1
            service.hear(snapshot_of(instance.twin, specs, now_s, published))
    instance.check_empty()
    assert compared > 5
    assert (hit > 0) == caches
