"""How do offline requests affect online ones, by vLLM's `priority` and by Foretell's class?"""

import asyncio
import time
from contextlib import suppress
from math import inf
from statistics import fmean
from typing import Any

from foretell.tools.check.context import Context
from foretell.tools.check.engines import MODEL_NAME
from foretell.tools.check.load import Answered, keep_busy, offline, questions, send
from foretell.tools.live.stream import StreamClient

UTILISATION = 0.4
"""Rate of online requests as a ratio of one engine's capacity."""
CONTENDERS = {
    "online alone": (0, False),
    "vLLM's priority": (0, True),
    "co-scheduling class": (-1, True),
}
"""The index of the engine, and whether there are offline requests beside the online ones."""
_CAPACITY_RATIO = 0.12
_DRAIN_RATIO = 0.3
_LEAST_RUN_S = 4.0
_MOST_ROUNDS = 10
_AT_ONCE_PER_SEAT = 2
_TEXTS = 12


async def beside(context: Context, seconds: float) -> dict[str, Any]:
    """Online requests at one engine, with and without an endless stream of offline ones."""
    ends_s = time.monotonic() + seconds
    url, concurrency = context.engines.urls[-1], round(1.5 * context.max_num_seqs)
    capacity = await context.capacity(url, "beside", concurrency, _CAPACITY_RATIO * seconds)
    rate = UTILISATION * capacity
    left_s = ends_s - time.monotonic()
    rounds = 1
    while rounds < _MOST_ROUNDS and _run_s(left_s, rounds + 1) >= 2 * _LEAST_RUN_S:
        rounds += 1
    run_s = max(_LEAST_RUN_S, _run_s(left_s, rounds))
    found: dict[str, Any] = {}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for round_ in range(rounds):
        if round_ and ends_s - time.monotonic() < len(CONTENDERS) * run_s:
            break
        for name in CONTENDERS:
            context.say(f"beside: round {round_ + 1}, {name}")
            runs[name].append(await _run(context, round_, name, rate, run_s))
            found = context.keep(
                "beside",
                {
                    "capacity_per_s": round(capacity, 3),
                    "rate_per_s": round(rate, 3),
                    "seconds_a_run": round(run_s, 1),
                    "rounds": len(runs["online alone"]),
                    "contenders": {name: _means(each) for name, each in runs.items() if each},
                    "runs": runs,
                },
            )
    return found


def _run_s(left_s: float, rounds: int) -> float:
    return left_s / (rounds * len(CONTENDERS)) / (1.0 + _DRAIN_RATIO)


async def _run(
    context: Context, round_: int, name: str, rate: float, run_s: float
) -> dict[str, Any]:
    place, is_beside = CONTENDERS[name]
    url = context.engines.urls[place]
    prefix = f"beside-{round_}-{name}"
    arrivals = context.arrivals(rate, run_s, 500 + round_)
    seen: list[Answered] = []
    asking = None
    if is_beside:
        asking = asyncio.create_task(_ask_offline(context, url, round_, prefix, seen))
    began_s = time.monotonic()
    try:
        async with StreamClient(url) as client:
            answered = await send(client, arrivals, context.online(prefix))
        took_s = time.monotonic() - began_s
    finally:
        if asking is not None:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
    figures = context.figures(answered, run_s)
    tokens = sum(a.prompt_tokens + a.output_tokens for a in seen)
    return figures | {
        "offline_per_s": round(len(seen) / took_s, 3),
        "offline_tokens_per_s": round(tokens / took_s, 1),
    }


async def _ask_offline(
    context: Context, url: str, round_: int, prefix: str, seen: list[Answered]
) -> None:
    """Keep the engine supplied until cancelled."""
    lengths = context.lengths
    lines = questions(round_, _TEXTS, lengths.most_prompt, lengths.most_output)
    at_once = _AT_ONCE_PER_SEAT * context.max_num_seqs
    async with StreamClient(url) as client:
        await keep_busy(client, lines, offline(MODEL_NAME, prefix), at_once, inf, seen)


def _means(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {key: round(fmean(run[key] for run in runs), 4) for key in runs[0]}
