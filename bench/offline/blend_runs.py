"""One order of a mixed file on simulated engines: what drives them, and the figures of the run."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.offline.mixes import mixed
from foretell.model import EngineConfig
from foretell.offline.dual_scan import DualScan
from foretell.offline.feed import Feed, Sequential
from foretell.offline.feedback import Feedback, Job, Waiting
from foretell.offline.lengths import Lengths, learnt, sampled, sources, strata
from foretell.offline.ordering import blended, demand
from foretell.offline.parallel import parts
from foretell.offline.tree import PrefixTree, prefix_tree
from foretell.offline.work import Ints, WorkModel
from foretell.sim.offline import OverlappedStepTime, Run, Watch, run_engines

WORK = WorkModel(60e-6, 0.0, 60e-6, 75.6e-9, 9.27e-3)
"""Llama-3-8B on an A100: effective rates of the paper's table 1."""
OVERLAPPING = OverlappedStepTime(WORK)
KV_TOKENS = 457_763
TRACES = {"1": (1.4, 0.35), "2": (0.9, 0.35), "3": (1.4, 0.05), "4": (0.9, 0.05)}
"""Density and sharing ratio."""
PRIOR_TOKENS = 300.0
DFS, RANDOM, FCFS = "DFS", "random", "FCFS"
KNOWN, SHARED = "known", "one queue"
_BLOCK_TOKENS, _SEATS, _STEP_TOKENS, _LONGEST = 16, 8192, 2048, 131_072


@dataclass(frozen=True, slots=True)
class Setting:
    """A file of requests, and the engines, all alike, that serve it."""

    density: float
    sharing: float
    seed: int
    requests: int
    video_tokens: int
    model: str = "Llama-3-8B"
    kv_tokens: int = KV_TOKENS
    """KV cache of one engine."""
    step: OverlappedStepTime = OVERLAPPING
    engines: int = 1
    even: bool = False
    """Lengths of videos are drawn evenly."""

    @property
    def work(self) -> WorkModel:
        return self.step.work

    @property
    def config(self) -> EngineConfig:
        blocks = self.kv_tokens // _BLOCK_TOKENS
        return EngineConfig(self.model, _BLOCK_TOKENS, blocks, _SEATS, _STEP_TOKENS, _LONGEST)

    def made(self, data: Path) -> tuple[PrefixTree, Ints]:
        """The tree of the file's prompts, and the tokens of its answers."""
        file = (self.density, self.sharing, self.seed, self.requests, self.video_tokens, self.even)
        return _made(data, self.work, *file)


@lru_cache(maxsize=1)
def _made(
    data: Path,
    work: WorkModel,
    density: float,
    sharing: float,
    seed: int,
    requests: int,
    video_tokens: int,
    even: bool,
) -> tuple[PrefixTree, Ints]:
    """The orders of one file are run in a row."""
    file = mixed(data, work, requests, density, sharing, seed, video_tokens, even=even)
    return prefix_tree(file.prompts), file.outputs


def feeds_for(order: str, setting: Setting, tree: PrefixTree, outputs: Ints) -> list[Feed]:
    """What drives each engine; where lengths are sampled, `outputs` tells those of the samples.

    `order` is a name, how lengths are known, and whether engines share one queue. Without that each
    has its part from the beginning: depth-first order is cut into equal numbers of requests, the
    others as BlendServe does.
    """
    name, *words = order.split(", ")
    draws = np.random.default_rng(setting.seed)
    if name in (FCFS, RANDOM, DFS):
        orders: dict[str, Ints] = {
            FCFS: np.arange(tree.requests),
            RANDOM: draws.permutation(tree.requests),
            DFS: tree.first_seen(),
        }
        if SHARED in words:
            queue = iter(orders[name].tolist())
            return [Sequential(queue) for _ in range(setting.engines)]
        return [Sequential(part.tolist()) for part in np.array_split(orders[name], setting.engines)]
    known = outputs if KNOWN in words else np.zeros_like(outputs)
    if name == "feedback" and (SHARED in words or setting.engines == 1):
        return _sharing(setting, _job(tree, tree.first_seen(), known))
    samples = sampled(tree, float(draws.random()), np.zeros_like(outputs))
    guess = Lengths.guess(tree.requests, PRIOR_TOKENS)
    lengths = learnt(strata(tree, samples), samples, outputs[samples], guess).where_known(known)
    split, ranked = blended(tree, setting.work, lengths.mean, lengths.square)
    wanted = demand(split, setting.work, lengths.mean, lengths.square)
    divided = parts(split, ranked, wanted, setting.engines)
    if name == "feedback":
        order_s = tree.first_seen()
        jobs = [_job(tree, order_s[np.isin(order_s, part)], known) for part in divided]
        return [Feedback(job, setting.work, setting.kv_tokens) for job in jobs]
    first = [] if known.any() else samples.tolist()
    firsts = [np.intersect1d(first, part).astype(np.int64).tolist() for part in divided]
    return [
        DualScan(split, part, wanted, lengths, setting.kv_tokens, early)
        for part, early in zip(divided, firsts, strict=True)
    ]


