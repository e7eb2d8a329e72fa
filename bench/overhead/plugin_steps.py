"""Times the steps of vLLM's scheduler with and without the plugin; needs vLLM."""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput

from bench.stats import percentile
from foretell.services.backend.vllm.plugin import ForetellScheduler
from foretell.tools.verify.engine_loop import EngineLoop
from foretell.tools.verify.installed import engine_config

WARMUP_STEPS = 50
PROMPT_TOKENS = 128
READER = """
import asyncio, sys
from foretell.services.predictor.subscriber import subscriber_to
told = iter(["reading"])
asyncio.run(subscriber_to(sys.argv[1]).run(lambda _: [print(each, flush=True) for each in told]))
"""


class TimedEngine:
    """A scheduler in the batch-queue loop of depth 2, with only its own calls on the clock."""

    def __init__(
        self, cls: type[Any], running: int, waiting: int, steps: int, pause_s: float
    ) -> None:
        self._pause_s = pause_s
        length = PROMPT_TOKENS + 2 * steps
        config = engine_config(
            max_num_seqs=running,
            max_num_scheduled_tokens=8192,
            max_model_len=length + 1,
            total_blocks=(running + 1) * (length // 16 + 2),
            async_scheduling=True,
        )
        self.loop = EngineLoop(config, cls)
        for i in range(running + waiting):
            extra = {"foretell_id": f"request-{i:08d}", "foretell_predicted_tokens": 180.0}
            self.loop.add(f"cmpl-{i:08d}-0", PROMPT_TOKENS, 2 * steps, extra_args=extra)
        self._queue: deque[tuple[Any, ModelRunnerOutput]] = deque()

    def step(self) -> tuple[float, float]:
        """Run one step; returns the seconds inside the scheduler: wall and CPU time.

        In between an engine waits for the GPU, which is a pause.
        """
        scheduler = self.loop.scheduler
        first, output = timed(scheduler.schedule)
        self._queue.append((output, sampled(scheduler, output)))
        if self._pause_s:
            time.sleep(self._pause_s)
        if len(self._queue) < 2:
            return first
        second, _ = timed(scheduler.update_from_output, *self._queue.popleft())
        return first[0] + second[0], first[1] + second[1]


def timed(call: Callable[..., Any], *args: Any) -> tuple[tuple[float, float], Any]:
    wall, cpu = time.perf_counter(), time.thread_time()
    result = call(*args)
    return (time.perf_counter() - wall, time.thread_time() - cpu), result


def sampled(scheduler: Any, output: Any) -> ModelRunnerOutput:
    """A token for each request whose prompt is computed."""
    ids = list(output.num_scheduled_tokens)
    tokens = [[] if scheduler.requests[i].is_prefill_chunk else [100] for i in ids]
    return ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, tokens)


@contextmanager
def subscriber(endpoint: str) -> Iterator[None]:
    """A process that hears snapshots as a predictor does; entered once the first has arrived."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, endpoint], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            yield
        finally:
            process.kill()


def time_steps(
    running: int, waiting: int, steps: int, scheme: str, pause_s: float
) -> dict[str, Any]:
    """Seconds per step of both schedulers at one size; `scheme` is that of the endpoint."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"{scheme}://{folder}/snapshots"
        os.environ["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] = endpoint
        stock = TimedEngine(AsyncScheduler, running, waiting, steps + WARMUP_STEPS, pause_s)
        plugin = TimedEngine(ForetellScheduler, running, waiting, steps + WARMUP_STEPS, pause_s)
        with subscriber(endpoint):
            gc.freeze()  # as vLLM does once its engine is up
            for _ in range(WARMUP_STEPS):
                stock.step(), plugin.step()
            pairs = [(stock.step(), plugin.step()) for _ in range(steps)]
            assert plugin.loop.scheduler.foretell.active, "the plugin switched itself off"
            assert len(plugin.loop.scheduler.running) == running
            assert len(plugin.loop.scheduler.waiting) == waiting
        plugin.loop.close()
    result: dict[str, Any] = {
        "running": running,
        "waiting": waiting,
        "steps": steps,
        "pause_ms": 1e3 * pause_s,
    }
    for clock, kind in enumerate(("wall", "cpu")):
        stock_us = [1e6 * stock[clock] for stock, _ in pairs]
        plugin_us = [1e6 * plugin[clock] for _, plugin in pairs]
        figures = {"mean": (fmean(stock_us), fmean(plugin_us))} | {
            f"p{level}": (percentile(stock_us, level), percentile(plugin_us, level))
            for level in (50, 99)
        }
        for name, (a, b) in figures.items():
            result[f"stock_{kind}_{name}_us"] = round(a, 1)
            result[f"plugin_{kind}_{name}_us"] = round(b, 1)
            result[f"difference_{kind}_{name}_us"] = round(b - a, 1)
    return result
