"""Offline work divided among engines, beforehand or by one queue."""

import random

import numpy as np
import pytest

from foretell.model import EngineConfig
from foretell.offline.feed import Feed, Sequential
from foretell.offline.feedback import Feedback, Job, Waiting
from foretell.offline.lengths import Lengths, sources
from foretell.offline.ordering import blended, demand
from foretell.offline.parallel import parts
from foretell.offline.tree import PrefixTree, prefix_tree
from foretell.offline.work import Ints, WorkModel
from foretell.sim.offline import OverlappedStepTime, Run, run, run_engines

WORK = WorkModel(60e-6, 0.0, 60e-6, 75.6e-9, 9.27e-3)
BLOCKS = 2000
CONFIG = EngineConfig("m", 16, BLOCKS, 256, 2048, 32_000)
STEP = OverlappedStepTime(WORK)


def two_kinds(seed: int, dense: int, long: int) -> tuple[PrefixTree, Ints]:
    """Long prompts with short answers behind one prefix, and the other way round behind another."""
    draws = random.Random(seed)
    kinds = [(1, 400, 4)] * dense + [(2, 16, 1500)] * long
    prompts = [
        [kind] * 32 + [draws.randint(0, 99) for _ in range(draws.randint(own // 2, own))]
        for kind, own, _ in kinds
    ]
    outputs = [draws.randint(most // 2, most) for _, _, most in kinds]
    return prefix_tree(prompts), np.array(outputs, np.int64)


def job(tree: PrefixTree, known: Ints, order: Ints | None = None) -> Job:
    chosen = tree.first_seen() if order is None else order
    return Job(tree, chosen, sources(tree), known, 100.0)


def sharing(job: Job, engines: int) -> list[Feed]:
    """Feeds of several engines over one job's queues."""
    waiting = Waiting(job, WORK)
    return [Feedback(job, WORK, 16 * BLOCKS, waiting=waiting) for _ in range(engines)]


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_every_request_goes_to_one_engine_and_each_has_its_share(engines: int) -> None:
    for seed in range(10):
        draws = random.Random(seed)
        prompts = [[i % 3] * 64 + [draws.randint(0, 9) for _ in range(64)] for i in range(400)]
        outputs = np.array([draws.choice((2, 90, 3000)) for _ in prompts], np.int64)
        lengths = Lengths.known(outputs)
        tree, order = blended(prefix_tree(prompts), WORK, lengths.mean, lengths.square)
        wanted = demand(tree, WORK, lengths.mean, lengths.square)
        found = parts(tree, order, wanted, engines)
        assert len(found) == engines
        assert sorted(np.concatenate(found).tolist()) == list(range(len(prompts)))
        for seconds in (wanted.compute_s[: len(prompts)], wanted.memory_s[: len(prompts)]):
            shares = [float(seconds[part].sum()) * engines / seconds.sum() for part in found]
            assert shares == pytest.approx([1.0] * engines, abs=0.25)


def test_fewer_requests_than_engines_leave_some_without() -> None:
    tree, lengths = prefix_tree([[1]]), Lengths.known(np.array([5]))
    wanted = demand(tree, WORK, lengths.mean, lengths.square)
    found = parts(tree, np.array([0]), wanted, 3)
    assert sorted(len(part) for part in found) == [0, 0, 1]
    with pytest.raises(ValueError, match="engines"):
        parts(tree, np.array([0]), wanted, 0)


@pytest.mark.parametrize("engines", [1, 2, 4])
@pytest.mark.parametrize("kind", ["in order", "parts", "known", "unknown"])
def test_engines_side_by_side_serve_every_request_once(kind: str, engines: int) -> None:
    for seed, (dense, long) in enumerate([(0, 0), (1, 0), (0, 2), (40, 30), (120, 60)]):
        tree, outputs = two_kinds(seed, dense, long)

        def feeds(tree: PrefixTree = tree, outputs: Ints = outputs) -> list[Feed]:
            unknown, order = np.zeros_like(outputs), tree.first_seen()
            if kind == "in order":
                queue = iter(order.tolist())
                return [Sequential(queue) for _ in range(engines)]
            if kind == "parts":
                jobs = [job(tree, unknown, part) for part in np.array_split(order, engines)]
                return [Feedback(one, WORK, 16 * BLOCKS) for one in jobs]
            return sharing(job(tree, outputs if kind == "known" else unknown), engines)

        first, again = (run_engines(tree, outputs, feeds(), CONFIG, STEP) for _ in range(2))
        assert first == again
        assert len(first) == engines
        assert sum(one.served for one in first) == tree.requests
        assert sum(one.output_tokens for one in first) == int(outputs.sum())


def test_one_engine_with_shared_queues_is_an_engine_alone() -> None:
    tree, outputs = two_kinds(1, 200, 60)
    for known in (outputs, np.zeros_like(outputs)):
        alone = run(tree, outputs, Feedback(job(tree, known), WORK, 16 * BLOCKS), CONFIG, STEP)
        assert run_engines(tree, outputs, sharing(job(tree, known), 1), CONFIG, STEP) == [alone]


def test_engines_with_one_queue_end_together_whatever_the_lengths() -> None:
    tree, outputs = two_kinds(2, 3000, 240)
    unknown = np.zeros_like(outputs)

    def ends(runs: list[Run]) -> list[float]:
        return [one.seconds for one in runs]

    alone = run(tree, outputs, Feedback(job(tree, unknown), WORK, 16 * BLOCKS), CONFIG, STEP)
    halves = np.array_split(tree.first_seen(), 2)  # nearly all that is long goes to the second
    split: list[Feed] = [Feedback(job(tree, unknown, half), WORK, 16 * BLOCKS) for half in halves]
    apart = ends(run_engines(tree, outputs, split, CONFIG, STEP))
    shared = ends(run_engines(tree, outputs, sharing(job(tree, unknown), 2), CONFIG, STEP))
    last_s = int(outputs.max()) * (WORK.weights_s + STEP.host_s)
    assert max(shared) - min(shared) < last_s, shared  # one answer's time
    assert max(shared) < 0.6 * alone.seconds, (shared, alone.seconds)
    assert max(shared) < 0.8 * max(apart), (shared, apart)


def test_what_waits_is_counted_until_it_is_taken() -> None:
    tree, outputs = two_kinds(3, 50, 20)
    part = tree.first_seen()[::2]
    waiting = Waiting(job(tree, np.zeros_like(outputs), part), WORK)
    assert waiting.sums[0].sum() == len(part)
    assert waiting.sums[1].sum() == tree.prompt_tokens[part].sum()
    taken = []
    for group in range(waiting.groups):
        while waiting.queues[group]:
            taken.append(waiting.take(group))
        assert waiting.part_left(group) == pytest.approx(0.0, abs=1e-9)
    assert sorted(taken) == sorted(part.tolist())
    assert waiting.sums == pytest.approx(np.zeros_like(waiting.sums), abs=1e-6)
    waiting.ended(taken[0], 7)
    assert sum(waiting.heard) == 1
