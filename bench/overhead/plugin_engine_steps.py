"""Times the steps of one real vLLM engine in this process; needs vLLM."""

import json
import logging
import os
import sys
import tempfile
import time
from random import Random
from statistics import fmean
from threading import enumerate as threads
from typing import Any

from vllm import LLM, SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from bench.overhead.plugin_steps import subscriber
from bench.stats import percentile
from services.backend.vllm.plugin import Publishing

WARMUP_STEPS = 40
PROMPT_TOKENS = 32
_outside_s: list[float] = []
_inside_s: list[float] = []


def _read(spans_s: list[float]) -> type[Any]:
    """A class to be mixed in before a scheduler's: appends what both calls of a step take."""

    class Read:
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            result = super().schedule(*args, **kwargs)  # type: ignore[misc]
            spans_s.append(time.perf_counter() - began_s)
            return result

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            result = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
            spans_s[-1] += time.perf_counter() - began_s
            return result

    return Read


_Inside, _Outside = _read(_inside_s), _read(_outside_s)


class ReadTwice(_Outside, _Inside, AsyncScheduler):  # type: ignore[misc, valid-type]
    """Nothing is between the readings."""


class WithPlugin(_Outside, Publishing, _Inside, AsyncScheduler):  # type: ignore[misc, valid-type]
    """The plugin is between them."""


def time_engine(model: str, size: str, kind: str, steps: int) -> dict[str, float]:
    """Microseconds a step, of `steps` steps of an engine with so many running and waiting.

    `size` is RUNNING+WAITING, or RUNNING+WAITING/TOKENS where answers have so many on average and
    others come once they end. With `kind` "readings" there is no plugin, with "plugin" a reader
    hears it.
    """
    population, _, answers = size.partition("/")
    running, waiting = map(int, population.split("+"))
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",  # a core is left for the reader
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    mean_tokens = int(answers or 0)
    most_tokens = 2 * mean_tokens or steps + WARMUP_STEPS + 20
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"shm://{folder}/snapshots"
        os.environ["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] = endpoint
        llm = LLM(
            model,
            scheduler_cls=ReadTwice if kind == "readings" else WithPlugin,
            max_num_seqs=running,
            max_model_len=PROMPT_TOKENS + most_tokens + 1,
            max_num_batched_tokens=8192,
            enforce_eager=True,
            async_scheduling=True,
        )
        load = Load(llm.llm_engine, most_tokens, drawn=mean_tokens > 0)
        load.add(running + waiting)
        if kind == "plugin":
            with subscriber(endpoint):
                return _timed(load, steps)
        return _timed(load, steps)


class Load:
    """So many requests at an engine all the time: after each that ends comes another."""

    def __init__(self, engine: Any, most_tokens: int, *, drawn: bool) -> None:
        """Answers have up to `most_tokens`, each number as likely, where they are `drawn`."""
        self._engine, self._most_tokens, self._drawn = engine, most_tokens, drawn
        self._draws, self._added = Random(1), 0

    def add(self, count: int) -> None:
        """Add requests."""
        for number in range(self._added, self._added + count):
            tokens = self._draws.randint(1, self._most_tokens) if self._drawn else self._most_tokens
            prompt = {"prompt_token_ids": [100 + number % 900, *range(PROMPT_TOKENS - 1)]}
            sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
            self._engine.add_request(str(number), prompt, sampling)
        self._added += count

    def step(self) -> None:
        """Make a step."""
        self.add(sum(output.finished for output in self._engine.step()))


def _timed(load: Load, steps: int) -> dict[str, float]:
    for _ in range(WARMUP_STEPS):
        load.step()
    _outside_s.clear()
    _inside_s.clear()
    thread_s, began_s = _thread_s(), time.perf_counter()
    for _ in range(steps):
        load.step()
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
