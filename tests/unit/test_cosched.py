"""The parts of co-scheduling, without an engine."""

from collections import Counter
from collections.abc import Sequence
from math import inf, isclose
from random import Random

import pytest

from foretell.cosched import (
    BurstReserve,
    JobClass,
    Offer,
    OfflinePool,
    Targets,
    best_of,
    job_of,
)
from foretell.cosched.plan import Allowance, StepWork, plan_step, with_prefill
from foretell.cosched.pool import MOST_PASSED_OVER
from foretell.kernel.offline import STRETCH, arrival_s
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape

NOTHING = BatchShape()
MODEL = LinearStepTime((10e-3, 50e-6, 10e-9, 50e-6, 50e-6, 100e-9))


@pytest.mark.parametrize(
    ("fields", "job_class", "targets"),
    [
        ({}, JobClass.ONLINE, Targets()),
        ({"class": "offline"}, JobClass.OFFLINE, Targets()),
        ({"class": "offline", "slo_ttft_ms": 5}, JobClass.OFFLINE, Targets()),
        ({"class": "online", "slo_ttft_ms": 500}, JobClass.ONLINE, Targets(0.5)),
        ({"slo_ttft_ms": "500", "slo_tpot_ms": 50}, JobClass.ONLINE, Targets(0.5, 0.05)),
        ({"class": ["offline"], "slo_ttft_ms": -1}, JobClass.ONLINE, Targets()),
        ({"class": 3, "slo_ttft_ms": "soon", "slo_tpot_ms": "nan"}, JobClass.ONLINE, Targets()),
        ({"slo_tpot_ms": 10**400}, JobClass.ONLINE, Targets()),
    ],
)
def test_what_requests_say_of_themselves(
    fields: dict[str, object], job_class: JobClass, targets: Targets
) -> None:
    job = job_of(fields)
    assert (job.job_class, job.targets) == (job_class, targets)


def test_slack_is_until_the_next_tokens_deadline() -> None:
    targets, aim_s = Targets(1.0, 0.05), 0.05 / (1.0 + STRETCH)
    assert targets.slack_s(0.3, 0) == 0.7
    assert isclose(targets.slack_s(1.0 + 20 * aim_s - 0.02, 20), 0.02)
    assert targets.slack_s(2.5, 20) < 0
    assert targets.slack_s(0.1, 1) == aim_s  # being early does not make the next one late
    assert Targets().slack_s(1e9, 5) == inf
    assert Targets(ttft_s=1.0).slack_s(1e9, 5) == inf
    assert Targets(tpot_s=0.05).slack_s(1e9, 5) == aim_s


def test_later_tokens_are_due_from_the_first() -> None:
    """However early it was: after a delay by a prompt, faster tokens make up for it."""
    job = job_of({"slo_ttft_ms": 1000, "slo_tpot_ms": 50}).begun(0.2)
    assert (job.job_class, job.targets) == (JobClass.ONLINE, Targets(0.2, 0.05))
    aim_s = 0.05 / (1.0 + STRETCH)
    assert isclose(job.targets.slack_s(0.2, 1), aim_s)
    assert isclose(job.targets.slack_s(0.2 + aim_s + 0.03, 2), aim_s - 0.03)
    assert job.targets.slack_s(0.2 + 3 * aim_s + 0.01, 3) < 0
    assert isclose(job_of({"slo_tpot_ms": 50}).begun(0.2).targets.slack_s(0.2, 1), aim_s)


def load(
    online: BatchShape = NOTHING,
    contexts: Sequence[int] = (),
    prefill: tuple[int, int] = (0, 0),
    tokens: int = 2048,
) -> StepWork:
    return StepWork(online, contexts, prefill, tokens)


def test_alone_offline_work_gets_the_whole_step() -> None:
    plan = plan_step(MODEL.packed(), load(contexts=[100] * 50, prefill=(0, 9000)), Allowance())
    assert plan[:2] == (50, 2048 - 50)


@pytest.mark.parametrize("seed", range(50))
def test_a_plan_keeps_the_limit_and_no_more_would_fit(seed: int) -> None:
    draws = Random(seed)
    online = BatchShape(
        1, draws.randint(1, 900), draws.randint(0, 100_000), draws.randint(0, 40), 40_000
    )
    contexts = [draws.randint(1, 8000) for _ in range(draws.randint(0, 60))]
    wanted = draws.randint(0, 4000)
    allowance = Allowance(draws.choice([inf, 0.05, 0.2]), draws.random() < 0.5, 0.1)
    plan = plan_step(MODEL.packed(), load(online, contexts, (500, wanted)), allowance)

    def step_s(decodes: int, tokens: int) -> float:
        served = contexts[:decodes]
        shape = BatchShape(
            online.prefill_seqs,
            online.prefill_tokens,
            online.prefill_pairs,
            online.decode_seqs + decodes,
            online.decode_pairs + sum(served) + decodes,
        )
        return MODEL.step_s(with_prefill(shape, tokens, 500) if tokens else shape)

    alone_s = MODEL.step_s(online)
    limit_s = allowance.limit_s(alone_s)
    if plan.decodes or plan.prefill_tokens:
        assert step_s(plan.decodes, plan.prefill_tokens) <= limit_s
    room = 2048 - online.tokens - plan.decodes - plan.prefill_tokens
    assert room >= 0
    if plan.decodes < len(contexts) and room:
        assert step_s(plan.decodes + 1, 0) > limit_s
    elif plan.prefill_tokens < wanted and room:
        assert step_s(plan.decodes, plan.prefill_tokens + 1) > limit_s
    if allowance.as_alone:
        assert limit_s <= alone_s * (1.0 + STRETCH)


