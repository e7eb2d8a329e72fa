"""The loads of bench.overhead.scheduler_latency, and what was measured of them."""

from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are sent: `concurrency` connections, each with one request in flight."""

    key: str
    title: str
    max_tokens: int
    stream: bool
    concurrency: int
    rounds: int
    per_round: int

    def scaled(self, scale: float) -> "Load":
        return replace(self, rounds=max(1, round(self.rounds * scale)))


LOADS = (
    Load("whole_1", "one token, unstreamed, one request in flight", 1, False, 1, 10, 25),
    Load("stream_1", "64 tokens, streamed, one request in flight", 64, True, 1, 8, 25),
    Load("whole_16", "one token, unstreamed, 16 requests in flight", 1, False, 16, 3, 96),
    Load("stream_16", "64 tokens, streamed, 16 requests in flight", 64, True, 16, 3, 64),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from when a request was sent; `first_byte_s` is that of the body."""

    first_byte_s: float
    total_s: float


@dataclass(slots=True)
class Cell:
    """Measurements of one route under one load; one list of timings per round."""

    rounds: list[list[Timing]] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: Counter[str] = field(default_factory=Counter)
    """By role: scheduler, predictors, tagger, engines."""
    metrics: Counter[str] = field(default_factory=Counter)
    """Growth of the route's own metrics."""


Cells = dict[tuple[str, str], Cell]
"""By load key and route key."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A whole run."""

    titles: dict[str, str]
    """By route key, the direct route first."""
    cells: Cells
    others_cores: dict[str, float]
    """By load key: how many cores strangers' processes kept busy meanwhile."""
