"""How many iterations of an engine's loop the twin does in a second of CPU time.

By itself, without predictions: an engine whose seats are taken all the time. Requests with prompts
of 16 to 1024 tokens and outputs of 32 to 512 arrive at the rate at which they end, so whoever ends
is replaced, and the twin has to stop for every arrival, admission and end.
"""

import time
from random import Random

import numpy as np

from foretell.engine.arrays import new_rows, new_state
from foretell.kernel.layout import EXPECTED, new_batch, new_record
from foretell.kernel.loop import CLOCK, Loop
from foretell.kernel.rollout import MARK, Roll, roll
from foretell.kernel.steady import new_steady
from foretell.latency.linear import StepTimeModel
from foretell.model import EngineConfig
from tools.harness.cases import Size, arrivals_per_s

_LEAST_TOKENS, _MOST_TOKENS = 32, 512
_REQUESTS_PER_SEAT = 40


def iterations_per_cpu_s(
    running: int, step_time: StepTimeModel, cpu_s: float, *, async_scheduling: bool
) -> float:
    """Iterations per CPU second of one thread, measured for about `cpu_s`.

    The engine is made ready, and the twin warmed up, outside of the measurement.
    """
    done, spent_s, turn = 0, 0.0, -1
    while spent_s < cpu_s:
        engine = _busy_engine(running, step_time, turn, async_scheduling=async_scheduling)
        started = time.thread_time_ns()
        roll(engine, step_time.packed(), np.inf)
        took_s = (time.thread_time_ns() - started) * 1e-9
        if turn >= 0:
            done += int(engine.loop.clock["iterations"])
            spent_s += took_s
        turn += 1
    return done / spent_s


def _busy_engine(
    running: int, step_time: StepTimeModel, seed: int, *, async_scheduling: bool
) -> Roll:
    """A busy engine at its start: `running` requests are due, others arrive one by one."""
    rng = Random(f"{running}/{seed}")
    total = running * _REQUESTS_PER_SEAT
    config = EngineConfig(
        model_name="m",
        block_size_tokens=16,
        total_blocks=100 * (running + 1),
        max_num_seqs=running,
        max_num_scheduled_tokens=max(2048, running),
        max_model_len=4096,
        async_scheduling=async_scheduling,
    )
    interval_s = 1.0 / arrivals_per_s(Size(running, 0), step_time)
    rows = new_rows(total)
    rows["status"] = EXPECTED
    rows["prompt"] = [rng.randint(16, 1024) for _ in range(total)]
    # The first ones are in the midst of their answers: ends are spread from the beginning.
    outputs = [rng.randint(_LEAST_TOKENS, _MOST_TOKENS) for _ in range(total)]
    outputs[:running] = [rng.randint(1, tokens) for tokens in outputs[:running]]
    rows["stop_after"] = outputs
    rows["arrival_s"][running:] = np.arange(1, total - running + 1) * interval_s
    state = new_state(config, 0)._replace(sequences=rows, running=np.zeros(total, np.int32))
    return Roll(
        Loop(state, (new_batch(total), new_batch(total)), new_record(CLOCK)),
        arrivals=np.arange(total, dtype=np.int32),
        watched=np.zeros(0, np.int32),
        marks=np.zeros(0, MARK),
        steady=new_steady(total, config.block_size_tokens),
    )