@pytest.mark.parametrize("contexts", [[], [4000]])
def test_an_engine_without_online_work_never_stands_still(contexts: list[int]) -> None:
    plan = plan_step(MODEL.packed(), load(contexts=contexts, prefill=(0, 500)), Allowance(-1.0))
    assert plan.decodes + plan.prefill_tokens == 1


def test_online_work_that_is_late_is_not_made_later_and_holds_nothing_back() -> None:
    online = BatchShape(0, 0, 0, 10, 10_000)
    late, tight = Allowance(slack_s=-0.5), Allowance(slack_s=MODEL.step_s(online))
    offline = load(online, [10] * 40, (0, 100))
    assert plan_step(MODEL.packed(), offline, tight)[:2] == (0, 0)
    plan = plan_step(MODEL.packed(), offline, late)
    assert plan.limit_s == MODEL.step_s(online) * (1.0 + STRETCH)
    assert 0 < plan.decodes < 40


@pytest.mark.parametrize(
    ("target_s", "longest_s"),
    [(0.0, 0.03), (0.4, 0.1), (0.1, 0.025), (0.01, 0.022), (inf, inf)],
)
def test_a_step_that_a_request_may_find_leaves_most_of_its_target(
    target_s: float, longest_s: float
) -> None:
    """The shortest step takes 20 ms: 1.5 times as long without a target, 1.1 with a close one."""
    assert arrival_s(0.02, target_s) == pytest.approx(longest_s)


def test_the_best_offer_is_worth_most_per_second() -> None:
    cheap = Offer(1, 0, 500, 0, 0.05)
    cached = Offer(2, 4000, 100, 0, 0.05)
    harmful = Offer(3, 4000, 100, 4500, 0.05)
    slow = Offer(4, 4000, 100, 0, 0.5)
    assert best_of([cheap, cached, harmful, slow], 64) == cached
    assert best_of([cheap, harmful], 64) == cheap
    assert best_of([], 64) is None


def test_the_reserve_is_what_online_requests_usually_need_more() -> None:
    reserve = BurstReserve()
    assert reserve.blocks(0) == 0.0
    for second in range(600):  # 100 blocks, and every tenth second 400
        reserve.observe(400.0 if second % 10 == 0 else 100.0, float(second))
    mean, deviation = 130.0, 90.0
    assert isclose(reserve.blocks(0), mean + 2 * deviation, rel_tol=0.02)
    assert isclose(reserve.blocks(100), mean + 2 * deviation - 100, rel_tol=0.03)
    assert reserve.blocks(1000) == 0.0
    for second in range(600, 600 + 8 * 3600):
        reserve.observe(10.0, float(second))
    assert reserve.blocks(0) < 15.0


def chain(*names: str) -> tuple[bytes, ...]:
    """Hashes of blocks; like vLLM's, each covers all blocks before it."""
    return tuple("/".join(names[: n + 1]).encode() for n in range(len(names)))


def test_the_longest_resident_prefix_comes_first_then_the_most_shared() -> None:
    pool = OfflinePool()
    pool.add(1, chain("a", "b"), 40)
    pool.add(2, chain("c", "d"), 40)
    pool.add(3, chain("c", "e"), 40)
    nothing = frozenset[bytes]()
    assert pool.candidates(nothing.__contains__) == [(2, 0)]
    assert pool.candidates(set(chain("a")).__contains__) == [(1, 1)]
    assert pool.candidates(set(chain("c", "e")).__contains__) == [(3, 2)]
    pool.remove(2)
    assert pool.candidates(nothing.__contains__) == [(1, 0)]


def test_each_length_has_a_candidate_of_its_own() -> None:
    pool = OfflinePool()
    pool.add(1, chain("a"), 30)
    pool.add(2, chain("a"), 300)
    assert pool.candidates(frozenset[bytes]().__contains__) == [(1, 0), (2, 0)]


def test_nobody_is_passed_over_for_ever() -> None:
    pool = OfflinePool()
    pool.add(0, chain("alone"), 20)
    resident = set(chain("shared")).__contains__
    passed_over = 0
    for key in range(1, 100):
        pool.add(key, chain("shared"), 20)
        (found,) = pool.candidates(resident)
        if found.key == 0:
            break
        pool.remove(found.key, admitted=True)
        passed_over += 1
    assert passed_over == 2 * MOST_PASSED_OVER


@pytest.mark.parametrize("seed", range(30))
def test_a_pool_forgets_all_that_left_and_shows_only_who_waits(seed: int) -> None:
    draws = Random(seed)
    pool, waiting, key = OfflinePool(), dict[int, tuple[bytes, ...]](), 0
    needed = Counter[bytes]()
    for _ in range(300):
        if draws.random() < 0.55 or not waiting:
            hashes = chain(*(draws.choice("abc") for _ in range(draws.randint(0, 5))))
            pool.add(key, hashes, draws.randint(1, 100))
            waiting[key] = hashes
            needed.update(hashes)
            key += 1
        else:
            gone = draws.choice(list(waiting))
            pool.remove(gone, admitted=draws.random() < 0.5)
            needed.subtract(waiting.pop(gone))
        assert list(pool) == list(waiting)
        resident = {each for each in needed if draws.random() < 0.5}
        for candidate in pool.candidates(resident.__contains__):
            hashes = waiting[candidate.key]
            assert all(each in resident for each in hashes[: candidate.resident_blocks])
    for each in list(waiting):
        pool.remove(each)
    assert not pool.candidates(lambda _: True)
    assert not pool._trees
