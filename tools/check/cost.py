"""What does the plugin cost a step? With and without it, in turn, in one engine under load."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from statistics import fmean, median, stdev
from typing import Any

from foretell.tools.check.context import Context
from foretell.tools.check.engine_args import METER_KEY
from foretell.tools.check.load import endless, keep_busy
from foretell.tools.intervals import percentile
from foretell.tools.live.stream import StreamClient
from foretell.workload import Arrival

METER_NAME = "meter.json"
_WARM_UP_RATIO = 0.15
_POLL_S = 0.1
_FILE_TIMEOUT_S = 20.0
_NORMAL_975 = 1.96


async def cost(context: Context, seconds: float) -> dict[str, Any]:
    """Keep the first engine half full while it switches its plugin off and on."""
    file = context.services.folder / METER_NAME
    file.unlink(missing_ok=True)
    seats = context.max_num_seqs
    concurrency = max(2, seats // 2)
    body = context.online("cost")
    async with StreamClient(context.engines.urls[0]) as client:
        requests = endless(context.lengths, context.options.seed)
        await keep_busy(client, requests, body, concurrency, _WARM_UP_RATIO * seconds)
        await _tell(client, context, "begin", 1)
        used_s = (1.0 - 2 * _WARM_UP_RATIO) * seconds
        await keep_busy(client, requests, body, concurrency, used_s)
        await _tell(client, context, "end", 0)
    deadline_s = time.monotonic() + _FILE_TIMEOUT_S
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the engine wrote no measurement: its log may say why")
        await asyncio.sleep(_POLL_S)
    blocks = json.loads(file.read_text(encoding="utf-8"))
    return {"concurrency": concurrency, **summary(blocks)}


async def _tell(client: StreamClient, context: Context, what: str, asked: int) -> None:
    body = context.online("cost")(Arrival(0.0, 16, 2, what))
    body["vllm_xargs"] |= {METER_KEY: asked}
    await client.complete(body, _FILE_TIMEOUT_S)


def summary(blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over pairs of blocks, one with the plugin and one without, and their intervals.

    Microseconds. `own` is the time in the scheduler's two methods, on the engine's thread; `step`
    is the time from the start of one step to that of the next. Incomplete pairs are ignored.
    """
    pairs = [pair for pair in _pairs(blocks) if all(each["step_us"] for each in pair)]
    if len(pairs) < 2:
        return {"pairs": len(pairs)}
    found: dict[str, Any] = {"pairs": len(pairs)}
    for name in ("own", "step"):
        with_us = [median(a[f"{name}_us"]) for a, _ in pairs]
        without_us = [median(b[f"{name}_us"]) for _, b in pairs]
        more_us = [a - b for a, b in zip(with_us, without_us, strict=True)]
        found[name] = {
            "with_us": round(fmean(with_us), 1),
            "without_us": round(fmean(without_us), 1),
            "more_us": round(fmean(more_us), 1),
            "half_width_us": round(_NORMAL_975 * stdev(more_us) / len(more_us) ** 0.5, 1),
        }
    everything = [list(chain.from_iterable(p[i]["own_us"] for p in pairs)) for i in (0, 1)]
    found["own_p99_us"] = [round(percentile(each, 99), 1) for each in everything]
    running = list(chain.from_iterable(b["requests"] for pair in pairs for b in pair))
    found["running_mean"] = round(fmean(running), 1)
    found["steps"] = len(running)
    return found


def _pairs(
    blocks: Sequence[dict[str, Any]],
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of neighbouring blocks; the first of a pair is the one with the plugin."""
    for first, second in zip(islice(blocks, 0, None, 2), islice(blocks, 1, None, 2), strict=False):
        yield (first, second) if first["plugin"] else (second, first)
