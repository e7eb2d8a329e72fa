"""A follower's predictions equal its predictor's, and it accepts no false snapshot."""

from dataclasses import replace
from random import Random

import pytest

from foretell.engine import SnapshotPredictor
from foretell.engine.hindsight import replay
from foretell.engine.published import Published
from foretell.engine.snapshot_cache import STALE_S, SnapshotCache
from foretell.latency.tables import NO_TABLES
from foretell.length.distribution import knots
from foretell.length.prefix import chained
from foretell.model import (
    Prediction,
    RequestSpec,
    Turn,
)
from foretell.tools.harness.cases import Size, make_case
from foretell.wire.published import MessageReader
from tests.unit.asked import asked as foretold
from tests.unit.followed import (
    STEP_TIME,
    bytes_of,
    followed,
    illustrated,
    means,
    new_predictor,
    new_request,
    predicted,
    sent,
    tables_of,
)


def asked(predictor: SnapshotPredictor, request: RequestSpec, now_s: float) -> Prediction:
    """The prediction from the predictor's own state, which was not encoded to bytes."""
    options = {"announced_only": True, "externality": True}
    return foretold(predictor, request, STEP_TIME, now_s, **options)


@pytest.mark.parametrize("seed", range(20))
def test_followers_foretell_what_predictors_foretell(seed: int) -> None:
    rng, cache = Random(seed), SnapshotCache(knots)
    cases = [
        make_case(
            Size(rng.randint(0, 60), rng.choice((0, 0, 5, 40))),
            rng.randrange(1000),
            async_scheduling=rng.random() < 0.5,
        )
        for _ in range(5)
    ]
    now_s = cases[0].snapshot.taken_unix_s + 0.1
    expected, predictors = [], []
    for i, case in enumerate(cases):
        config = replace(
            case.snapshot.config,
            approximations=(f"feature {i}",),
            reported_within_s=0.05 * (i // 2 % 2),
        )
        snapshot = replace(case.snapshot, instance_id=f"engine-{i}", config=config)
        snapshot = replace(snapshot, taken_unix_s=now_s - 0.08)
        if i % 2:
            snapshot = illustrated(snapshot)
        predictor, engine = new_predictor(snapshot), cache.follow(f"engine-{i}")
        predictors.append(predictor)
        others, own = case.reserved
        predictor.reserve(others, now_s - 0.01, 10.0)
        engine.hear(sent(predictor, now_s), now_s)
        # The follower's own reservation counts at once, and only once when the predictor has it.
        predictor.reserve(own, now_s - 0.005, 10.0)
        engine.reserve(own, now_s - 0.005)
        if rng.random() < 0.5:
            engine.hear(sent(predictor, now_s, notices=1), now_s)
        expected.append(asked(predictor, cases[0].new, now_s))
    found = predicted(cache, cases[0].new, now_s)
    assert [p._replace(snapshot_age_s=0.0) for p in found] == [
        p._replace(snapshot_age_s=0.0) for p in expected
    ], f"pytest tests/unit/test_snapshot_cache.py -k 'foretell and {seed}'"
    assert [p.approximations for p in found] == [(f"feature {i}",) for i in range(len(found))]
    inputs = cache.inputs([p.instance_id for p in found], now_s)
    for i, (predictor, case) in enumerate(zip(predictors, cases, strict=True)):  # later
        snapshot = replace(case.snapshot, instance_id=f"engine-{i}", sequence=10**6, running=[])
        predictor.hear(replace(snapshot, waiting=[], taken_unix_s=now_s + 1.0))
        cache[f"engine-{i}"].hear(sent(predictor, now_s + 1.0), now_s + 1.0)
        cache[f"engine-{i}"].reserve(new_request(f"later-{i}"), now_s + 1.1)
    request, cached = cases[0].new, [p.cached_tokens for p in found]
    again = replay(inputs, request, knots, cached)
    assert [means(p) for p in again] == [means(p) for p in found]
    assert [means(p) for p in predicted(cache, request, now_s + 1.1)] != [means(p) for p in found]
    alone = replay(inputs, request, knots, cached, idle=True)
    assert all(a.ttft_s <= p.ttft_s for a, p in zip(alone, again, strict=True))
    assert all(a.load.running == a.load.reserved == 0 for a in alone)


def test_who_waits_with_images_delays_a_new_request() -> None:
    """Four images are encoded in a step, where all prompts would be computed in one."""
    rows = []
    for tell in (lambda snapshot: snapshot, illustrated):
        case = make_case(Size(1, 40), 3, async_scheduling=False)
        snapshot = replace(case.snapshot, waiting=tuple(case.snapshot.waiting))
        config = replace(snapshot.config, max_num_scheduled_tokens=40_000, max_num_seqs=200)
        waiting = tuple(replace(row, prompt_tokens=512) for row in snapshot.waiting)
        snapshot = tell(replace(snapshot, config=config, waiting=waiting))
        now_s = snapshot.taken_unix_s
        rows.append(asked(new_predictor(snapshot), new_request(), now_s).ttft_s)
    assert rows[1] > rows[0]


@pytest.mark.parametrize("seed", range(10))
def test_lanes_show_what_becomes_of_each_request(seed: int) -> None:
    rng, cache = Random(seed), SnapshotCache(knots)
    case = make_case(Size(rng.randint(0, 40), rng.choice((0, 8))), seed, async_scheduling=True)
    now_s = case.snapshot.taken_unix_s
    predictor, engine = new_predictor(case.snapshot), cache.follow(case.snapshot.instance_id)
    engine.hear(sent(predictor, now_s), now_s)
    engine.reserve(new_request("sent", sequences=1), now_s)
    found = cache.lanes(case.snapshot.instance_id, now_s)
    load = cache.load(case.snapshot.instance_id)
    stages = [lane.stage for lane in found]
    assert stages == ["running"] * load.running + ["waiting"] * load.waiting + ["sent"]
    assert all(0 <= lane.first_s <= lane.last_s for lane in found)
    assert all(lane.first_s == 0 for lane in found if lane.output_tokens)
    waits = cache.wait_s(case.snapshot.instance_id, new_request("sent", sequences=1), now_s)
    assert waits == found[-1].first_s > 0


def test_clocks_of_hosts_may_differ() -> None:
    cache, elsewhere = SnapshotCache(knots), SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    engine.hear(sent(predictor, now_s), now_s)
    away = elsewhere.follow("engine-0")
    away.hear(sent(predictor, now_s), now_s - 1e9)
    here = predicted(cache, new_request(), now_s)[0]
    there = predicted(elsewhere, new_request(), now_s - 1e9)[0]
    assert there.e2e_s == pytest.approx(here.e2e_s, abs=1e-5)
    assert there.snapshot_age_s == pytest.approx(here.snapshot_age_s, abs=1e-5)


def test_an_engine_works_when_it_has_made_a_step_and_not_when_it_only_lives() -> None:
    snapshot = make_case(Size(8, 0), 0, async_scheduling=True).snapshot
    predictor, engine = new_predictor(snapshot), SnapshotCache(knots).follow("engine-0")
    now_s = snapshot.taken_unix_s
    engine.hear(sent(predictor, now_s), now_s)
    assert engine.worked_s == float("-inf")
    predictor.hear(replace(snapshot, published_unix_s=now_s + 1))  # a heartbeat
    engine.hear(sent(predictor, now_s + 1), now_s + 1)
    assert engine.worked_s == float("-inf")
    stepped = replace(snapshot, sequence=snapshot.sequence + 1, taken_unix_s=now_s + 2)
    predictor.hear(stepped)
    engine.hear(sent(predictor, now_s + 2), now_s + 2)
    assert engine.worked_s == now_s + 2


def test_own_requests_count_until_they_end_or_the_picture_has_them() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    engine.hear(sent(predictor, now_s), now_s)
    for name in "abc":
        engine.reserve(new_request(name), now_s)
    assert cache.load("engine-0").reserved == 3
    engine.ended("b")
    assert cache.load("engine-0").reserved == 2
    engine.hear(sent(predictor, now_s, notices=1), now_s)  # this includes "a", which has ended
    assert cache.load("engine-0").reserved == 1


def test_what_is_learnt_later_replaces_what_was_announced() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    engine.hear(sent(predictor, now_s), now_s)
    engine.reserve(new_request("a"), now_s)
    longer = new_request("a", max_tokens=900)
    assert engine.revise(longer, now_s + 2) == 2.0
    assert cache.load("engine-0").reserved == 1
    assert engine.begin(now_s + 3) == [(longer, 3.0)]
    assert engine.revise(new_request("gone"), now_s) is None
    assert cache.load("engine-0").reserved == 1


def test_a_single_rollout_is_of_the_medians_and_near_the_mean_of_several() -> None:
    cache = SnapshotCache(knots)
    for i in range(6):
        snapshot = make_case(Size(40, 20), i, async_scheduling=True).snapshot
        predictor, engine = new_predictor(snapshot), cache.follow(f"engine-{i}")
        now_s = snapshot.taken_unix_s
        engine.hear(sent(predictor, now_s), 0.0)
    fresh = cache.fresh([f"engine-{i}" for i in range(6)], 0.0)

    def seconds(*, single: bool) -> list[float]:
        found = cache.predict(
            fresh,
            new_request(),
            0.0,
            announced_only=True,
            externality=False,
            with_quantiles=False,
            single=single,
        )
        return [prediction.e2e_s for prediction in found]

    assert seconds(single=True) == pytest.approx(seconds(single=False), rel=0.5)
    assert seconds(single=True) == seconds(single=True)


def test_a_new_stream_is_told_of_open_requests_again() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    engine.hear(sent(predictor, now_s), now_s)
    engine.reserve(new_request("a"), now_s)
    engine.reserve(new_request("b"), now_s + 1)
    engine.ended("a")
    assert [(spec.request_id, age) for spec, age in engine.begin(now_s + 3)] == [("b", 2.0)]
    assert cache.load("engine-0").reserved == 1
    engine.hear(sent(predictor, now_s + 3, notices=0), now_s + 3)
    assert cache.load("engine-0").reserved == 1  # this message does not include it yet
    engine.hear(sent(predictor, now_s + 3, notices=1), now_s + 3)
    assert cache.load("engine-0").reserved == 0


def test_who_falls_silent_is_not_believed() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    assert cache.fresh(["engine-0", "unknown"], now_s) == []
    engine.hear(sent(predictor, now_s), now_s)
    assert cache.fresh(["engine-0"], now_s + STALE_S) == ["engine-0"]
    assert cache.fresh(["engine-0"], now_s + STALE_S + 0.1) == []
    engine.hear(Published(now_s + 4, now_s), now_s + 4)  # the predictor lives; its engine is silent
    assert cache.fresh(["engine-0"], now_s + 4) == ["engine-0"]
    assert engine.age_s(now_s + 4) == pytest.approx(4.0)


def test_an_engine_that_hangs_does_not_look_idle() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache, running=30)
    engine.hear(sent(predictor, now_s), now_s)
    before = predicted(cache, new_request(), now_s)[0]
    for tick in range(1, 300):  # the predictor reports that it received nothing
        engine.hear(Published(now_s + tick, now_s), now_s + tick)
    after = predicted(cache, new_request(), now_s + 299)[0]
    assert after.e2e_s == pytest.approx(before.e2e_s, rel=0.2)


