"""A day of requests with tides and bursts, from production rates and real lengths."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

import pyarrow.parquet

from foretell.workload import Arrival

WINDOW_S = 600
WINDOWS = 144
"""Windows of a day."""
BURST, BURST_S = (1.5, 2.5), (60.0, 240.0)
"""Bounds of each burst's factor on the rate and of its duration, drawn uniformly."""
Lengths = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the recorded week, with a shorter duration and a lower rate."""

    number: int
    """0 to 6."""
    hours: float
    """Its duration here; tides are steeper by the same factor."""
    mean_qps: float
    """The mean rate of the whole week here, without bursts."""
    bursts: int
    """Number of times at which the rate is multiplied by `BURST`, for `BURST_S`."""

    @property
    def window_s(self) -> float:
        """The duration here of a recorded window of ten minutes."""
        return self.hours * 3600.0 / WINDOWS


Rates = dict[int, dict[int, tuple[float, float]]]
"""(requests a second, coefficient of variation of the gaps) of every client, by window."""


@lru_cache(maxsize=1)
def read_rates(path: Path) -> Rates:
    """Read the clients' rates from ServeGen's `*.windows.parquet`."""
    found: Rates = defaultdict(dict)
    for row in pyarrow.parquet.read_table(path).to_pylist():
        if row["rate"] > 0 and row["cv"] > 0:
            found[row["ts"] // WINDOW_S][row["client"]] = row["rate"], row["cv"]
    return found


@lru_cache(maxsize=1)
def read_lengths(path: Path, longest: int) -> Lengths:
    """(prompt, output) tokens of the requests in a CSV file of at most `longest` together."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        pairs = [(int(r["num_prefill_tokens"]), int(r["num_decode_tokens"])) for r in rows]
    return [(p, o) for p, o in pairs if p > 0 and o > 0 and p + o <= longest]


def scale(rates: Rates, day: Day) -> float:
    """The factor from recorded to simulated rates."""
    total = sum(rate for window in rates.values() for rate, _ in window.values())
    return day.mean_qps * len(rates) / total


def arrivals(rates: Rates, lengths: Lengths, day: Day, seed: int) -> list[Arrival]:
    """The requests of a day: each client's gaps are Gamma distributed with the rate and coefficient
    of variation of the recorded window, after a random sample of its requests is kept."""
    draws = Random(f"{seed} day {day.number}")
    factor, times_s = scale(rates, day), []
    left: dict[int, float] = {}  # time to each client's next request, in its mean gaps
    for window in range(WINDOWS):
        for client, (rate, cv) in rates[day.number * WINDOWS + window].items():
            square = 1.0 + factor * (cv * cv - 1.0)  # with the share `factor` of requests kept
            gap_s, now_s = 1.0 / (rate * factor), 0.0
            gaps = left.pop(client) if client in left else draws.random()
            while now_s + gaps * gap_s < day.window_s:
                now_s += gaps * gap_s
                times_s.append(window * day.window_s + now_s)
                gaps = draws.gammavariate(1.0 / square, square)
            left[client] = gaps - (day.window_s - now_s) / gap_s
    for _ in range(day.bursts):
        begin_s = draws.uniform(0.0, day.hours * 3600.0 - BURST_S[1])
        end_s, more = begin_s + draws.uniform(*BURST_S), draws.uniform(*BURST) - 1.0
        usual = [at_s for at_s in times_s if begin_s <= at_s < end_s]
        extra = round(more * len(usual))
        times_s += [draws.uniform(begin_s, end_s) for _ in range(extra)]
    return [
        Arrival(at_s, *lengths[int(draws.random() * len(lengths))], f"r{index}")
        for index, at_s in enumerate(sorted(times_s))
    ]
