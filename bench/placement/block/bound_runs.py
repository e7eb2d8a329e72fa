"""Which runs `bench.placement.bound` makes: searches of the pools, and clusters far too busy."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from bench.placement.block.beyond import BLOCK, BLOCK_STAR, LATE_BINDING, SEEDS, SETTINGS
from bench.placement.block.bound import BoundCase, Pool, cluster_of, run
from bench.placement.block.capacity import Search
from bench.placement.block.packing import packed_tokens_per_s
from bench.placement.block.runs import Result, Results
from bench.placement.block.settings import Scheduler, Setting

Row = Result
ANY = Scheduler("any", "random")
"""With one engine there is nothing to choose."""
BUSY_RATE, BUSY_RATE_WINDOWS = 1.3, 2.0
"""Times Block's mean capacity: then somebody waits from soon after the first arrival on."""


@dataclass(frozen=True, slots=True)
class Server:
    """Who serves the requests; without a pool the cluster as it is."""

    title: str
    scheduler: Scheduler = ANY
    pool: Pool | None = None
    order: str = "fcfs"


POOLED = Server("pool", pool=Pool(convex=False))
CONVEX = Server("pool, convex steps", pool=Pool())
UNPREEMPTED = Server("the same, no preemptions", LATE_BINDING, Pool())
"""The policy keeps requests until their lengths, which it knows, find room."""
BLOCK_LARGEST = Server("Block, largest 1% last", BLOCK, order="largest_last")
BLOCK_STAR_LARGEST = replace(BLOCK_LARGEST, scheduler=BLOCK_STAR)
SEARCHED = (
    POOLED,
    CONVEX,
    UNPREEMPTED,
    Server("the same, largest 1% last", pool=Pool(), order="largest_last"),
    Server("the same, shortest first", pool=Pool(), order="shortest_first"),
    Server("convex, memory without end", pool=Pool(memory=100.0)),
)
BUSY = (
    Server("Block", BLOCK),
    Server("late_binding", LATE_BINDING),
    BLOCK_LARGEST,
    POOLED,
    CONVEX,
    UNPREEMPTED,
)
PACKED = "perfect packing"
"""`packing.packed_tokens_per_s`."""
BUSY_SETTINGS = tuple(replace(setting, requests=3000) for setting in SETTINGS[:3])
"""Longer, for engines take a while to fill. The last of `SETTINGS` has the requests of the first;
what Mooncake's engines compute again cannot be told from what they find cached."""
BUSY_SEEDS = SEEDS[:3]


def searched(setting: Setting) -> tuple[Server, ...]:
    """Whose capacity is wanted: with estimates, priorities go by them."""
    block = BLOCK_STAR_LARGEST if BLOCK_STAR in setting.searched else BLOCK_LARGEST
    if setting.trace_format != "csv":
        return (CONVEX,)  # a run of Mooncake's prompts takes long
    tight = setting.seats > 24  # with fewer seats than that memory is not what runs out
    return (*(s for s in SEARCHED if tight or s is not UNPREEMPTED), block)


class Runs:
    """Runs made here, one after the other, or earlier."""

    def __init__(self, traces: str, kept: Results, told: Callable[[str], None]) -> None:
        self._traces, self._kept, self._told = traces, kept, told
        self.cpu_s = 0.0
        """CPU seconds of all runs asked for, also of those that an earlier call made."""
        self._searches: dict[str, Search] = {}

    def result(self, case: BoundCase) -> Result:
        """What comes of `case`."""
        found = self._kept.get(case)
        if found is None:
            start_s = time.process_time()
            found = run(case, self._traces)
            found["cpu_s"] = round(time.process_time() - start_s, 2)
            self._kept.put(case, found)
            p99_s, name = found["ttft_p99_s"], case.setting.name
            pool = f"{case.scheduler.title} {case.pool} {case.order}"
            self._told(f"{name}: {pool} {case.qps} {case.seed}: {p99_s:.2f} {found['cpu_s']}")
        self.cpu_s += found["cpu_s"]
        return found

    def packed(self, case: BoundCase) -> Row | None:
        """What full engines answer; None where prompts may be cached, so that less is computed."""
        config, arrivals = cluster_of(case, self._traces)
        if config.prefix_cache:
            return None
        rate = packed_tokens_per_s(arrivals, config.instances[0], len(config.instances))
        mean = fmean(arrival.output_tokens for arrival in arrivals)
        row = {"setting": case.setting.name, "server": PACKED, "seed": case.seed}
        return {**row, "tokens_per_s": rate, "requests_per_s": rate / mean}

    def search(self, case: BoundCase) -> Search:
        """For the capacity, from the rate of `case` on; one search for all with equal requests."""
        key = case.key_of_requests()
        if key not in self._searches:
            setting = case.setting
            search = self._searches[key] = Search(case.qps, setting.ttft_bound_s)
            while search.learn(self.result(_at(case, search.next_qps))["ttft_p99_s"]):
                pass
        return self._searches[key]


def _at(case: BoundCase, qps: float) -> BoundCase:
    return replace(case, qps=qps)


def capacities(runs: Runs, block: Sequence[Row], settings: Sequence[Setting]) -> Iterator[Row]:
    """A row for each setting, server and seed; `block`: Block's rows of `beyond_block`."""
    for setting in settings:
        for row in (row for row in block if row["setting"] == setting.name):
            for server in searched(setting):
                qps, seed = row["block_qps"], row["seed"]
                case = BoundCase(setting, server.scheduler, qps, seed, server.pool, server.order)
                found, search = runs.result(case), runs.search(case)
                yield {
                    "setting": setting.name,
                    "server": server.title,
                    "seed": seed,
                    "capacity_qps": round(search.capacity_qps, 3),
                    "block_qps": qps,
                    "probes": search.as_json(),
                    "ttft_mean_s": found["ttft_mean_s"],
                    "ttft_p99_s": found["ttft_p99_s"],
                    "pooled_ttft_p99_s": found["pooled_ttft_p99_s"],
                    "preemptions_per_1000": 1000 * found["preemptions"] / found["requests"],
                    "e2e_mean_s": found["e2e_mean_s"],
                    "e2e_p99_s": found["e2e_p99_s"],
                }


def saturated(
    runs: Runs, block: Sequence[Row], settings: Sequence[Setting], seeds: Sequence[int]
) -> Iterator[Row]:
    """A row for each setting, server and seed, at a rate far beyond Block's capacity."""
    for setting in settings:
        rates = [row["block_qps"] for row in block if row["setting"] == setting.name]
        rate = BUSY_RATE_WINDOWS if setting.windows else BUSY_RATE
        qps = round(rate * fmean(rates), 1)
        for seed in seeds:
            for server in BUSY:
                case = BoundCase(setting, server.scheduler, qps, seed, server.pool, server.order)
                found = runs.result(case)
                names = ("tokens_per_s", "requests_per_s", "recomputed")
                yield {
                    "setting": setting.name,
                    "server": server.title,
                    "seed": seed,
                    **{name: found[name] for name in names},
                    "preemptions_per_1000": 1000 * found["preemptions"] / found["requests"],
                }


def packed(
    runs: Runs, block: Sequence[Row], settings: Sequence[Setting], seeds: Sequence[int]
) -> Iterator[Row]:
    """What full engines answer of a setting's requests, a row for each seed."""
    for setting in settings:
        for row in (row for row in block if row["setting"] == setting.name):
            case = BoundCase(setting, BLOCK, row["block_qps"], row["seed"])
            found = runs.packed(case) if row["seed"] in seeds else None
            if found is not None:
                yield found