def test_a_clock_that_is_set_is_followed_at_once() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    engine.hear(sent(predictor, now_s), now_s)
    before = predicted(cache, new_request(), now_s)[0]
    for jump_s in (-7200.0, 3600.0):
        message = bytes_of(predictor, now_s)
        message.sent_unix_s = now_s + jump_s
        engine.hear(MessageReader(tables_of, NO_TABLES).read(message), now_s)
        assert predicted(cache, new_request(), now_s)[0].e2e_s < before.e2e_s + 1.0


def test_engines_leave_and_others_take_their_places() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    engine.hear(sent(predictor, now_s), now_s)
    cache.leave("engine-0")
    assert cache.fresh(["engine-0"], now_s) == []
    assert cache.follow("engine-1").index == engine.index
    assert cache.fresh(["engine-1"], now_s) == []


def test_prefixes_are_found_that_the_predictor_or_the_follower_knows() -> None:
    cache = SnapshotCache(knots)
    predictor, engine, now_s = followed(cache)
    config = replace(make_case(Size(8, 0), 0, async_scheduling=True).snapshot.config)
    prefix = chained([b"a", b"b", b"c"])
    message = sent(predictor, now_s)
    snapshot = message.snapshot
    assert snapshot is not None
    caching = snapshot._replace(config=replace(config, enable_prefix_caching=True))
    told = message._replace(snapshot=caching, all_prefixes=True, cached_prefixes=prefix[:1])
    engine.hear(told, now_s)
    request = new_request("x", prefix=prefix, prefix_chunk_tokens=100.0)
    assert predicted(cache, request, now_s)[0].cached_tokens == 96
    sibling = new_request("y", prefix=prefix[:2], prefix_chunk_tokens=100.0)
    engine.reserve(sibling, now_s)
    assert predicted(cache, request, now_s)[0].cached_tokens == 192
    # Of a request on its way, the engine need not compute again what it has cached.
    assert [row.cached_tokens for row in engine.exposure().announced] == [96]
    engine.revise(sibling._replace(max_tokens=900), now_s)
    assert [row.cached_tokens for row in engine.exposure().announced] == [96]
    later = new_request("z", turn=Turn(5, 4, 150.0))
    assert predicted(cache, later, now_s)[0].cached_tokens == 0
    engine.ended("y")
    engine.hear(Published(now_s, now_s, None, False, (4,), prefix[:1]), now_s)
    assert predicted(cache, request, now_s)[0].cached_tokens == 0
    assert predicted(cache, later, now_s)[0].cached_tokens == 144
