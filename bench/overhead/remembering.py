"""What does it cost to remember each placement, so that it can be explained?

Placements by `slo` among 12 engines whose pictures are followed, in one process: predicted, decided
and reserved as a scheduler does it, in turns with and without what `foretell explain` needs.
"""

import argparse
import gc
import time
import tracemalloc
from dataclasses import replace
from statistics import median
from typing import Any

from bench.overhead import placement_load
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.config import list_profiles, load_profile
from foretell.config.instances import InstanceConfig
from foretell.engine import SnapshotPredictor
from foretell.engine.gallery import Gallery
from foretell.engine.published import Published
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.tables import profile_step_time
from foretell.length.distribution import knots
from foretell.model import LengthEstimate, RequestSpec
from foretell.placement.decision import decide
from foretell.policy import Candidate, make_policy
from foretell.services.scheduler.placing.attempt import MOST_TRACES, Attempt, Trace, Traces
from foretell.services.scheduler.placing.pool import Instance
from foretell.tools.harness.cases import Size, make_case

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="a minute",
    packages=("foretell", "numpy"),
)
ENGINES = 12
SIZES = (Size(8, 0), Size(48, 0), Size(48, 50))
_ROUND = 100
"""Placements of one round."""
_NEWS_EVERY = 20
"""Placements between two pictures of each engine: as at 200 requests a second, and 10 pictures."""
_RATE = "200"


class Bench:
    """A scheduler's part of placing, without sockets, before engines of one size."""

    def __init__(self, size: Size) -> None:
        self.gallery, self.policy, self.traces = Gallery(knots), make_policy("slo"), Traces()
        self.step_time = OnlineStepTime(load_profile(list_profiles()[0]))
        self.tables = profile_step_time(load_profile(list_profiles()[0])).packed()
        self.names = [f"engine-{index}" for index in range(ENGINES)]
        self.predictors = []
        self.placed = 0
        self.now_s = 0.0
        for index, name in enumerate(self.names):
            case = make_case(size, index, async_scheduling=True)
            self.now_s = self.now_s or case.snapshot.taken_unix_s
            predictor = SnapshotPredictor(
                dispatch_delay_s=0.003, length_row=knots, prior_tokens=100.0
            )
            predictor.hear(replace(case.snapshot, instance_id=name, taken_unix_s=self.now_s))
            self.predictors.append(predictor)
            self.gallery.follow(name)
        self.instances = {
            name: Instance(InstanceConfig(name, "http://127.0.0.1:1")) for name in self.names
        }

    def hear(self) -> None:
        """A picture of each engine comes."""
        for name, predictor in zip(self.names, self.predictors, strict=True):
            picture = predictor.publish(self.step_time, self.now_s)
            assert picture is not None, "it has heard a snapshot"
            picture = replace(picture, step_tables=self.tables)
            self.gallery[name].hear(
                Published(self.now_s, predictor.heard_unix_s, picture), self.now_s
            )

    def place(self, *, remember: bool) -> None:
        """Place one request, and let it end."""
        self.placed += 1
        request_id, now_s = f"r{self.placed}", self.now_s + 0.01
        length = LengthEstimate(50.0 + self.placed % 200, source="history")
        request = RequestSpec(request_id, 500, 0, length)
        found = self.gallery.predict(
            self.names,
            request,
            now_s,
            announced_only=True,
            externality=True,
            with_quantiles=False,
        )
        scene = self.gallery.scene(self.names, now_s) if remember else None
        candidates = [Candidate(p.instance_id, 1, 1, p.load, p) for p in found]
        decision = decide(self.policy, request, candidates, 0.5)
        name = decision.chosen.instance_id
        if remember:
            attempt = Attempt(
                key=request_id,
                number=1,
                instance=self.instances[name],
                policy="slo",
                decision=decision,
                inputs=scene,
                spec=request,
                prediction=decision.chosen.prediction,
                placed_unix_s=now_s,
                took_s=0.001,
            )
            self.traces.add(Trace(request_id, "m"), attempt)
        self.gallery[name].reserve(request, now_s)
        self.gallery[name].ended(request_id)

    def round(self, *, remember: bool) -> float:
        """CPU microseconds of a placement, the mean of `_ROUND`; pictures are not counted."""
        spent_s = 0.0
        for number in range(_ROUND):
            if number % _NEWS_EVERY == 0:
                self.hear()
            began_s = time.process_time()
            self.place(remember=remember)
            spent_s += time.process_time() - began_s
        return spent_s / _ROUND * 1e6


def one(size: Size, rounds: int) -> dict[str, Any]:
    """The cost for engines of one size."""
    bench = Bench(size)
    bench.hear()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(MOST_TRACES + 1):
        if number % _NEWS_EVERY == 0:
            bench.hear()
        bench.place(remember=True)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gc.freeze()  # as a scheduler does with what stays
    spent: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for remember in (True, False) if number % 2 else (False, True):
            spent[remember].append(bench.round(remember=remember))
    pairs = zip(spent[True], spent[False], strict=True)
    return {
        "size": str(size),
        "with_us": median(spent[True]),
        "without_us": median(spent[False]),
        "more_us": median(a - b for a, b in pairs),
        "held_mib": (held - before) / 2**20,
        "picture_mib": bench.traces.picture_bytes / 2**20,
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=40, help="Rounds with and without.")


def measure(options: argparse.Namespace) -> Numbers:
    """Measure each size, and note what a scheduler spends on a request in all."""
    loaded = placement_load.BENCH.read()["variants"]
    request_us = {
        key: 1000 * loaded[key]["rates"][_RATE]["scheduler_ms"] for key in ("slo", "slo-48")
    }
    return {
        "rounds": options.rounds,
        "request_us": request_us,
        "results": [one(size, options.rounds) for size in SIZES],
    }


def tables(numbers: Numbers) -> Blocks:
    """Microseconds and MiB by the size of engines."""
    least_us = min(numbers["request_us"].values())
    rows = [
        (
            result["size"],
            f"{result['without_us']:.0f}",
            f"{result['with_us']:.0f}",
            f"{result['more_us']:.1f}",
            f"{result['more_us'] / least_us:.1%}",
            f"{result['held_mib']:.1f}",
            f"{result['picture_mib']:.1f}",
        )
        for result in numbers["results"]
    ]
    header = (
        "engines, running + waiting",
        "without, us",
        "with, us",
        "more, us",
        "of a request",
        f"{MOST_TRACES:,} placements, MiB",
        "pictures of these, MiB",
    )
    text = "\n".join(
        (
            made_by(numbers),
            f"Laboratory: in one process. {ENGINES} engines, a new picture of each every "
            f"{_NEWS_EVERY} placements; CPU time of a placement, medians over {numbers['rounds']} "
            f"pairs of rounds of {_ROUND}. *Of a request*: beside the {least_us:,.0f} us of CPU "
            f"that a scheduler as deployed spends on one at {_RATE} requests/s "
            "([placement under load](placement_load.md)).\n",
            markdown_table(header, rows),
        )
    )
    return {"tables": text}
