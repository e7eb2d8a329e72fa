"""`foretell demo`: what was predicted meets what happens."""

import asyncio
from collections.abc import Sequence
from statistics import median

from rich.console import Console

from foretell.services.process import runtime
from foretell.tools.demo.load import Answered, Outcome, send
from foretell.tools.demo.shown import errors, met
from foretell.tools.live.stream import StreamClient
from foretell.tools.progress import Show, showing
from foretell.tools.view.cluster import ClusterView, merged
from foretell.tools.view.replicas import NoStatus, reports
from foretell.workload.chats import Chat, shipped_chats


def demo(url: str, api_key: str, rate_per_s: float, seconds: float, seed: int) -> None:
    """Send chats to the cluster at `url`, and print a table of what came of them."""
    view = _cluster(url, api_key)
    model = min(view.engines.values(), key=lambda engine: engine.name).models
    count = max(1, round(rate_per_s * seconds))
    chats = _some(count)
    with showing("sending chats") as show, asyncio.Runner(loop_factory=runtime.loop_factory()) as r:
        outcome = r.run(_sent(url, api_key, min(model), chats, rate_per_s, seed, show))
    if not outcome.answered:
        raise SystemExit(f"demo: no chat was answered: {outcome.failed[0]}")
    console = Console()
    _print_predictions(console, outcome)
    if outcome.failed:
        console.print(f"[red]{len(outcome.failed)} failed[/]: {outcome.failed[0]}", highlight=False)


def _cluster(url: str, api_key: str) -> ClusterView:
    try:
        view = merged(reports([url], api_key=api_key)[0])
    except NoStatus as error:
        raise SystemExit(f"demo: {error}; start a cluster with `foretell up`") from error
    if not any(engine.models for engine in view.engines.values()):
        raise SystemExit(f"demo: no engine is up at {url}: see `foretell status`")
    view.engines = {name: engine for name, engine in view.engines.items() if engine.models}
    return view


def _some(count: int) -> list[Chat]:
    """So many chats, from the start again where there are fewer."""
    chats = shipped_chats()
    return [chats[number % len(chats)] for number in range(count)]


async def _sent(
    url: str,
    api_key: str,
    model: str,
    chats: Sequence[Chat],
    rate_per_s: float,
    seed: int,
    show: Show,
) -> Outcome:
    def note(outcome: Outcome) -> None:
        done = len(outcome.answered) + len(outcome.failed)
        show(_news(outcome.answered), done, len(chats))

    async with StreamClient(url, api_key=api_key) as client:
        return await send(client, model, chats, rate_per_s, seed, note)


def _news(answered: Sequence[Answered]) -> str:
    """How far predictions of e2e latency were off so far."""
    off = [abs(predicted / actual - 1) for predicted, actual in met(answered)["e2e"]]
    return f"answers; e2e off by {median(off):.0%} (median)" if off else "answers"


def _print_predictions(console: Console, outcome: Outcome) -> None:
    found = {name: each for name, each in met(outcome.answered).items() if each}
    if not found:
        console.print("Nothing was predicted: the policy asks for no predictions.")
        return
    console.print(errors(found))
