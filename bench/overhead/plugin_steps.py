"""Times the steps of vLLM's scheduler and of Foretell's; needs vLLM."""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput

from foretell.services.backend.vllm.cosched.scheduler import CoScheduler
from foretell.services.backend.vllm.plugin import ForetellScheduler
from foretell.tools.intervals import percentile
from foretell.tools.verify.engine_loop import VerifiedLoop, unique_prompt
from foretell.tools.verify.installed import engine_config

WARMUP_STEPS = 50
PROMPT_TOKENS = 128
READER = """
import asyncio, sys
from foretell.services.predictor.subscriber import SnapshotSubscriber
lines = iter(["reading"])
heard = SnapshotSubscriber(sys.argv[1])
asyncio.run(heard.run(lambda _: [print(each, flush=True) for each in lines]))
"""
_BOOKS = 20
"""Number of texts with which offline prompts begin; each is half as long as a prompt."""
_NEVER_LATE = {"slo_ttft_ms": 1e9, "slo_tpot_ms": 1e9}
"""Targets with which no offline request is paused, so that both schedulers compute the same."""


class TimedEngine:
    """A scheduler in the batch-queue loop of depth 2, of which only its own calls are timed."""

    def __init__(
        self, cls: type[Any], running: int, waiting: int, steps: int, pause_s: float
    ) -> None:
        self._pause_s = pause_s
        self.loop = _loop(cls, running, steps, prefixes=False)
        for i in range(running + waiting):
            extra = {"foretell_id": f"request-{i:08d}", "foretell_predicted_tokens": 180.0}
            self.loop.add(f"cmpl-{i:08d}-0", PROMPT_TOKENS, 2 * steps, extra_args=extra)
        self._queue: deque[tuple[Any, ModelRunnerOutput]] = deque()

    def step(self) -> float:
        """Run one step; returns the CPU seconds inside the scheduler.

        Between its two calls an engine waits for the GPU: here it sleeps.
        """
        scheduler = self.loop.scheduler
        first_s, output = timed(scheduler.schedule)
        self._queue.append((output, sampled(scheduler, output)))
        if self._pause_s:
            time.sleep(self._pause_s)
        if len(self._queue) < 2:
            return first_s
        second_s, _ = timed(scheduler.update_from_output, *self._queue.popleft())
        return first_s + second_s


class MixedEngine(TimedEngine):
    """A timed engine with requests of both classes."""

    def __init__(self, cls: type[Any], sizes: Sequence[int], steps: int) -> None:
        """`sizes`: online requests running and waiting, offline ones running and waiting."""
        super().__init__(cls, 0, 0, steps, 0.0)
        running, waiting, offline, candidates = sizes
        self.loop = _loop(cls, running + offline, steps, prefixes=True)
        half = PROMPT_TOKENS // 2
        books = [unique_prompt(f"book {i}", half) for i in range(_BOOKS)]
        for index in range(running + waiting):
            name, now_s = f"online {index}", time.time()
            self.loop.add(name, PROMPT_TOKENS, 2 * steps, arrival_s=now_s, extra_args=_NEVER_LATE)
        for index in range(offline + candidates):
            prompt = books[index % _BOOKS] + unique_prompt(f"question {index}", half)
            self.loop.add(f"off {index}", prompt, 2 * steps, extra_args={"class": "offline"})


def _loop(cls: type[Any], seats: int, steps: int, *, prefixes: bool) -> VerifiedLoop:
    length = PROMPT_TOKENS + 2 * steps
    config = engine_config(
        max_num_seqs=max(1, seats),
        max_num_scheduled_tokens=8192,
        max_model_len=length + 1,
        total_blocks=(seats + 1) * (length // 16 + 2),
        async_scheduling=True,
        **({"enable_prefix_caching": True} if prefixes else {}),
    )
    return VerifiedLoop(config, cls)


def timed(call: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """CPU seconds of a call, and its result."""
    began_s = time.thread_time()
    result = call(*args)
    return time.thread_time() - began_s, result


def sampled(scheduler: Any, output: Any) -> ModelRunnerOutput:
    """A token for each request whose prompt is computed."""
    ids = list(output.num_scheduled_tokens)
    tokens = [[] if scheduler.requests[i].is_prefill_chunk else [100] for i in ids]
    return ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, tokens)


@contextmanager
def subscriber(endpoint: str) -> Iterator[None]:
    """Run a process that reads snapshots as a predictor does; entered once the first has come."""
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
    """Microseconds of a step of the stock scheduler and of the plugin at one size; `scheme` is that
    of the snapshots' endpoint."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"{scheme}://{folder}/snapshots"
        os.environ["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] = endpoint
        stock = TimedEngine(AsyncScheduler, running, waiting, steps + WARMUP_STEPS, pause_s)
        plugin = TimedEngine(ForetellScheduler, running, waiting, steps + WARMUP_STEPS, pause_s)
        with subscriber(endpoint):
            figures = _alternately(stock, plugin, steps)
            assert plugin.loop.scheduler.foretell.active, "the plugin switched itself off"
            assert len(plugin.loop.scheduler.running) == running
            assert len(plugin.loop.scheduler.waiting) == waiting
        plugin.loop.close()
    return {"running": running, "waiting": waiting, "pause_ms": 1e3 * pause_s, **figures}


def time_cosched_steps(sizes: Sequence[int], steps: int) -> dict[str, Any]:
    """Microseconds of a step of the stock scheduler and of `CoScheduler` at one size."""
    stock = MixedEngine(AsyncScheduler, sizes, steps + WARMUP_STEPS)
    ours = MixedEngine(CoScheduler, sizes, steps + WARMUP_STEPS)
    figures = _alternately(stock, ours, steps)
    assert ours.loop.scheduler.planner is not None, "it did not attach"
    return {"sizes": list(sizes), **figures}


def _alternately(stock: TimedEngine, ours: TimedEngine, steps: int) -> dict[str, float]:
    gc.freeze()  # as vLLM does once its engine is up
    for _ in range(WARMUP_STEPS):
        stock.step(), ours.step()
    pairs = [(stock.step(), ours.step()) for _ in range(steps)]
    found = {}
    for name, seconds in zip(("stock", "ours"), zip(*pairs, strict=True), strict=True):
        for level in (50, 99):
            found[f"{name}_p{level}_us"] = round(1e6 * percentile(seconds, level), 1)
    return found
