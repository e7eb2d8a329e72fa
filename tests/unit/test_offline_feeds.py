"""What is learnt about output lengths, the feeds, and an engine in virtual time that uses them."""

import random

import numpy as np
import pytest

from foretell.length.survival import SurvivalCurve
from foretell.model import BatchShape, EngineConfig
from foretell.offline.dual_scan import DualScan
from foretell.offline.feed import Feed, InFlight, Sequential, UsedPrefixes
from foretell.offline.feedback import Feedback
from foretell.offline.lengths import FEWEST, LengthMoments, learnt, sampled, sources, strata
from foretell.offline.ordering import blended, demand
from foretell.offline.survival import Survival
from foretell.offline.tree import PrefixTree, prefix_tree
from foretell.offline.waiting import OfflineJob
from foretell.offline.work import WorkModel
from foretell.sim.offline import OverlappedStepTime, run

WORK = WorkModel(60e-6, 0.0, 60e-6, 75.6e-9, 9.27e-3)
BLOCKS = 2000
CONFIG = EngineConfig("m", 16, BLOCKS, 256, 2048, 32_000)
KV_TOKENS = 16 * BLOCKS


def mixed(seed: int, most: int) -> tuple[PrefixTree, np.ndarray]:
    """Two tasks: one has long prompts with a shared prefix and short answers, one the opposite."""
    draws = random.Random(seed)
    prompts, outputs = [], []
    for _ in range(draws.randint(0, most)):
        if draws.random() < 0.7:
            prompts.append([1] * 160 + [draws.randint(0, 99) for _ in range(draws.randint(1, 300))])
            outputs.append(draws.randint(1, 40))
        else:
            prompts.append([2] * 32 + [draws.randint(0, 99) for _ in range(draws.randint(1, 20))])
            outputs.append(draws.randint(200, 4000))
    return prefix_tree(prompts), np.array(outputs, np.int64)


def job(tree: PrefixTree, known: np.ndarray) -> OfflineJob:
    return OfflineJob(tree, tree.first_seen(), sources(tree), known, 100.0)


def feeds(tree: PrefixTree, outputs: np.ndarray) -> dict[str, Feed]:
    """One feed of each kind for the same requests."""
    unknown = np.zeros_like(outputs)
    half = np.where(np.arange(len(outputs)) % 2, outputs, 0)
    samples = sampled(tree, 0.5, unknown)
    guess = LengthMoments.guess(tree.requests, 100.0)
    lengths = learnt(strata(tree, samples), samples, outputs[samples], guess)
    found, order = blended(tree, WORK, lengths.mean, lengths.square)
    wanted = demand(found, WORK, lengths.mean, lengths.square)
    return {
        "in order": Sequential(tree.first_seen().tolist()),
        "dual scan": DualScan(found, order, wanted, lengths, KV_TOKENS, samples.tolist()),
        "unknown": Feedback(job(tree, unknown), WORK, KV_TOKENS),
        "known": Feedback(job(tree, outputs), WORK, KV_TOKENS),
        "partly known": Feedback(job(tree, half), WORK, KV_TOKENS),
    }


@pytest.mark.parametrize("kind", ["in order", "dual scan", "unknown", "known", "partly known"])
def test_every_request_is_served_once_and_runs_repeat(kind: str) -> None:
    for seed in range(6):
        tree, outputs = mixed(seed, (0, 1, 2, 60, 90, 120)[seed])
        first, again = (
            run(tree, outputs, feeds(tree, outputs)[kind], CONFIG, OverlappedStepTime(WORK))
            for _ in range(2)
        )
        assert first == again
        assert first.served == tree.requests  # and `run` found none served twice
        assert first.output_tokens == int(outputs.sum())


