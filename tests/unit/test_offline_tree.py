"""The prefix tree of offline requests, their density, and the order derived from it."""

import random
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest

from foretell.config import load_profile
from foretell.latency.devices import device_spec, model_spec
from foretell.latency.linear import LinearStepTime
from foretell.latency.roofline import Efficiency, joint, roofline_step_time
from foretell.latency.tables import profile_step_time
from foretell.model import DeviceSpec, ModelSpec
from foretell.offline.dual_scan import memory_split
from foretell.offline.lengths import LengthMoments
from foretell.offline.ordering import CHUNK_REQUESTS, WorkDemand, blended, demand, split
from foretell.offline.tree import PrefixTree, prefix_tree
from foretell.offline.work import WorkModel, measured_work

A100 = device_spec("A100-80GB")
LLAMA = replace(model_spec("Llama-3.1-8B"), parameters=8.0e9)
DATASHEET = Efficiency(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


def datasheet_work(device: DeviceSpec, model: ModelSpec, tensor_parallel: int = 1) -> WorkModel:
    """The paper's estimate: operations and bytes divided by the datasheet's rates.

    Attention is causal, so a prompt has half the pairs of the paper's 4·p²·H·L.
    """
    device = joint(device, tensor_parallel)
    step, token, pair, _, decode, read = roofline_step_time(device, model, DATASHEET).coefficients_s
    return WorkModel(token, pair, decode, read, step)


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def random_prompts(draws: random.Random, most: int = 40) -> list[list[int]]:
    """Prompts of few different tokens, so that many share much, and some are equal or empty."""
    count = draws.randint(0, most)
    return [[draws.randint(0, 2) for _ in range(draws.randint(0, 9))] for _ in range(count)]


def density_of(prompt: int, output: int, work: WorkModel) -> float:
    exact = LengthMoments.known(np.array([output]))
    return float(work.density(np.array([prompt]), exact.mean, exact.square)[0])


def test_densities_are_those_of_the_paper() -> None:
    work = replace(datasheet_work(A100, LLAMA), prefill_pair_s=0.0)
    left, right = density_of(512, 256, work), density_of(256, 16384, work)
    assert left == pytest.approx(3.74, abs=0.005)
    assert right == pytest.approx(0.0959, abs=0.0001)
    assert memory_split(60.0, 1.27, 3.73, 0.096)[0] == pytest.approx(19.4, abs=0.05)


def test_memory_is_split_within_bounds_and_for_equal_densities() -> None:
    assert memory_split(10.0, 5.0, 3.0, 1.0) == (10.0, 0.0)
    assert memory_split(10.0, 0.5, 3.0, 1.0) == (0.0, 10.0)
    assert memory_split(10.0, 2.0, 2.0, 2.0) == (5.0, 5.0)


def test_attention_variants_and_tensor_parallelism_change_the_density() -> None:
    def density(model: ModelSpec, devices: int = 1) -> float:
        return density_of(2000, 500, datasheet_work(A100, model, devices))

    grouped, full = LLAMA, replace(LLAMA, kv_heads=32)
    assert density(grouped) == pytest.approx(4 * density(full))  # it reads a quarter of the bytes
    assert density(grouped, 8) == pytest.approx(density(grouped))
    latent = replace(LLAMA, attention_heads=128, kv_latent_size=576)
    plain = datasheet_work(A100, replace(latent, kv_latent_size=0))
    work = datasheet_work(A100, latent)
    assert work.decode_pair_s == pytest.approx(plain.decode_pair_s * 576 / (2 * 8 * 128))


def test_a_spread_of_lengths_reads_more_than_its_mean() -> None:
    work = datasheet_work(A100, LLAMA)
    prompt, mean = np.array([0]), np.array([100.0])
    one = work.memory_s(prompt, mean, mean**2)
    assert work.memory_s(prompt, mean, 2.0 * mean**2) == pytest.approx(2.0 * one)


def test_step_times_are_taken_apart() -> None:
    work = measured_work(LinearStepTime((8e-3, 40e-6, 3e-9, 0.0, 90e-6, 200e-9)))
    assert work.prefill_token_s == pytest.approx(40e-6)
    assert work.prefill_pair_s == pytest.approx(3e-9)
    assert work.decode_token_s == pytest.approx(90e-6)
    assert work.decode_pair_s == pytest.approx(200e-9)
    tables = measured_work(profile_step_time(load_profile("H100/Llama-3.1-8B")))
    assert 5e-6 < tables.prefill_token_s < 5e-5
    assert 2e-8 < tables.decode_pair_s < 1e-7


@pytest.mark.parametrize("block", [1, 3])
def test_the_tree_has_every_prompt_and_what_it_shares(block: int) -> None:
    for seed in range(200):
        prompts = random_prompts(random.Random(seed))
        tree = prefix_tree(prompts, block)
        assert tree.prompt_tokens.tolist() == [len(prompt) for prompt in prompts]
        distinct = {
            tuple(p[: e + block]) for p in prompts for e in range(0, len(p) - block + 1, block)
        }
        tails = sum(len(prompt) % block for prompt in prompts)
        unique = int((tree.depth - tree.begins).sum())
        assert unique == len(distinct) * block + tails
        assert (
            np.bincount(tree.parent[tree.parent >= 0], minlength=tree.items)[tree.root + 1 :] > 1
        ).all()
        check_order(tree, prompts, tree.first_seen(), block)


def check_order(tree: PrefixTree, prompts: list[list[int]], order: np.ndarray, block: int) -> None:
    """Check that each request occurs once and each shared prefix is computed once, depth first."""
    assert sorted(order.tolist()) == list(range(len(prompts)))
    computed = before = 0
    for request in order.tolist():
        known = common(prompts[before], prompts[request]) // block * block if computed else 0
        computed += len(prompts[request]) - known
        before = request
    if prompts and prompts[order[0]]:
        assert computed <= int((tree.depth - tree.begins).sum()) + len(prompts[order[0]])


def test_sums_are_over_descendants() -> None:
    tree = prefix_tree([[1, 2, 3], [1, 2, 4], [5], [1, 2, 3]], 1)
    sums = tree.sums(tree.of_leaves(np.array([1.0, 10.0, 100.0, 1000.0])))
    assert sums[tree.root] == 1111.0
    assert sorted(sums[tree.root + 1 :].tolist()) == [1001.0, 1011.0]


def test_blending_sorts_by_density_and_keeps_its_budget() -> None:
    work = replace(datasheet_work(A100, LLAMA), prefill_pair_s=0.0)
    for seed in range(100):
        draws = random.Random(seed)
        prompts = random_prompts(draws, 60)
        outputs = np.array([draws.choice((1, 5, 300)) for _ in prompts], np.int64)
        tree, lengths = prefix_tree(prompts, 1), LengthMoments.known(outputs)
        for share in (0.0, 0.05, 1.0):
            found, order = blended(tree, work, lengths.mean, lengths.square, share, 1)
            again, same = blended(tree, work, lengths.mean, lengths.square, share, 1)
            assert sorted(order.tolist()) == list(range(len(prompts)))
            assert order.tolist() == same.tolist()
            assert found.saved_tokens == again.saved_tokens >= (1.0 - share) * tree.saved_tokens
            density = demand(found, work, lengths.mean, lengths.square).density(found)
            tops = {top: i for i, top in enumerate(top_of(found, order))}
            ranked = [density[top] for top in sorted(tops, key=tops.__getitem__)]
            assert ranked == sorted(ranked, reverse=True)


def test_known_lengths_are_sorted_in_chunks_so_that_they_do_not_end_together() -> None:
    work = datasheet_work(A100, LLAMA)
    outputs = np.array([(10, 1000)[request % 2] for request in range(4 * CHUNK_REQUESTS)])
    outputs[: 2 * CHUNK_REQUESTS] *= 3  # less dense
    tree, lengths = (
        prefix_tree([[r, 1] for r in range(len(outputs))], 1),
        LengthMoments.known(outputs),
    )
    _, order = blended(tree, work, lengths.mean, lengths.square)
    half = 2 * CHUNK_REQUESTS
    assert order.tolist() == [*range(half, 2 * half), *range(half)]
    _, alone = blended(tree, work, lengths.mean, lengths.square, chunk=1)
    assert np.diff(outputs[alone]).min() >= 0


def top_of(tree: PrefixTree, order: np.ndarray) -> list[int]:
    """The child of the root above each request."""
    found = []
    for request in order.tolist():
        item = request
        while tree.parent[item] != tree.root:
            item = int(tree.parent[item])
        found.append(item)
    return found


def test_an_outlier_moves_where_it_belongs_if_the_budget_allows() -> None:
    # Two tasks with a long prompt each; one answer of the dense task is very long.
    prompts = [[1] * 100 + [i] for i in range(9)] + [[2] * 100 + [i] for i in range(9)]
    outputs = np.array([1] * 8 + [900] + [90] * 9, np.int64)
    lengths, tree = LengthMoments.known(outputs), prefix_tree(prompts, 1)
    work = datasheet_work(A100, LLAMA)
    density = demand(tree, work, lengths.mean, lengths.square).density(tree)
    assert split(tree, density, 99) is tree
    moved = split(tree, density, 100)
    assert tree.saved_tokens - moved.saved_tokens == 100
    _, order = blended(tree, work, lengths.mean, lengths.square, 0.1)
    assert order[-1] == 8


def test_density_of_nothing_is_infinite_and_shared_prefixes_count_once() -> None:
    tree = prefix_tree([[1, 2], [1, 3]], 1)
    one = WorkDemand(np.ones(tree.items), np.zeros(tree.items))
    assert np.isinf(one.density(tree)).all()
    work = WorkModel(1.0, 0.0, 0.0, 1.0, 0.0)
    found = demand(tree, work, np.ones(2), np.ones(2))
    assert found.compute_s.sum() == 3.0  # tokens 1, 2, 3
    assert found.memory_s.sum() == 5.0  # each reads two prompt tokens, and half of its own
