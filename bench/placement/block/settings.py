"""What is run: clusters, traces, schedulers, and what the paper says came of them."""

from dataclasses import asdict, dataclass
from typing import Any

from foretell.length.distribution import LengthRule
from foretell.tools.simulate.options import EngineOptions, SimulateOptions, TraceFormat

INSTANCES = 12
TTFT_BOUND_S = 3.0
"""Bound on the P99 of TTFT; the capacity is the highest rate at which it is kept."""
NOISE_SIGMA = 0.3
"""Standard deviation of the logarithm of an estimated length around the true one."""
SHAREGPT = "sharegpt_10k_llama2_lengths.csv"
AZURE = "azure2023_conv.t0-2100.csv.gz"


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A placement policy and what it is told of output lengths."""

    title: str
    policy: str
    estimates: str = "true"
    length_rule: LengthRule = "survival"
    knows_prefixes: bool = True
    """Predictors expect what was cached of earlier prompts to be found again."""


RANDOM = Scheduler("random", "random")
ROUND_ROBIN = Scheduler("round-robin", "round_robin")
MIN_QPM = Scheduler("min-QPM", "min_qpm")
INFAAS = Scheduler("INFaaS++", "infaas")
LLUMNIX = Scheduler("Llumnix-", "llumnix_minus")
BLOCK = Scheduler("Block", "predicted_latency")
BLOCK_STAR = Scheduler(
    "Block*, Block's rule", "predicted_latency", f"noise:{NOISE_SIGMA}", length_rule="block"
)
BLOCK_STAR_SURVIVAL = Scheduler(
    "Block*, distributions", "predicted_latency", f"noise:{NOISE_SIGMA}"
)
SCHEDULERS = (
    RANDOM,
    ROUND_ROBIN,
    MIN_QPM,
    INFAAS,
    LLUMNIX,
    BLOCK_STAR,
    BLOCK,
)
"""The paper's; `BLOCK_STAR_SURVIVAL` is what Foretell does with the same estimates."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A cluster and the requests it gets."""

    name: str
    guess_qps: float
    """Where searches for its capacity start."""
    paper_gain: float | None = None
    """Block's capacity over Llumnix-'s as the paper has it, less 1."""
    profile: str = "A30/Llama-2-7b-hf"
    seats: int = 48
    chunk: int = 512
    blocks: int = 1056
    trace: str = SHAREGPT
    windows: bool = False
    """The seeds' requests are stretches of a trace with times, in its own rhythm, one behind the
    other; otherwise they come in a random order, as a Poisson process."""
    watermark: float = 0.0
    by_priority: bool = False
    """Engines admit by priority; otherwise, in the order of arrival."""
    instances: int = INSTANCES
    max_model_len: int = 4096
    trace_format: TraceFormat = "csv"
    ttft_bound_s: float = TTFT_BOUND_S
    requests: int = 2000
    searched: tuple[Scheduler, ...] = (LLUMNIX, BLOCK)
    """Schedulers whose capacity is searched for."""
    seeds: tuple[int, ...] = (1, 2, 3)


DEFAULT = Setting("default", 31.5, 0.042, searched=(LLUMNIX, BLOCK_STAR, BLOCK))
SETTINGS = (
    DEFAULT,
    Setting("batch 24", 25.5, 0.167, seats=24),
    Setting("chunk 2048", 31.5, 0.057, chunk=2048),
    Setting("Qwen2-7B", 62.0, 0.102, profile="A30/Qwen2-7B", blocks=7289),
    Setting("Azure 2023 conversations", 15.0, trace=AZURE, windows=True),
)
SWEEP_QPS = (20, 24, 28, 30, 32, 34, 36)
READING_QPS = (28, 32)
"""Rates at which the rest is run."""
DRAWN_QPS = (28, 32, 36)
"""Rates of the pictures of distributions and of memory over time."""
SWEEP_SEEDS = (1, 2, 3)
LONG = Setting("default, 10,000 requests", 29.0, requests=10_000)
"""The paper sent so many; at some rates only, for it takes long."""
LONG_QPS = (28, 29, 30)
LONG_SEEDS = (1, 2)


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    setting: Setting
    scheduler: Scheduler
    qps: float
    seed: int

    def key(self) -> dict[str, Any]:
        """All that decides what comes of it, but for the code."""
        setting = asdict(self.setting)
        for name in ("name", "guess_qps", "paper_gain", "searched", "seeds", "ttft_bound_s"):
            del setting[name]
        scheduler = asdict(self.scheduler)
        del scheduler["title"]
        return {**setting, **scheduler, "qps": self.qps, "seed": self.seed}

    def options(self, traces: str) -> SimulateOptions:
        """What `foretell simulate` is given; `traces` is the folder of the traces."""
        engine = EngineOptions(
            self.setting.profile,
            self.setting.instances,
            max_num_seqs=self.setting.seats,
            max_num_batched_tokens=self.setting.chunk,
            num_blocks=self.setting.blocks,
            max_model_len=self.setting.max_model_len,
        )
        return SimulateOptions(
            trace=f"{traces}/{self.setting.trace}",
            trace_format=self.setting.trace_format,
            engines=(engine,),
            policy=self.scheduler.policy,
            requests=self.setting.requests,
            estimates=self.scheduler.estimates,
            length_rule=self.scheduler.length_rule,
            scheduling_policy="priority" if self.setting.by_priority else "fcfs",
            watermark=self.setting.watermark,
        )
