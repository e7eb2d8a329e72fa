"""Runs one order of a mixed file on a simulated engine, and computes the figures of the run."""

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bench.offline.mixes import mixed
from bench.report import Numbers
from foretell.model import EngineConfig
from foretell.offline.dual_scan import DualScan
from foretell.offline.feed import Feed, Sequential
from foretell.offline.feedback import Feedback
from foretell.offline.lengths import LengthMoments, learnt, sampled, sources, strata
from foretell.offline.ordering import blended, demand
from foretell.offline.tree import PrefixTree, prefix_tree
from foretell.offline.waiting import OfflineJob
from foretell.offline.work import Ints, WorkModel
from foretell.sim.offline import OverlappedStepTime, run

WORK = WorkModel(60e-6, 0.0, 60e-6, 75.6e-9, 9.27e-3)
"""Llama-3-8B on an A100: effective rates of the paper's table 1."""
ENGINES = {"overlapping": OverlappedStepTime(WORK), "plain": OverlappedStepTime(WORK, overlap=1.0)}
TRACES = {"1": (1.4, 0.35), "2": (0.9, 0.35), "3": (1.4, 0.05), "4": (0.9, 0.05)}
"""Density and sharing ratio."""
DFS, RANDOM, FCFS, KNOWN = "DFS", "random", "FCFS", "known"
_KV_TOKENS, _PRIOR_TOKENS = 457_763, 300.0
_BLOCK_TOKENS, _SEATS, _STEP_TOKENS, _LONGEST = 16, 8192, 2048, 131_072


@dataclass(frozen=True, slots=True)
class Case:
    """An order of the file of a trace and a seed, on one of `ENGINES`."""

    trace: str
    engine: str
    order: str
    seed: int
    requests: int
    video_tokens: int
    kv_tokens: int = _KV_TOKENS

    @property
    def config(self) -> EngineConfig:
        blocks = self.kv_tokens // _BLOCK_TOKENS
        return EngineConfig("Llama-3-8B", _BLOCK_TOKENS, blocks, _SEATS, _STEP_TOKENS, _LONGEST)


@lru_cache(maxsize=1)
def _made(
    data: Path, trace: str, seed: int, requests: int, video_tokens: int
) -> tuple[PrefixTree, Ints]:
    """The tree of a file's prompts, and the tokens of its answers; cached, since the orders of one
    file run in a row."""
    file = mixed(data, WORK, requests, *TRACES[trace], seed, video_tokens)
    return prefix_tree(file.prompts), file.outputs


def feed_for(case: Case, tree: PrefixTree, outputs: Ints) -> Feed:
    """The feed that drives the engine; if lengths are sampled, only samples' `outputs` are used."""
    name, *words = case.order.split(", ")
    draws = np.random.default_rng(case.seed)
    if name == FCFS:
        return Sequential(range(tree.requests))
    if name == RANDOM:
        return Sequential(draws.permutation(tree.requests).tolist())
    if name == DFS:
        return Sequential(tree.first_seen().tolist())
    known = outputs if KNOWN in words else np.zeros_like(outputs)
    if name == "feedback":
        job = OfflineJob(tree, tree.first_seen(), sources(tree), known, _PRIOR_TOKENS, _LONGEST)
        return Feedback(job, WORK, case.kv_tokens)
    samples = sampled(tree, float(draws.random()), np.zeros_like(outputs))
    guess = LengthMoments.guess(tree.requests, _PRIOR_TOKENS)
    lengths = learnt(strata(tree, samples), samples, outputs[samples], guess).where_known(known)
    split, ranked = blended(tree, WORK, lengths.mean, lengths.square)
    wanted = demand(split, WORK, lengths.mean, lengths.square)
    first = [] if known.any() else samples.tolist()
    return DualScan(split, ranked, wanted, lengths, case.kv_tokens, first)


def optimum_s(case: Case, tree: PrefixTree, outputs: Ints) -> tuple[float, float]:
    """The practical optimum of the paper, and a lower bound on the time of the engine's steps.

    The first is the time of all computing and all reading together, with every prefix computed
    once. The second adds the cost of the least number of steps: enough for the KV cache to hold all
    tokens that are read, or as many as the longest answer has.
    """
    engine = ENGINES[case.engine]
    lengths = LengthMoments.known(outputs)
    wanted = demand(tree, WORK, lengths.mean, lengths.square)
    compute_s, memory_s = float(wanted.compute_s.sum()), float(wanted.memory_s.sum())
    together = engine.together_s(compute_s, memory_s)
    held = tree.of_leaves(lengths.mean * (tree.depth - tree.begins)[: tree.requests])
    held_tokens = float(held.sum() + (lengths.square / 2.0).sum())
    longest = float(outputs.max())
    steps = max(held_tokens / case.kv_tokens, longest)
    bound = max(together, steps * WORK.weights_s + memory_s) + steps * engine.host_s
    alone = longest * (WORK.weights_s + engine.host_s) + WORK.decode_pair_s * longest**2 / 2.0
    return together, max(bound, alone)


def serve(case: Case, data: Path) -> Numbers:
    """The figures of one case."""
    began = time.process_time()
    tree, outputs = _made(data, case.trace, case.seed, case.requests, case.video_tokens)
    return {**served(case, tree, outputs), "cpu_s": round(time.process_time() - began, 1)}


def served(case: Case, tree: PrefixTree, outputs: Ints) -> Numbers:
    """The figures of one order of these requests."""
    together, bound = optimum_s(case, tree, outputs)
    feed = feed_for(case, tree, outputs)
    came = run(tree, outputs, feed, case.config, ENGINES[case.engine])
    lengths = LengthMoments.known(outputs)
    wanted = demand(tree, WORK, lengths.mean, lengths.square).density(tree)[tree.root]
    computed = came.computed_tokens / came.prompt_tokens
    return {
        **{name: getattr(case, name) for name in ("trace", "engine", "order", "seed")},
        "requests": tree.requests,
        "served": came.served,
        "video_tokens": case.video_tokens,
        "density": round(float(wanted), 3),
        "sharing": round(tree.sharing_ratio, 4),
        "seconds": round(came.seconds, 1),
        "tokens_per_s": round((came.prompt_tokens + came.output_tokens) / came.seconds, 1),
        "share_of_optimum": round(together / came.seconds, 4),
        "share_of_bound": round(bound / came.seconds, 4),
        "sharing_kept": round((1.0 - computed) / tree.sharing_ratio, 4),
        "preemptions": came.preemptions,
    }
