"""What every stage is given."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from foretell.services.process.folders import write_whole
from foretell.tools.check.engines import MODEL_NAME, Plan
from foretell.tools.check.load import Answered, Body, endless, keep_busy, online
from foretell.tools.check.options import CheckOptions, Stage
from foretell.tools.harness.schedulers import Engines
from foretell.tools.harness.services import Services
from foretell.tools.intervals import percentile
from foretell.tools.live.load import MixedLengths, bursty
from foretell.tools.live.measure import rate_of
from foretell.tools.live.stream import StreamClient
from foretell.workload import Arrival

_ALLOWED = 4  # a request's limit of tokens, as a multiple of the longest answer
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Context:
    """One run of the check."""

    options: CheckOptions
    plan: Plan
    engines: Engines
    services: Services
    output: Path
    max_model_len: int
    max_num_seqs: int
    """Seats of an engine."""
    say: Say
    """Called with what is going on."""

    def keep(self, stage: Stage, found: dict[str, Any]) -> dict[str, Any]:
        """Write what a stage has found so far, in case the run is interrupted, and return it."""
        write_whole(self.output / f"{stage}.json", json.dumps(found, indent=1))
        return found

    @property
    def lengths(self) -> MixedLengths:
        """Lengths of all online requests."""
        return MixedLengths().within(self.max_model_len)

    @property
    def most_tokens(self) -> int:
        """The limit of tokens of requests whose length only the engine knows."""
        lengths = self.lengths
        return min(_ALLOWED * lengths.most_output, self.max_model_len - lengths.most_prompt)

    def online(self, prefix: str) -> Body:
        """A function that makes bodies of online requests. Their prompts share no beginning with
        those of another `prefix`."""
        return online(self.most_tokens, MODEL_NAME, prefix)

    def arrivals(self, rate_per_s: float, seconds: float, seed: int) -> list[Arrival]:
        """Bursty requests during `seconds`, the same for the same seed."""
        count = max(1, round(rate_per_s * seconds))
        return bursty(count, rate_per_s, self.lengths, self.options.seed + seed)

    async def capacity(self, url: str, name: str, concurrency: int, seconds: float) -> float:
        """Requests a second that are answered at `url` while some always wait."""
        self.say(f"{name}: finding the capacity")
        requests = endless(self.lengths, self.options.seed + 1)
        async with StreamClient(url) as client:
            body = self.online(f"{name}-capacity")
            done = await keep_busy(client, requests, body, concurrency, seconds)
        ended = sorted(each.due_s + each.e2e_s for each in done)
        return rate_of(ended, max(each.due_s for each in done))

    def figures(self, answered: Iterable[Answered], seconds: float) -> dict[str, Any]:
        """Latencies in seconds, and good answers a second, of requests that came in `seconds`."""
        done = list(answered)
        targets = self.options.ttft_target_s, self.options.tpot_target_s
        ttft_s, tpot_s = [a.ttft_s for a in done], [a.tpot_s for a in done]
        good = sum(a.good(*targets) for a in done)
        found = {
            "ttft_mean_s": fmean(ttft_s),
            "ttft_p99_s": percentile(ttft_s, 99),
            "tpot_mean_s": fmean(tpot_s),
            "tpot_p99_s": percentile(tpot_s, 99),
            "e2e_mean_s": fmean(a.e2e_s for a in done),
            "e2e_p99_s": percentile([a.e2e_s for a in done], 99),
            "goodput_per_s": good / seconds,
            "good_ratio": good / len(done),
        }
        return {"requests": len(done), **{key: round(value, 5) for key, value in found.items()}}

    def facts(self) -> dict[str, Any]:
        """The facts that are the same for all stages, as JSON."""
        return {
            "engines": self.plan.count,
            "engines_per_gpu": self.plan.per_gpu,
            "gpus_per_engine": self.plan.gpus_each,
            "engine_args": self.plan.args(0, self.options.engine_args),
            "last_engine_args": self.plan.args(self.plan.count - 1, self.options.engine_args),
            "environment": self.plan.environment,
            "lengths": asdict(self.lengths),
            "seed": self.options.seed,
        }
