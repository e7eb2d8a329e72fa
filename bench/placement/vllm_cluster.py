"""Does the default policy beat simple ones on real vLLM engines whose answers nobody foreknows?

Four real vLLM engines on the CPU, whose steps last as long as a GPU profile says, in five settings.
Their API servers, schedulers and KV caches are vLLM's own, the answers' lengths are known to the
engines alone, and tagger, predictors and scheduler are those that are deployed. Policies take
turns on the same requests, in another order each round.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]

from bench.paced.engines import PROFILE, SLOWDOWN, forget_prefixes
from bench.placement.cluster.watch import Watch, watching
from bench.placement.paced.engines import start_paced
from bench.placement.paced.load import send, single_tokens
from bench.placement.paced.page import tables
from bench.placement.paced.requests import Chain, Turn, draw, read_conversations
from bench.placement.paced.runs import Kept, Run, foretold, summary
from bench.placement.paced.settings import SETTINGS, UTILISATION, Setting
from bench.processes import Services, running_services
from bench.report import ROOT, Benchmark, Numbers
from foretell.tools.harness.schedulers import Engines, running_schedulers

__all__ = ["BENCH", "arguments", "measure", "tables"]
BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes a round and setting",
    needs="`make setup-vllm`, the model of `make run-vllm`, two idle cores",
    packages=("foretell", "numpy", "grpcio"),
)
POLICIES = ("slo", "least_outstanding", "llumnix_minus", "round_robin", "predicted_latency")
_WARM_UP = 30
"""Requests of each run that come first and do not count: they fill the engines."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run in each setting."""

    conversations: list[list[Turn]]
    requests: int
    rounds: int
    python: Path
    model: Path

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


async def run_setting(plan: Plan, setting: Setting, kept: Kept, policies: list[str]) -> None:
    """All rounds that are not kept yet, on engines that stay up."""
    todo = list(_todo(plan, setting, kept, policies))
    if not todo:
        return
    with TemporaryDirectory(prefix="foretell-bench-") as name:
        async with running_services(Path(name)) as services:
            engines = await start_paced(services, setting, plan.python, plan.model)
            async with _watching(engines, setting) as watches:
                for round_, policy in todo:
                    run = await _run(plan, setting, round_, policy, engines, services, watches)
                    kept.add(run)
                    print(run.line(), file=sys.stderr, flush=True)


def _todo(
    plan: Plan, setting: Setting, kept: Kept, policies: list[str]
) -> Iterator[tuple[int, str]]:
    """Rounds and policies that are missing, in their order."""
    for round_ in range(plan.rounds):
        first = round_ % len(policies)
        for policy in (*policies[first:], *policies[:first]):
            if not kept.has(setting.name, round_, policy, plan.requests):
                yield round_, policy


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
        setting=setting.name,
        round=round_,
        policy=policy,
        asked=plan.requests,
        ttft_s=[round(answer.ttft_s, 4) for answer in counted],
        e2e_s=[round(answer.e2e_s, 4) for answer in counted],
        within=[answer.within for answer in counted if any(answer.ask.targets_s)],
        preemptions=preemptions,
        placed=len(answers),
        degraded=degraded,
        step_lateness=round(lateness, 4),
        cores_busy=round(busy, 2),
        load_1min=round(psutil.getloadavg()[0], 2),
        foretold=foretold(schedulers.logs[0], {a.ask.request_id for a in counted}),
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    help_text = "ShareGPT turns that the tagger has not seen; without, turns of random words."
    parser.add_argument("--prompts", type=Path, metavar="TURNS.jsonl.gz", help=help_text)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--requests", type=int, default=90, help="That count, of each run.")
    parser.add_argument("--quick", action="store_true", help="One short round; writes nothing.")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-vllm/bin/python")
    parser.add_argument("--model", type=Path, default=ROOT / ".models/tiny-llama")


def measure(options: argparse.Namespace) -> Numbers:
    """Make the runs that are missing, and sum up all."""
    if options.quick:
        options.write, options.rounds, options.requests = False, 1, 15
    kept = Kept(None if options.quick else BENCH.kept)
    plan = Plan(
        read_conversations(options.prompts),
        options.requests,
        options.rounds,
        options.python,
        options.model,
    )
    for name in options.settings:
        asyncio.run(run_setting(plan, SETTINGS[name], kept, options.policies))
    return {
        "profile": PROFILE,
        "slowdown": SLOWDOWN,
        "utilisation": UTILISATION,
        "settings": {
            name: {"what": SETTINGS[name].what, **summary(kept.complete(name, options.policies))}
            for name in options.settings
        },
    }