def _job(tree: PrefixTree, order: Ints, known: Ints) -> Job:
    return Job(tree, order, sources(tree), known, PRIOR_TOKENS, _LONGEST)


def _sharing(setting: Setting, job: Job) -> list[Feed]:
    waiting = Waiting(job, setting.work)
    return [
        Feedback(job, setting.work, setting.kv_tokens, waiting=waiting)
        for _ in range(setting.engines)
    ]


def optimum_s(setting: Setting, tree: PrefixTree, outputs: Ints) -> tuple[float, float]:
    """The practical optimum of the paper, and a lower bound on the time of the engines' steps.

    The first is what all computing and all reading take together, every prefix computed once. The
    second adds what the least number of steps costs: as many as fill the KV cache with what is
    read, or as the longest answer has. Several engines have equal parts of everything at best, and
    one of them the longest answer, if nothing else.
    """
    engine, engines, work = setting.step, setting.engines, setting.work
    lengths = Lengths.known(outputs)
    wanted = demand(tree, work, lengths.mean, lengths.square)
    compute_s, memory_s = float(wanted.compute_s.sum()), float(wanted.memory_s.sum())
    together = engine.together_s(compute_s, memory_s) / engines
    held = tree.of_leaves(lengths.mean * (tree.depth - tree.begins)[: tree.requests])
    held_tokens = float(held.sum() + (lengths.square / 2.0).sum())
    steps, longest = held_tokens / setting.kv_tokens / engines, float(outputs.max())
    if engines == 1:
        steps = max(steps, longest)
    bound = max(together, steps * work.weights_s + memory_s / engines) + steps * engine.host_s
    alone = longest * (work.weights_s + engine.host_s) + work.decode_pair_s * longest**2 / 2.0
    return together, max(bound, alone)


def serve(
    order: str, setting: Setting, data: Path, watch: Watch | None = None
) -> tuple[list[Run], dict[str, Any]]:
    """What each engine did, and the figures of all together: the last one's end counts."""
    began = time.process_time()
    tree, outputs = setting.made(data)
    together, bound = optimum_s(setting, tree, outputs)
    feeds = feeds_for(order, setting, tree, outputs)
    runs = run_engines(tree, outputs, feeds, setting.config, setting.step, watch)
    lengths = Lengths.known(outputs)
    wanted = demand(tree, setting.work, lengths.mean, lengths.square).density(tree)[tree.root]
    seconds = max(run.seconds for run in runs)
    tokens = sum(run.prompt_tokens + run.output_tokens for run in runs)
    computed = sum(run.computed_tokens for run in runs) / sum(run.prompt_tokens for run in runs)
    return runs, {
        "requests": tree.requests,
        "video_tokens": setting.video_tokens,
        "density": round(float(wanted), 3),
        "sharing": round(tree.sharing_ratio, 4),
        "seconds": round(seconds, 1),
        "tokens_per_s": round(tokens / seconds, 1),
        "share_of_optimum": round(together / seconds, 4),
        "share_of_bound": round(bound / seconds, 4),
        "sharing_kept": round((1.0 - computed) / tree.sharing_ratio, 4),
        "preemptions": sum(run.preemptions for run in runs),
        "steps": sum(run.steps for run in runs),
        "cpu_s": round(time.process_time() - began, 1),
    }


def kept(
    file: Path, wanted: Mapping[str, Any], made: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The run with the keys `wanted` among those of an interrupted benchmark, or one `made` now."""
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            one: dict[str, Any] = json.loads(line)
            if wanted.items() <= one.items():
                return one
    found = {**made(), **wanted}
    file.parent.mkdir(exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(found) + "\n")
    return found
