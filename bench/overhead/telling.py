"""What does it cost a scheduler to tell of each request, in metrics, logs and traces?

The functions that account for a request, called as the relay calls them, in one process, in bursts
as long as the request log gathers lines. Spans go by OTLP to a collector in another process that
takes all of them. What a request costs in all is measured in the same run.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import Queue, get_context
from pathlib import Path
from statistics import median
from typing import cast

from prometheus_client import CollectorRegistry

from bench.overhead import placement_load, remembering
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from foretell.config.instances import InstanceConfig
from foretell.model import LengthEstimate, Load, Prediction, RequestSpec, Slo
from foretell.placement.decision import Decision
from foretell.policy import Candidate
from foretell.services.process.logs import all_about
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.http.parsing import parse
from foretell.services.scheduler.http.slo import Terms
from foretell.services.scheduler.http.surface import ENDPOINTS
from foretell.services.scheduler.placing.attempt import Attempt
from foretell.services.scheduler.placing.pool import Instance
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.record.feedback import Feedback
from foretell.services.scheduler.record.recorder import Recorder
from foretell.services.scheduler.record.request_log import RequestLog
from foretell.services.scheduler.record.tracing import ENDPOINTS as OTLP
from foretell.services.scheduler.record.tracing import Tracing, open_tracing
from foretell.telemetry import SchedulerMetrics

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="3 minutes",
    needs="gcc, Linux",
    packages=("foretell", "opentelemetry-sdk", "prometheus_client"),
)
_RATE = 200.0
_BURST, _BURSTS = 20, 25
"""Requests between two writes of the request log at that rate, and such bursts of one round."""
_SECONDS = 10.0
"""For which a whole cluster is loaded, to know what a request costs."""
_MAX_LOG_BYTES = 64 << 20
_LINES_ABOUT = 3
"""Times that a placement says whose lines follow."""
_BODY = b"""{"model": "m", "stream": true, "max_tokens": 200,
 "messages": [{"role": "user", "content": "What is a KV block?"}]}"""


class _NoFeedback:
    """To learn lengths is no part of telling."""

    def learn(self, *_: object) -> None: ...


class Bench:
    """What one answered stream leaves behind, and who accounts for it."""

    def __init__(self, log: Path, tracing: Tracing | None) -> None:
        metrics = SchedulerMetrics(CollectorRegistry())
        slo = Slo(1.0, 0.1)
        now_s = time.time()
        terms = Terms(slo, arrived_unix_s=now_s)
        self.request = parse(ENDPOINTS["/v1/chat/completions"], _BODY, terms=terms)
        load = Load(8, 0, 1, 800, 2000, 0, 64)
        prediction = Prediction("engine-0", 0.05, 4.0, 0.02, 0.0, 0.05, load, 400)
        spec = RequestSpec("k", 20, 200, LengthEstimate(150.0), slo=slo)
        chosen = Candidate("engine-0", 1, 1, load, prediction)
        self.attempt = Attempt(
            key="k",
            number=1,
            instance=Instance(InstanceConfig("engine-0", "http://127.0.0.1:1")),
            policy="slo",
            decision=Decision(spec, [chosen], 0.0, None, chosen),
            inputs=None,
            spec=spec,
            prediction=prediction,
            placed_unix_s=now_s,
            took_s=0.001,
            status=200,
            first_byte_unix_s=now_s + 0.06,
            ended_unix_s=now_s + 4.2,
            finished=True,
            prompt_tokens=20,
            output_tokens=180,
            cached_tokens=0,
        )
        self.tracing = tracing
        self.log = RequestLog(str(log), _MAX_LOG_BYTES, lambda lines: None)
        self.silent = self._recorder(metrics, RequestLog("", 0, lambda lines: None))
        self.logging = self._recorder(metrics, self.log)

    def _recorder(self, metrics: SchedulerMetrics, log: RequestLog) -> Recorder:
        feedback, nobody = cast(Feedback, _NoFeedback()), cast(Predictors, None)
        return Recorder(metrics, feedback, log, "slo", nobody, Background())

    def metrics(self, request_id: str) -> None:
        """Count and observe one request."""
        self.silent.record(self.request, None, self.attempt)
        self.silent.count(200, "m", self.attempt)

    def metrics_and_log(self, request_id: str) -> None:
        """Count and observe one request, and write its line of the request log."""
        self.logging.record(self.request, None, self.attempt)
        self.logging.count(200, "m", self.attempt)

    def lines_about(self, request_id: str) -> None:
        """Say whose request the lines of the log are about."""
        for _ in range(_LINES_ABOUT):
            with all_about(request_id):
                pass

    def spans(self, request_id: str) -> None:
        """The spans of a request with one attempt."""
        assert self.tracing is not None
        trace = self.tracing.request(self.request, {})
        trace.attempt(self.attempt)
        trace.attempt_ended(self.attempt)
        trace.end(200)


async def round_us(one: Callable[[str], None], flush: Callable[[], object]) -> float:
    """CPU microseconds of a request, the mean of a round, with those of other threads."""
    began_s = time.process_time()
    for burst in range(_BURSTS):
        for number in range(_BURST):
            one(f"r{burst}-{number}")
        await asyncio.sleep(_BURST / _RATE)  # in which lines are written
    flush()
    return (time.process_time() - began_s) / (_BURST * _BURSTS) * 1e6


async def nothing_us() -> float:
    """What a round costs without a request."""
    return await round_us(lambda _: None, lambda: None)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7, help="Rounds of each.")


def measure(options: argparse.Namespace) -> Numbers:
    """Medians of each part, beside what a request costs."""
    request_us = placement_load.request_us("slo", _RATE, _SECONDS)
    remembered = remembering.one(remembering.SIZES[0], options.rounds * _BURST)
    with tempfile.TemporaryDirectory() as folder, collector() as port:
        os.environ[OTLP[0]] = f"http://127.0.0.1:{port}/v1/traces"
        tracing = open_tracing("bench")
        assert tracing is not None
        bench = Bench(Path(folder) / "log.jsonl", tracing)
        spent = asyncio.run(_measure(bench, options.rounds))
        tracing.close()
    return {
        "rounds": options.rounds,
        "request_us": request_us,
        "remember_us": remembered["more_us"],
        "spent_us": spent,
    }


async def _measure(bench: Bench, rounds: int) -> dict[str, float]:
    assert bench.tracing is not None
    parts = {
        "metrics": (bench.metrics, lambda: None),
        "metrics and request log": (bench.metrics_and_log, lambda: None),
        "lines": (bench.lines_about, lambda: None),
        "traces": (bench.spans, bench.tracing.flush),
    }
    found: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds):
        idle_us = await nothing_us()
        for name, (one, flush) in parts.items():
            found[name].append(await round_us(one, flush) - idle_us)
    return {name: median(each) for name, each in found.items()}


@contextmanager
def collector() -> Iterator[int]:
    """The port of a process that takes whatever is posted."""
    context = get_context("spawn")
    told = context.Queue()
    process = context.Process(target=_collect, args=(told,), daemon=True)
    process.start()
    try:
        yield told.get(timeout=60)
    finally:
        process.kill()
        process.join()


def _collect(told: "Queue[int]") -> None:
    class Taker(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Taker)
    told.put(server.server_port)
    server.serve_forever()


def tables(numbers: Numbers) -> Blocks:
    """Microseconds of each part, and its share of a request."""
    spent, whole_us = numbers["spent_us"], numbers["request_us"]
    log_us = spent["metrics and request log"] - spent["metrics"]
    always = {
        "remembering the placement for `explain`": numbers["remember_us"],
        "metrics": spent["metrics"],
        "its line in the request log": log_us,
        "the request id of log lines": spent["lines"],
    }
    parts = {
        **always,
        "**together**": sum(always.values()),
        "OpenTelemetry spans, where a collector is named": spent["traces"],
    }
    rows = [(name, f"{us:.1f}", f"{us / whole_us:.1%}") for name, us in parts.items()]
    text = "\n".join(
        (
            made_by(numbers),
            "Laboratory: in one process; CPU time of a request in all threads, medians over "
            f"{numbers['rounds']} rounds of {_BURST * _BURSTS}. *Of a request*: beside the "
            f"{whole_us:,.0f} us of CPU that a scheduler as deployed spent on one in the same run, "
            f"at {_RATE:g} requests/s before 12 engines of 8 running requests "
            "([placement under load](placement_load.md)); remembering is measured as "
            "[its own page](remembering.md) says.\n",
            markdown_table(("part", "us", "of a request"), rows),
        )
    )
    return {"tables": text}
