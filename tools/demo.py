"""`foretell demo`: sends a short load to a running cluster and measures prediction errors."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from foretell.services.process import runtime
from foretell.tools.intervals import quantile
from foretell.tools.live.stream import NoStream, StreamClient
from foretell.tools.progress import showing
from foretell.tools.view.cluster import merged, pairs
from foretell.tools.view.replicas import NoStatus, reports
from foretell.workload.chats import Chat, shipped_chats

DEADLINE_S = 300.0
Pair = tuple[float, float]
"""Predicted and actual seconds."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One chat that was answered; times in seconds."""

    ttft_s: float
    e2e_s: float
    predicted_ttft_s: float | None
    """None if the cluster predicted nothing; the next field, too."""
    predicted_e2e_s: float | None


@dataclass(slots=True)
class Outcome:
    """The results of all chats."""

    answered: list[Answered]
    failed: list[str]
    """The reason for each chat that was not answered."""


def demo(url: str, api_key: str, rate_per_s: float, seconds: float, seed: int) -> None:
    """Send chats to the cluster at `url`, and print predicted and actual latencies."""
    model = _model_of(url, api_key)
    chats = list(islice(cycle(shipped_chats()), max(1, round(rate_per_s * seconds))))

    async def sent(note: Callable[[Outcome], None]) -> Outcome:
        async with StreamClient(url, api_key=api_key) as client:
            return await _send(client, model, chats, rate_per_s, seed, note)

    with showing("sending chats") as show, asyncio.Runner(loop_factory=runtime.loop_factory()) as r:
        outcome = r.run(sent(lambda o: show(_news(o), len(o.answered) + len(o.failed), len(chats))))
    if not outcome.answered:
        raise SystemExit(f"demo: no chat was answered: {outcome.failed[0]}")
    console = Console()
    if found := {name: each for name, each in met(outcome.answered).items() if each}:
        console.print(errors(found))
    else:
        console.print("Nothing was predicted: the policy asks for no predictions.")
    if outcome.failed:
        console.print(f"[red]{len(outcome.failed)} failed[/]: {outcome.failed[0]}", highlight=False)


def _model_of(url: str, api_key: str) -> str:
    """A model that the cluster serves."""
    try:
        view = merged(reports([url], api_key=api_key)[0])
    except NoStatus as error:
        raise SystemExit(f"demo: {error}; start a cluster with `foretell up`") from error
    for engine in sorted(view.engines.values(), key=lambda engine: engine.name):
        if engine.models:
            return min(engine.models)
    raise SystemExit(f"demo: no engine is up at {url}: see `foretell status`")


async def _send(
    client: StreamClient,
    model: str,
    chats: Sequence[Chat],
    rate_per_s: float,
    seed: int,
    note: Callable[[Outcome], None],
) -> Outcome:
    """Send `chats` with gaps of a Poisson process and wait for all answers."""
    draws, outcome, due = Random(f"{seed} demo"), Outcome([], []), time.monotonic()

    async def ask(chat: Chat) -> None:
        try:
            outcome.answered.append(await _ask(client, model, chat))
        except NoStream as error:
            outcome.failed.append(str(error))
        note(outcome)

    async with asyncio.TaskGroup() as tasks:
        for chat in chats:
            await asyncio.sleep(due - time.monotonic())
            tasks.create_task(ask(chat))
            due += draws.expovariate(rate_per_s)
    return outcome


async def _ask(client: StreamClient, model: str, chat: Chat) -> Answered:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": chat.prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_unix_s = time.time()
    timing = await client.stream("/v1/chat/completions", body, DEADLINE_S)

    def predicted(name: str) -> float | None:
        text = timing.headers.get(f"x-foretell-predicted-{name}-s")
        return float(text) if text else None

    return Answered(
        timing.first_unix_s - sent_unix_s,
        timing.last_unix_s - sent_unix_s,
        predicted("ttft"),
        predicted("e2e"),
    )


def _news(outcome: Outcome) -> str:
    """The median error of e2e predictions so far, as text."""
    off = [abs(predicted / actual - 1) for predicted, actual in met(outcome.answered)["e2e"]]
    return f"answers; e2e off by {median(off):.0%} (median)" if off else "answers"


def met(answered: Sequence[Answered]) -> dict[str, list[Pair]]:
    """Predicted and actual seconds, by kind of latency."""
    return {
        "TTFT": pairs([a.predicted_ttft_s or 0.0 for a in answered], [a.ttft_s for a in answered]),
        "e2e": pairs([a.predicted_e2e_s or 0.0 for a in answered], [a.e2e_s for a in answered]),
    }


def errors(found: dict[str, list[Pair]]) -> Table:
    """A table of predicted and actual medians, and of prediction errors."""
    table = Table(box=box.SIMPLE_HEAD, title="Predicted and actual", title_justify="left")
    table.add_column("latency")
    for column in ("predicted, median", "actual, median", "off by, median", "off by, P90"):
        table.add_column(column, justify="right")
    for name, each in found.items():
        off = [abs(predicted / actual - 1) for predicted, actual in each]
        medians = (f"{median(side):.2f} s" for side in zip(*each, strict=True))
        table.add_row(name, *medians, f"{median(off):.0%}", f"{quantile(off, 0.9):.0%}")
    return table
