"""Times the steps of vLLM's scheduler with and without co-scheduling; needs vLLM."""

import gc
import time
from collections import deque
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput

from bench.overhead.plugin_steps import PROMPT_TOKENS, WARMUP_STEPS, sampled, timed
from bench.stats import percentile
from foretell.services.backend.vllm.cosched.scheduler import CoScheduler
from foretell.tools.verify.engine_loop import EngineLoop, unique_prompt
from foretell.tools.verify.installed import engine_config

_BOOKS = 20
"""Offline prompts begin with one of so many texts, half as long as a prompt."""

_NEVER_LATE = {"slo_ttft_ms": 1e9, "slo_tpot_ms": 1e9}
"""So that no offline request is paused: both schedulers compute the same."""


class TimedEngine:
    """A scheduler in the batch-queue loop of depth 2 with requests of both classes."""

    def __init__(self, cls: type[Any], sizes: tuple[int, ...], steps: int) -> None:
        """`sizes`: online requests running and waiting, offline ones running and waiting."""
        running, waiting, offline, candidates = sizes
        length, seats = PROMPT_TOKENS + 2 * steps, running + offline
        config = engine_config(
            max_num_seqs=seats,
            max_num_scheduled_tokens=8192,
            max_model_len=length + 1,
            total_blocks=(seats + 1) * (length // 16 + 2),
            async_scheduling=True,
            enable_prefix_caching=True,
        )
        self.loop = EngineLoop(config, cls)
        half = PROMPT_TOKENS // 2
        books = [unique_prompt(f"book {i}", half) for i in range(_BOOKS)]
        for index in range(running + waiting):
            name, now_s = f"online {index}", time.time()
            self.loop.add(name, PROMPT_TOKENS, 2 * steps, arrival_s=now_s, extra_args=_NEVER_LATE)
        for index in range(offline + candidates):
            prompt = books[index % _BOOKS] + unique_prompt(f"question {index}", half)
            self.loop.add(f"off {index}", prompt, 2 * steps, extra_args={"class": "offline"})
        self._queue: deque[tuple[Any, ModelRunnerOutput]] = deque()

    def step(self) -> float:
        """Run one step; returns the CPU seconds inside the scheduler."""
        scheduler = self.loop.scheduler
        (_, first_s), output = timed(scheduler.schedule)
        self._queue.append((output, sampled(scheduler, output)))
        if len(self._queue) < 2:
            return first_s
        (_, second_s), _ = timed(scheduler.update_from_output, *self._queue.popleft())
        return first_s + second_s


def time_steps(sizes: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Microseconds of a step of both schedulers at one size."""
    stock = TimedEngine(AsyncScheduler, sizes, steps + WARMUP_STEPS)
    ours = TimedEngine(CoScheduler, sizes, steps + WARMUP_STEPS)
    gc.freeze()  # as vLLM does once its engine is up
    for _ in range(WARMUP_STEPS):
        stock.step(), ours.step()
    pairs = [(stock.step(), ours.step()) for _ in range(steps)]
    assert ours.loop.scheduler.planner is not None, "it did not attach"
    result: dict[str, Any] = {"sizes": list(sizes), "steps": steps}
    for level in (50, 99):
        stock_us = percentile([1e6 * each for each, _ in pairs], level)
        ours_us = percentile([1e6 * each for _, each in pairs], level)
        result[f"stock_p{level}_us"] = round(stock_us, 1)
        result[f"ours_p{level}_us"] = round(ours_us, 1)
    return result
