"""Families of traffic for judging placement, each with the cluster that serves it.

Some decide: policies are designed by their results. The others only report: their results are not
looked at before a choice is made. Of mixed clusters, only seeds 1 and 2 may be looked at earlier.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import pi, sin
from pathlib import Path
from random import Random

from pyarrow.parquet import read_table

from bench.placement.simulated import A30
from foretell.model import EngineConfig
from foretell.tools.simulate.cluster import instance_config
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.simulate.run import fits, read_trace
from foretell.workload import Arrival, Conversations, Trace, arrivals_of, conversations
from foretell.workload.arrivals import poisson
from foretell.workload.lengths import EmpiricalLengths, LengthSampler, LogNormal, LogNormalLengths
from foretell.workload.stream import PREFIX_BLOCK_TOKENS, stream

ALIKE = (A30,)
FOUR = (replace(A30, instances=4),)
UNLIKE = (
    replace(A30, instances=6),
    replace(A30, profile="A100/Llama-2-7b-hf", instances=3, max_num_seqs=96, num_blocks=3000),
)
"""Half of that cluster, and three engines that are faster and larger."""
H100 = (
    EngineOptions(
        "H100/Llama-3.1-8B",
        4,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        num_blocks=24_881,
        max_model_len=131_072,
    ),
)
HALVES = (
    replace(A30, profile="A30/Qwen2-7B", instances=2, max_num_seqs=256, num_blocks=7289),
    replace(H100[0], instances=2, max_num_batched_tokens=2048, max_model_len=4096),
)
"""Half A30, half H100; two models of about 8 billion parameters stand for one."""
TWO_SIZES = (
    replace(H100[0], instances=3),
    replace(
        H100[0],
        profile=str(Path(__file__).with_name("H100x2__Llama-3.1-8B.json")),
        instances=2,
        num_blocks=57_420,
    ),
)
"""Three engines of one H100 each, and two of two H100s each with tensor parallelism."""
DECIDES, UNSEEN, MIXED = "chose the score", "unseen", "mixed"
Make = Callable[[Path, float, int, Random], list[Arrival]]
"""Makes a family's requests from the traces' folder, requests a second, their number, and draws."""


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of traffic, and the engines that serve it."""

    name: str
    role: str
    """`DECIDES`, `UNSEEN` or `MIXED`: see the module's docstring."""
    engines: Sequence[EngineOptions]
    make: Make
    guess_qps: float
    """The rate at which the search for the capacity begins."""
    load: float = 0.92
    """The rate at which policies are compared, as a part of the capacity without faults."""
    prefixes: bool = False
    """Whether prompts have common prefixes."""
    faults: Sequence[str] = ()
    """As `tools.simulate.cluster.parse_fault` takes them. Predictors learn them from step times."""
    seconds: float = 100.0

    def arrivals(self, traces: Path, qps: float, count: int, seed: int) -> list[Arrival]:
        """`count` requests at `qps` a second, without those that fit no engine."""
        made = self.make(traces, qps, count, Random(f"{seed} {self.name}"))
        engines = self.configs()
        return [arrival for arrival in made if fits(arrival, engines)]

    def configs(self) -> list[EngineConfig]:
        """The limits of each kind of engine."""
        options = SimulateOptions()
        return [instance_config(engine, options).engine for engine in self.engines]


def lengths_of(file: str) -> Make:
    """Poisson arrivals with the lengths of a trace."""

    def make(traces: Path, qps: float, count: int, draws: Random) -> list[Arrival]:
        trace = replace(_read(traces / file), timed=False)
        return arrivals_of(trace, draws, count=count, qps=qps)

    return make


def stretches_of(file: str) -> Make:
    """Stretches of a trace from random places, with its own times scaled to the rate."""

    def make(traces: Path, qps: float, count: int, draws: Random) -> list[Arrival]:
        trace = _read(traces / file)
        first = int(draws.random() * max(1, len(trace.requests) - count))
        part = replace(trace, requests=trace.requests[first : first + count])
        return arrivals_of(part, draws, count=count, qps=qps)

    return make


def drawn(lengths: LengthSampler) -> Make:
    """Poisson arrivals with lengths of a distribution."""
    return lambda traces, qps, count, draws: stream(count, poisson(qps, draws), lengths, draws)


def tides(traces: Path, qps: float, count: int, draws: Random) -> list[Arrival]:
    """ShareGPT's lengths, at a rate that rises and falls by half every `TIDE_S` seconds."""
    requests = _read(traces / SHAREGPT).requests
    lengths = EmpiricalLengths([(r.prompt_tokens, r.output_tokens) for r in requests])
    return stream(count, _tide(qps, draws), lengths, draws)


def _tide(qps: float, draws: Random) -> Iterator[float]:
    """Poisson arrivals by thinning (Lewis and Shedler, 1979)."""
    for t_s in poisson(1.5 * qps, draws):
        if 1.5 * draws.random() < 1.0 + 0.5 * sin(2 * pi * t_s / TIDE_S):
            yield t_s


def talks(traces: Path, qps: float, count: int, draws: Random) -> list[Arrival]:
    """Conversations, whose prompts repeat all earlier turns."""
    return conversations(count / qps, qps, Conversations(), draws)