@pytest.mark.parametrize("kind", ["in order", "dual scan", "unknown", "known"])
def test_degenerate_files_are_served(kind: str) -> None:
    one = prefix_tree([[7]])
    equal = prefix_tree([[1] * 64] * 40)
    apart = prefix_tree([[i] * 64 for i in range(40)])
    giant = prefix_tree([[1] * 20_000])
    for tree, outputs in ((one, [1]), (equal, [5] * 40), (apart, [5] * 40), (giant, [10_000])):
        lengths = np.array(outputs, np.int64)
        feed = feeds(tree, lengths)[kind]
        assert run(tree, lengths, feed, CONFIG, OverlappedStepTime(WORK)).served == tree.requests


def test_a_request_larger_than_the_cache_is_refused() -> None:
    tree = prefix_tree([[1] * 31_990])
    with pytest.raises(ValueError, match="request 0 does not fit"):
        run(tree, np.array([1000]), Sequential([0]), CONFIG, OverlappedStepTime(WORK))


def test_depth_first_order_computes_every_shared_prefix_once() -> None:
    prompts = [[task] * 160 + [i] * 16 for i in range(30) for task in (1, 2, 3)]
    tree = prefix_tree(prompts)
    outputs = np.full(tree.requests, 3)
    result = run(
        tree, outputs, Sequential(tree.first_seen().tolist()), CONFIG, OverlappedStepTime(WORK)
    )
    assert result.sharing_ratio == pytest.approx(tree.sharing_ratio)


def test_feedback_overlaps_computing_and_reading() -> None:
    draws = random.Random(1)
    compute = [[1] * 32 + [draws.randint(0, 99) for _ in range(800)] for _ in range(1500)]
    memory = [[2] * 32 + [i] for i in range(120)]
    outputs = np.array([4] * len(compute) + [1000] * len(memory), np.int64)
    work = WorkModel(60e-6, 0.0, 60e-6, 1e-6, 1e-3)
    tree, step = prefix_tree(compute + memory), OverlappedStepTime(work, 0.2e-3)
    in_order = run(tree, outputs, Sequential(range(tree.requests)), CONFIG, step)
    known = run(tree, outputs, Feedback(job(tree, outputs), work, KV_TOKENS), CONFIG, step)
    unknown = Feedback(job(tree, np.zeros_like(outputs)), work, KV_TOKENS)
    times = [
        result.seconds for result in (in_order, known, run(tree, outputs, unknown, CONFIG, step))
    ]
    assert times[1] < 0.9 * times[0], times
    assert times[2] < 0.95 * times[0], times


