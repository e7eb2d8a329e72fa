"""Real paced engines with tagger and scheduler as deployed: runs of policies that take turns."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]

from bench.paced.engines import MODEL_NAME, EngineSpec, forget_prefixes, start_launchers
from bench.paced.load import send, single_tokens
from bench.paced.requests import Chain, Turn, draw, read_conversations
from bench.paced.runs import MOST_LATE, Run, predicted
from bench.paced.settings import Setting
from bench.paced.watch import Watch, watching
from bench.processes import Services, running_services
from bench.report import ROOT
from bench.runs import Kept
from foretell.tools.harness.schedulers import Engines, running_schedulers

_WARM_UP = 30
"""Requests of each run that come first and do not count: they fill the engines."""
_QUICK_REQUESTS = 15


def arguments(parser: argparse.ArgumentParser, rounds: int, requests: int = 90) -> None:
    """What all benchmarks on paced engines take."""
    help_text = "ShareGPT turns that the tagger has not seen; without, turns of random words."
    parser.add_argument("--prompts", type=Path, metavar="TURNS.jsonl.gz", help=help_text)
    parser.add_argument("--rounds", type=int, default=rounds, help="Each with a seed of its own.")
    help_text = "Requests that count, of each run."
    parser.add_argument("--requests", type=int, default=requests, help=help_text)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--model", type=Path, default=ROOT / ".models/tiny-llama")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run in each setting."""

    conversations: list[list[Turn]]
    requests: int
    rounds: int
    python: Path
    model: Path
    policies: Sequence[str]
    most_late: float = MOST_LATE

    @classmethod
    def of(cls, options: argparse.Namespace, policies: Sequence[str]) -> "Plan":
        """By `arguments`; a quick one is not written."""
        if options.quick:
            options.rounds, options.requests = 1, _QUICK_REQUESTS
        conversations = read_conversations(options.prompts)
        places = options.python, options.model
        most_late = inf if options.quick else MOST_LATE
        return cls(conversations, options.requests, options.rounds, *places, policies, most_late)

    def chains(self, setting: Setting, round_: int) -> list[Chain]:
        """The requests of a round, the same for each policy."""
        conversations = self.conversations
        if setting.conversations:
            conversations = [turns for turns in conversations if len(turns) > 2]
        turns = [turn for conversation in conversations for turn in conversation]
        step_time = setting.engines[0].pace.step_time()
        return draw(
            conversations,
            self.requests + _WARM_UP,
            setting.rate_per_s(turns, step_time),
            seed=round_,
            whole=setting.conversations,
            targets_s=setting.targets_s,
        )


def runs_of(plan: Plan, setting: Setting, kept: Kept) -> dict[str, list[Run]]:
    """The runs of all rounds that every policy has served, by policy; missing ones are made."""
    asked = [
        (setting.name, round_, policy, plan.requests)
        for round_ in range(plan.rounds)
        for policy in _rotated(plan.policies, round_)
    ]
    todo = [each for each in asked if kept.get(each) is None]
    if todo:
        asyncio.run(_make(plan, setting, kept, [(round_, policy) for _, round_, policy, _ in todo]))
    found = {each: Run(**kept.get(each)) for each in asked if kept.get(each) is not None}
    whole = [
        round_
        for round_ in range(plan.rounds)
        if all((setting.name, round_, policy, plan.requests) in found for policy in plan.policies)
    ]
    return {
        policy: [found[setting.name, round_, policy, plan.requests] for round_ in whole]
        for policy in plan.policies
    }


def _rotated(policies: Sequence[str], round_: int) -> Sequence[str]:
    first = round_ % len(policies)
    return (*policies[first:], *policies[:first])


async def _make(plan: Plan, setting: Setting, kept: Kept, todo: Sequence[tuple[int, str]]) -> None:
    """Engines stay up for all runs. One whose steps were late is not kept, so it is made again when
    the benchmark is started again."""
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        async with running_services(Path(name)) as services:
            engines = await start_paced(services, setting.engines, plan.python, plan.model)
            async with _watching(engines, setting) as watches:
                for round_, policy in todo:
                    run = await _run(plan, setting, round_, policy, engines, services, watches)
                    if run.step_lateness <= plan.most_late:
                        kept.keep((setting.name, round_, policy, plan.requests), asdict(run))
                    print(run.line(), file=sys.stderr, flush=True)


async def start_paced(
    services: Services, specs: Sequence[EngineSpec], python: Path, model: Path
) -> Engines:
    """Start all with their predictors, and warm them up."""
    started = await start_launchers(services, specs, python, model)
    feeds = (f"shm://{services.folder}/engine-{i}.snapshots" for i in range(len(started)))
    urls, predictors = (
        tuple(str(each.facts[name]) for each in started) for name in ("url", "predictor")
    )
    return Engines(MODEL_NAME, urls, predictors, tuple(feeds))


@asynccontextmanager
async def _watching(engines: Engines, setting: Setting) -> AsyncIterator[list[Watch]]:
    """A watch for each engine, which all hear."""
    async with AsyncExitStack() as stack:
        watches = []
        for feed, spec in zip(engines.feeds, setting.engines, strict=True):
            watches.append(Watch(spec.pace.step_time(), 1.0 / spec.slowdown))
            await stack.enter_async_context(watching([feed], watches[-1]))
        yield watches


async def _run(
    plan: Plan,
    setting: Setting,
    round_: int,
    policy: str,
    engines: Engines,
    services: Services,
    watches: list[Watch],
) -> Run:
    """One round of one policy, with a tagger and a scheduler that have learned nothing yet."""
    chains = plan.chains(setting, round_)
    name = f"{setting.name}-{round_}-{policy}"
    folder = services.folder / name
    folder.mkdir()
    await forget_prefixes(engines.urls)
    async with running_services(folder) as own:
        tagger = await own.start(
            "tagger", "foretell.services.tagger", f"--listen=unix:{folder}/tagger.sock"
        )
        flags = (f"--tagger={tagger.facts['address']}",)
        async with running_schedulers(folder, engines, policy, 1, *flags) as schedulers:
            for watch in watches:
                watch.reset()
            psutil.cpu_percent()  # the next call tells of the time since this one
            url, model = schedulers.urls[0], engines.model
            words = await single_tokens(engines.urls[0], model) if setting.own_answers else ()
            answers = await send(chains, url, model, name, hinted=setting.hinted, words=words)
            busy = psutil.cpu_percent() / 100.0 * psutil.cpu_count()
            degraded = dict(await schedulers.degraded())
            preemptions = sum(watch.preemptions for watch in watches)
            lateness = max(watch.lateness for watch in watches)
    counted = [answer for answer in answers if int(answer.ask.request_id) >= _WARM_UP]
    return Run(
        ttft_s=[round(answer.ttft_s, 4) for answer in counted],
        e2e_s=[round(answer.e2e_s, 4) for answer in counted],
        within=[answer.within for answer in counted if any(answer.ask.targets_s)],
        name=name,
        preemptions=preemptions,
        degraded=degraded,
        step_lateness=round(lateness, 4),
        cores_busy=round(busy, 2),
        predicted=predicted(schedulers.logs[0], {a.ask.request_id for a in counted}),
    )