def agents(traces: Path, qps: float, count: int, draws: Random) -> list[Arrival]:
    """Sessions of coding agents, begun at random times; prompts repeat all earlier calls."""
    sessions = _sessions(traces / AGENTS)
    calls = sum(map(len, sessions)) / len(sessions)
    found: list[Arrival] = []
    for number, start_s in enumerate(poisson(qps / calls, draws)):
        if start_s > count / qps + _AGENTS_BEGIN_S:
            break
        session = sessions[int(draws.random() * len(sessions))]
        found += [_call(number, start_s, *call) for call in session]
    found = [a for a in found if a.t_s >= _AGENTS_BEGIN_S]
    found.sort(key=lambda arrival: arrival.t_s)
    return [
        replace(arrival, t_s=arrival.t_s - _AGENTS_BEGIN_S, request_id=f"r{index}")
        for index, arrival in enumerate(found[:count])
    ]


def _call(number: int, start_s: float, t_s: float, prompt: int, output: int) -> Arrival:
    blocks = range(-(-prompt // PREFIX_BLOCK_TOKENS))
    names = tuple(number * _MOST_BLOCKS + block for block in blocks)
    return Arrival(start_s + t_s, prompt, output, "", names)


@lru_cache(maxsize=4)
def _sessions(path: Path) -> list[list[tuple[float, int, int]]]:
    """(seconds since its session began, prompt tokens, output tokens) of each call."""
    sessions: dict[str, list[tuple[float, int, int]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            call = row["timestamp_us"] / 1e6, max(1, row["in_tok"]), max(1, row["out_tok"])
            sessions.setdefault(row["session_id"], []).append(call)
    return [[(t - calls[0][0], i, o) for t, i, o in sorted(calls)] for calls in sessions.values()]


@lru_cache(maxsize=4)
def _read(path: Path) -> Trace:
    return _parquet(path) if path.suffix == ".parquet" else read_trace(str(path), "auto")


def _parquet(path: Path) -> Trace:
    table = read_table(path, columns=["t", "input_tokens", "output_tokens"])
    rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    requests = [Arrival(t, max(1, i), max(1, o), "") for t, i, o in rows]
    return Trace(tuple(sorted(requests, key=lambda r: r.t_s)), timed=True)


_MOST_BLOCKS = 1 << 16
_AGENTS_BEGIN_S = 300.0
HALF_PACE = "slow=2:0:300"
"""Steps of the first engine take twice as long from minute 5."""
TIDE_S = 60.0
SHAREGPT = "sharegpt_10k_llama2_lengths.csv"
AGENTS = "agent_miniswe_calls.jsonl.gz"
CODE = LogNormalLengths(LogNormal(2000.0, 0.8, 3500), LogNormal(30.0, 1.5, 500))
LONG = LogNormalLengths(LogNormal(8000.0, 0.8, 60_000), LogNormal(250.0, 0.6, 2000))
CHAT = lengths_of(SHAREGPT)
AZURE = stretches_of("azure2023_conv.t0-2100.csv.gz")
LARGE = stretches_of("servegen_m-large_223200_225000.parquet")
SMALL = stretches_of("servegen_m-small_223200_223800.parquet")
MOONCAKE = stretches_of("mooncake_conversation.t0-2100.jsonl.gz")
LMSYS = lengths_of("lengths_lmsys_nanoflow.csv.gz")
FAMILIES: Sequence[Family] = (
    Family("chat", DECIDES, ALIKE, CHAT, 31.0),
    Family("conversation", DECIDES, ALIKE, AZURE, 15.0),
    Family("bursts", DECIDES, ALIKE, LARGE, 40.0),
    Family("code", DECIDES, ALIKE, drawn(CODE), 20.0),
    Family("shared prefixes", DECIDES, H100, MOONCAKE, 5.0, prefixes=True),
    Family("short", DECIDES, ALIKE, SMALL, 150.0),
    Family("arena", DECIDES, ALIKE, LMSYS, 40.0),
    Family("long prompts", UNSEEN, H100, drawn(LONG), 8.0),
    Family("agents", UNSEEN, H100, agents, 20.0, prefixes=True),
    Family("talks", UNSEEN, H100, talks, 40.0, prefixes=True),
    Family("tides", UNSEEN, ALIKE, tides, 28.0),
    Family("unlike", DECIDES, UNLIKE, CHAT, 31.0),
    Family("unlike, calm", DECIDES, UNLIKE, CHAT, 31.0, load=0.3),
    Family("calm", UNSEEN, ALIKE, CHAT, 31.0, load=0.5),
    Family("A30 and H100", MIXED, HALVES, CHAT, 100.0, seconds=60.0),
    Family("A30 and H100, 0.7", MIXED, HALVES, CHAT, 100.0, load=0.7, seconds=60.0),
    Family("TP 1 and 2", MIXED, TWO_SIZES, drawn(LONG), 20.0),
    Family("TP 1 and 2, 0.7", MIXED, TWO_SIZES, drawn(LONG), 20.0, load=0.7),
    Family("half pace", MIXED, FOUR, CHAT, 10.0, 0.83, faults=(HALF_PACE,), seconds=420.0),
    Family("half pace, 0.61", MIXED, FOUR, CHAT, 10.0, 0.61, faults=(HALF_PACE,), seconds=420.0),
)
"""Lengths: ShareGPT's (*chat*, *tides*, *unlike*, *calm*), LMSYS's (*arena*), made up (*code*,
*long prompts*, *talks*); traces: Azure 2023, ServeGen (*bursts*, *short*), Mooncake, agents."""