@pytest.mark.parametrize("dense", [0, 40])
def test_one_kind_is_computed_evenly_beside_a_full_cache(dense: int) -> None:
    draws = random.Random(4)
    chat = [[1] * 32 + [draws.randint(0, 99) for _ in range(300)] for _ in range(1500)]
    questions = [[2] * 32 + [draws.randint(0, 99) for _ in range(600)] for _ in range(dense)]
    outputs = np.array([draws.randint(100, 200) for _ in chat] + [2] * dense, np.int64)
    work, tree = WorkModel(60e-6, 0.0, 60e-6, 0.5e-6, 8e-3), prefix_tree(chat + questions)
    held: list[int] = []

    def watch(_at_s: float, _seconds: float, shape: BatchShape) -> None:
        held.append(shape.decode_pairs)

    feed = Feedback(job(tree, np.zeros_like(outputs)), work, KV_TOKENS)
    step = OverlappedStepTime(work)
    ours = run(tree, outputs, feed, CONFIG, step, watch)
    meanwhile = held[len(held) // 5 : -len(held) // 5]
    assert sum(meanwhile) / len(meanwhile) > 0.9 * KV_TOKENS
    in_order = run(tree, outputs, Sequential(tree.first_seen().tolist()), CONFIG, step)
    assert ours.seconds < 0.93 * in_order.seconds, (ours, in_order)


def test_overlap_lies_between_the_larger_part_and_the_sum() -> None:
    shape = BatchShape(1, 500, 0, 40, 400_000)
    compute, memory = 540 * 60e-6, 400_000 * 75.6e-9
    one, ideal = OverlappedStepTime(WORK, 0.0, 1.0), OverlappedStepTime(WORK, 0.0, 200.0)
    assert one(shape) == pytest.approx(compute + memory)
    assert ideal(shape) == pytest.approx(max(compute, memory + WORK.weights_s), rel=0.01)


def test_samples_are_spread_and_large_groups_have_enough() -> None:
    prompts = [[1] * 16 + [i] for i in range(4000)] + [[2] * 16 + [i] for i in range(100)]
    tree, unknown = prefix_tree(prompts), np.zeros(4100, np.int64)
    samples = sampled(tree, 0.3, unknown)
    assert np.count_nonzero(samples < 4000) >= 39
    assert np.count_nonzero(samples >= 4000) >= FEWEST
    groups = strata(tree, samples)
    assert len(set(groups[:4000])) == len(set(groups[4000:])) == 1
    assert groups[0] != groups[-1]
    assert not len(sampled(tree, 0.3, np.ones(4100, np.int64)))  # known lengths need no samples


def test_what_samples_teach() -> None:
    stratum, samples = np.array([0] * 100 + [1] * 100), np.arange(0, 200, 2)
    tokens = np.where(samples < 100, 10, 1000)
    found = learnt(stratum, samples, tokens, LengthMoments.guess(200, 100.0))
    assert found.mean[1] == pytest.approx(10, rel=0.8)
    assert found.mean[101] == pytest.approx(1000, rel=0.1)
    assert found.mean[0] == 10.0
    assert (found.square >= found.mean**2 * 0.999).all()


def test_survival_is_that_of_kaplan_and_meier() -> None:
    draws = random.Random(3)
    for _ in range(20):
        ended = [draws.randint(1, 33) for _ in range(draws.randint(1, 60))]
        ages = np.array([draws.randint(0, 32) for _ in range(draws.randint(0, 30))], np.int64)
        exact = SurvivalCurve(ended, ages.tolist(), 50.0)
        binned = Survival(2, 50.0)
        for length in ended:
            binned.ended(1, length)
        binned.update(np.ones(len(ages), np.int64), ages)
        for tokens in range(max(ended)):
            at = binned.survival(np.array([1]), np.array([float(tokens)]))
            assert float(at[0]) == pytest.approx(exact.survival(tokens), abs=1e-9)


def test_an_answer_nobody_has_seen_the_like_of_goes_on_the_longer_it_is() -> None:
    survival, group = Survival(1, 100.0), np.array([0])
    early, late = (float(survival.mean_left(group, np.array([age]))[0]) for age in (10, 5000))
    assert early == pytest.approx(105, rel=0.1)
    assert late == pytest.approx(2600, rel=0.1)


def test_requests_in_flight_are_counted_as_they_are() -> None:
    draws, flight = random.Random(5), InFlight()
    ages: dict[int, list[int]] = {}
    for request in range(2000):
        if ages and draws.random() < 0.45:
            gone = draws.choice(list(ages))
            del ages[gone]
            flight.remove(gone)
        else:
            ages[request] = [0, draws.randint(1, 9), draws.randint(10, 99)]
            flight.add(request, *ages[request][1:])
        flight.step(1)
        for each in ages.values():
            each[0] += 1
        assert flight.kv_tokens == sum(age + own for age, own, _ in ages.values())
        assert flight.context_tokens == sum(age + prompt for age, _, prompt in ages.values())
    found = dict(zip(flight.requests.tolist(), flight.ages.tolist(), strict=True))
    assert found == {request: age for request, (age, _, _) in ages.items()}


def test_prefixes_count_once_while_anybody_uses_them() -> None:
    draws = random.Random(6)
    prompts = [[draws.randint(0, 1)] * 16 * draws.randint(1, 4) + [i] * 16 for i in range(60)]
    tree = prefix_tree(prompts)
    prefixes, users = UsedPrefixes(tree), set[int]()
    for _ in range(500):
        request = draws.randrange(60)
        if request in users:
            prefixes.leave(request)
        else:
            prefixes.use(request)
        users ^= {request}
        used = {item for each in users for item in ancestors(tree, each)}
        edge = tree.depth - tree.begins
        assert prefixes.tokens == sum(int(edge[item]) for item in used)
        another = draws.randrange(60)
        unused = [item for item in ancestors(tree, another) if item not in used]
        assert prefixes.more(another) == sum(int(edge[item]) for item in unused)


def ancestors(tree: PrefixTree, item: int) -> list[int]:
    parent = int(tree.parent[item])
    return [] if parent < 0 else [parent, *ancestors(tree, parent)]


def test_sources_are_first_prefixes_of_many_and_the_rest_shares_or_is_alone() -> None:
    many = [[1] * 32 + [2] * 16 * (i % 2) + [i] for i in range(FEWEST)]
    few = [[3] * 32 + [i] for i in range(3)]
    alone = [[9 + i] * 40 for i in range(3)]
    groups = sources(prefix_tree(many + few + alone)).tolist()
    assert [len(set(part)) for part in (groups[:FEWEST], groups[FEWEST:-3], groups[-3:])] == [1] * 3
    assert len(set(groups)) == 3
    # Where all share a prompt, the text after it tells them apart.
    system = [7] * 16
    behind = sources(prefix_tree([system + prompt for prompt in many + few + alone])).tolist()
    assert behind == groups
    assert sources(prefix_tree([])).tolist() == []


def test_few_steps_where_seats_are_short() -> None:
    """Long answers begin first, and short ones take the seats that these leave."""
    draws = random.Random(1)
    short = [[1] * 32 + [draws.randint(0, 99) for _ in range(200)] for _ in range(300)]
    long = [[draws.randint(0, 99) for _ in range(30)] for _ in range(60)]
    outputs = np.array([2] * len(short) + [draws.randint(50, 350) for _ in long], np.int64)
    work, seats = WorkModel(60e-6, 0.0, 60e-6, 1e-8, 20e-3), 16
    config = EngineConfig("m", 16, BLOCKS, seats, 512, 32_000)
    tree, step = prefix_tree(short + long), OverlappedStepTime(work, 0.2e-3, 1.0)
    plain = run(tree, outputs, Sequential(tree.first_seen().tolist()), config, step)
    unknown = np.zeros_like(outputs)
    feed = Feedback(job(tree, unknown), work, KV_TOKENS, overlaps=False, seats=seats)
    ours = run(tree, outputs, feed, config, step)
    assert ours.seconds < 0.95 * plain.seconds, (ours, plain)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kinds_of_unknown_length_are_not_held_up_where_seats_are_short(seed: int) -> None:
    draws = random.Random(seed)
    questions = [
        [kind] * 32 + [draws.randint(0, 99) for _ in range(150)]
        for kind in range(1, 5)
        for _ in range(80)
    ]
    long = [[9] * 32 + [draws.randint(0, 99) for _ in range(60)] for _ in range(200)]
    lengths = [2] * len(questions) + [draws.randint(50, 250) for _ in long]
    outputs, tree = np.array(lengths, np.int64), prefix_tree(questions + long)
    work, seats = WorkModel(60e-6, 0.0, 60e-6, 1e-8, 20e-3), 48
    config = EngineConfig("m", 16, BLOCKS, seats, 512, 32_000)
    step = OverlappedStepTime(work, 0.2e-3, 1.0)
    plain = run(tree, outputs, Sequential(tree.first_seen().tolist()), config, step)
    unknown = job(tree, np.zeros_like(outputs))
    feed = Feedback(unknown, work, KV_TOKENS, overlaps=False, seats=seats)
    ours = run(tree, outputs, feed, config, step)
    assert ours.seconds < 1.05 * plain.seconds, (ours, plain)
