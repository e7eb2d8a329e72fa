"""The Block paper's cluster, 12 A30 with Llama-2-7B, and requests with real lengths for it."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig
from foretell.sim import ClusterConfig, InstanceConfig, Report
from foretell.workload import Arrival, EmpiricalLengths, poisson, stream

PROFILE, INSTANCES = "A30/Llama-2-7b-hf", 12
ENGINE = EngineConfig(
    model_name=PROFILE,
    block_size_tokens=16,
    total_blocks=1056,
    max_num_seqs=48,
    max_num_scheduled_tokens=512,
    max_model_len=4096,
)
DESCRIPTION = (
    f"engines of {PROFILE}, {ENGINE.max_num_seqs} seats, chunks of "
    f"{ENGINE.max_num_scheduled_tokens} tokens, {ENGINE.total_blocks:,} blocks"
)
Lengths = Sequence[tuple[int, int]]
"""(prompt, output) tokens of requests."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a run: how many, how many a second, and which are drawn."""

    qps: float
    requests: int
    seed: int
    lengths: Lengths = field(repr=False)

    def arrivals(self) -> list[Arrival]:
        """A Poisson process of requests, the same for equal loads."""
        draws = Random(self.seed)
        times = poisson(self.qps, draws)
        return stream(self.requests, times, EmpiricalLengths(self.lengths), draws)


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """The lengths in a CSV file that the engines can serve.

    Its columns are `num_prefill_tokens` and `num_decode_tokens`.
    """
    with path.open(newline="") as file:
        pairs = [
            (int(row["num_prefill_tokens"]), int(row["num_decode_tokens"]))
            for row in csv.DictReader(file)
        ]
    return [(p, o) for p, o in pairs if p > 0 and o > 0 and p + o <= ENGINE.max_model_len]


def cluster(instances: int = INSTANCES, **options: Any) -> ClusterConfig:
    """Equal engines; `options` are those of `ClusterConfig`."""
    instance = InstanceConfig(ENGINE, profile_step_time(load_profile(PROFILE)))
    return ClusterConfig((instance,) * instances, **options)


def figures(report: Report) -> dict[str, float]:
    """Latencies in seconds, and preemptions of all requests."""
    return {
        "ttft_mean_s": report.mean(lambda r: r.ttft_s),
        "ttft_p99_s": report.quantile(0.99, lambda r: r.ttft_s),
        "e2e_mean_s": report.mean(lambda r: r.e2e_s),
        "e2e_p99_s": report.quantile(0.99, lambda r: r.e2e_s),
        "preemptions": report.preemptions,
    }
