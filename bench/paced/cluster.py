"""Runs of policies, in turn, on real paced engines with tagger and scheduler as deployed."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]

from bench.paced.engines import (
    EngineSpec,
    engine_args,
    forget_prefixes,
    start_paced,
    warm_up,
)
from bench.paced.load import send, single_tokens
from bench.paced.pace import PROFILE, step_time
from bench.paced.requests import Chain, Turn, draw, read_conversations
from bench.paced.runs import MOST_LATE, Run, predicted
from bench.paced.settings import Setting
from bench.paced.watch import bubbles, watched
from bench.report import ROOT
from bench.runs import Kept
from foretell.tools.harness.schedulers import Engines, running_schedulers
from foretell.tools.harness.services import Services, running_services
from foretell.tools.live.tap import decoded, listening

_WARM_UP = 30
"""The first requests of each run, which fill the engines and do not count."""
_QUICK_REQUESTS = 15
OBSERVED = "slo, observed"
"""The default policy, with predictors that get nothing from the engines' plugin."""


def arguments(parser: argparse.ArgumentParser, rounds: int, requests: int = 90) -> None:
    """Add the options that all benchmarks on paced engines have."""
    help_text = "ShareGPT turns that the tagger has not seen; without, turns of random words."
    parser.add_argument("--prompts", type=Path, metavar="TURNS.jsonl.gz", help=help_text)
    parser.add_argument("--rounds", type=int, default=rounds, help="Each with a seed of its own.")
    help_text = "Requests that count, of each run."
    parser.add_argument("--requests", type=int, default=requests, help=help_text)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--model", type=Path, default=ROOT / ".models/tiny-llama")


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of each setting."""

    conversations: list[list[Turn]]
    requests: int
    rounds: int
    python: Path
    model: Path
    policies: Sequence[str]
    most_late: float = MOST_LATE

    @classmethod
    def of(cls, options: argparse.Namespace, policies: Sequence[str]) -> "Plan":
        """The plan by the options of `arguments`; a quick one is short, and accepts late steps."""
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
        return draw(
            conversations,
            self.requests + _WARM_UP,
            setting.rate_per_s(turns),
            seed=round_,
            whole=setting.conversations,
            targets_s=setting.targets_s,
        )


def runs_of(plan: Plan, setting: Setting, kept: Kept) -> dict[str, list[Run]]:
    """The runs of rounds that every policy has completed, by policy; makes missing runs first."""
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
    """Make these runs; engines stay up for all of them. A run whose steps were late is not kept, so
    the next start of the benchmark makes it again."""
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        async with running_services(Path(name)) as services:
            engines = await start_paced(services, setting.engines, plan.python, plan.model)
            observed = engines
            if any(policy == OBSERVED for _, policy in todo):
                observed = await _observed(services, engines, setting.engines)
            for round_, policy in todo:
                asked = observed if policy == OBSERVED else engines
                run = await _run(plan, setting, round_, policy, asked, services)
                if run.step_lateness <= plan.most_late:
                    kept.keep((setting.name, round_, policy, plan.requests), asdict(run))
                print(run.line(), file=sys.stderr, flush=True)


async def _observed(services: Services, engines: Engines, specs: Sequence[EngineSpec]) -> Engines:
    """The same engines with predictors that know their flags and profile, and observe them.

    They learn the engines' pace from a warm-up through a scheduler."""
    started = await asyncio.gather(
        *(
            services.start(
                f"observing-{index}",
                "foretell.services.predictor",
                f"--name=engine-{index}",
                f"--listen=unix:{services.folder}/observing-{index}.sock",
                f"--engine-url={url}",
                f"--engine-args={engine_args(spec)}",
                f"--profile={PROFILE}",
            )
            for index, (url, spec) in enumerate(zip(engines.urls, specs, strict=True))
        )
    )
    observed = replace(engines, predictors=tuple(str(one.facts["address"]) for one in started))
    folder = services.folder / "warm-up"
    async with running_schedulers(folder, observed, "round_robin", 1) as schedulers:
        for _ in engines.urls:
            await warm_up(schedulers.urls)
    return observed


async def _run(
    plan: Plan,
    setting: Setting,
    round_: int,
    policy: str,
    engines: Engines,
    services: Services,
) -> Run:
    """Run one round of one policy, with a tagger and a scheduler that have learned nothing yet."""
    chains = plan.chains(setting, round_)
    name = f"{setting.name}-{round_}-{policy}".replace(", ", "-")
    folder = services.folder / name
    folder.mkdir()
    await forget_prefixes(engines.urls)
    async with running_services(folder) as own:
        tagger = await own.start(
            "tagger", "foretell.services.tagger", f"--listen=unix:{folder}/tagger.sock"
        )
        flags = (f"--tagger={tagger.facts['address']}",)
        place, deployed = folder / "scheduler", "slo" if policy == OBSERVED else policy
        async with running_schedulers(place, engines, deployed, 1, *flags) as schedulers:
            url, model = schedulers.urls[0], engines.model
            words = await single_tokens(engines.urls[0], model) if setting.own_answers else ()
            began_s = time.time()
            psutil.cpu_percent()  # the next call measures from here
            with ExitStack() as stack:
                heard = [stack.enter_context(listening(feed)) for feed in engines.feeds]
                answers = await send(chains, url, model, name, hinted=setting.hinted, words=words)
                busy = psutil.cpu_percent() / 100.0 * psutil.cpu_count()
                snapshots = [decoded(each()) for each in heard]
            degraded = dict(await schedulers.degraded())
    watches = [
        watched(seen, step_time(), spec.slowdown, began_s)
        for seen, spec in zip(snapshots, setting.engines, strict=True)
    ]
    counted = [answer for answer in answers if int(answer.ask.request_id) >= _WARM_UP]
    return Run(
        ttft_s=[round(answer.ttft_s, 4) for answer in counted],
        e2e_s=[round(answer.e2e_s, 4) for answer in counted],
        within=[answer.within for answer in counted if any(answer.ask.targets_s)],
        name=name,
        preemptions=sum(watch.preemptions for watch in watches),
        degraded=degraded,
        step_lateness=round(max(watch.lateness for watch in watches), 4),
        bubbles=round(bubbles(snapshots, began_s), 5),
        cores_busy=round(busy, 2),
        predicted=predicted(schedulers.logs[0], {a.ask.request_id for a in counted}),
    )
