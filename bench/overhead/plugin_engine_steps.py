"""Times the steps of one real vLLM engine in this process; needs vLLM."""

import json
import logging
import os
import sys
import tempfile
import time
from statistics import fmean
from threading import enumerate as threads
from typing import Any

from vllm import LLM, SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from bench.stats import percentile
from services.backend.vllm.plugin import Publishing

WARMUP_STEPS = 40
PROMPT_TOKENS = 32
_outside_s: list[float] = []
_inside_s: list[float] = []


class _Inside:
    """Mixed in right before vLLM's scheduler: what its own calls take."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        result = super().schedule(*args, **kwargs)  # type: ignore[misc]
        _inside_s.append(time.perf_counter() - began_s)
        return result

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        result = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        _inside_s[-1] += time.perf_counter() - began_s
        return result


class _Outside:
    """Mixed in before everything: what the engine waits for."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        result = super().schedule(*args, **kwargs)  # type: ignore[misc]
        _outside_s.append(time.perf_counter() - began_s)
        return result

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        result = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        _outside_s[-1] += time.perf_counter() - began_s
        return result


class SyncReadings(_Outside, _Inside, Scheduler):  # type: ignore[misc]
    """Read twice, nothing in between."""


class SyncPlugin(_Outside, Publishing, _Inside, Scheduler):  # type: ignore[misc]
    """Read outside the plugin and inside."""


class AsyncReadings(_Outside, _Inside, AsyncScheduler):  # type: ignore[misc]
    """Steps overlap, and are read twice, with nothing in between."""


class AsyncPlugin(_Outside, Publishing, _Inside, AsyncScheduler):  # type: ignore[misc]
    """The plugin in engines whose steps overlap."""


CLASSES = {"readings": (SyncReadings, AsyncReadings), "plugin": (SyncPlugin, AsyncPlugin)}


def time_engine(model: str, size: str, kind: str, steps: int) -> dict[str, float]:
    """Microseconds a step, of `steps` steps of an engine with so many running and waiting."""
    running, waiting = map(int, size.split("+"))
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",  # a core is left for the reader
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    answer_tokens = steps + WARMUP_STEPS + 20
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"shm://{folder}/snapshots"
        os.environ["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] = endpoint
        llm = LLM(
            model,
            scheduler_cls=CLASSES[kind][1],
            max_num_seqs=running,
            max_model_len=PROMPT_TOKENS + answer_tokens + 1,
            max_num_batched_tokens=8192,
            enforce_eager=True,
            async_scheduling=True,
        )
        engine = llm.llm_engine
        sampling = SamplingParams(max_tokens=answer_tokens, ignore_eos=True)
        for i in range(running + waiting):
            prompt = {"prompt_token_ids": [100 + i, *range(PROMPT_TOKENS - 1)]}
            engine.add_request(str(i), prompt, sampling)
        if kind == "plugin":
            # Not before: vLLM looks through all modules, and stumbles over one of llvmlite's.
            from bench.overhead.plugin_steps import subscriber  # noqa: PLC0415

            with subscriber(endpoint):
                return _timed(engine, steps)
        return _timed(engine, steps)


def _timed(engine: Any, steps: int) -> dict[str, float]:
    for _ in range(WARMUP_STEPS):
        engine.step()
    _outside_s.clear()
    _inside_s.clear()
    thread_s, began_s = _thread_s(), time.perf_counter()
    for _ in range(steps):
        engine.step()
    took_s, thread_s = time.perf_counter() - began_s, _thread_s() - thread_s
    # The last ones may not be over.
    pairs = list(zip(_outside_s, _inside_s, strict=True))[:-2]
    plugin_us = [1e6 * (outside - inside) for outside, inside in pairs]
    figures = {
        "stock_mean": fmean(1e6 * inside for _, inside in pairs),
        "plugin_mean": fmean(plugin_us),
        "plugin_p50": percentile(plugin_us, 50),
        "plugin_p99": percentile(plugin_us, 99),
        "thread_mean": 1e6 * thread_s / steps,
        "step_mean": 1e6 * took_s / steps,
    }
    return {f"{name}_us": round(value, 1) for name, value in figures.items()}


def _thread_s() -> float:
    """CPU time of the plugin's threads."""
    own = [thread for thread in threads() if thread.name.startswith("foretell-")]
    clocks = [time.pthread_getcpuclockid(each.ident) for each in own if each.ident]
    return sum(map(time.clock_gettime, clocks))


if __name__ == "__main__":
    logging.disable(logging.INFO)
    model, size, kind, steps = sys.argv[1:]
    print(json.dumps(time_engine(model, size, kind, int(steps))))
