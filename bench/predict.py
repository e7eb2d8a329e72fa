"""What does one prediction cost?

    python -m bench.predict [--predictions N]

In this process: `EngineBook.predict`, the twin run forward with the newcomer to its last token,
from an engine with R running and W waiting requests. And as the scheduler sees it: the Predict
call to a real predictor process over a unix socket, while it knows such an engine from published
snapshots. Writes bench/results/predict.json and predict.md.
"""

import argparse
import asyncio
import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import grpc
from rich.progress import Progress

from bench.machine import describe_machine, describe_run, machine_line
from bench.processes import Services, running_services
from bench.stats import markdown_table, percentiles
from foretell import wire
from foretell.engine import EngineBook
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import LinearStepTime
from foretell.length import expected_output
from foretell.model import EngineConfig, EngineSnapshot, LengthEstimate, RequestSpec, RequestState
from foretell.settings import load_profile
from foretell.v1 import predictor_pb2, predictor_pb2_grpc
from services.backend.publisher import SnapshotPublisher

RESULTS = Path(__file__).resolve().parent / "results"
PROFILE = "A30/Llama-2-7b-hf"
SIZES = ((10, 0), (48, 0), (48, 50), (100, 100))
RPC_SIZE = (48, 50)
STATES = 25  # engines per size, drawn anew: what a prediction costs depends on the lengths
WARMUP = 50
PRIOR_TOKENS = 256.0
DISPATCH_DELAY_S = 0.002
ANCHOR = (
    "For comparison: the Block artifact needs 45 to 63 ms per prediction at 48 running + 50 "
    "waiting, as measured by this project's owners."
)
_DEADLINE_S = 30.0


Size = tuple[int, int]
"""Running and waiting requests."""


class Took(NamedTuple):
    """Seconds of one call; `cpu_s` leaves out what other processes took of the core."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """One engine state and the request asked about."""

    snapshot: EngineSnapshot
    newcomer: RequestSpec


def make_case(running: int, waiting: int, sequence: int) -> Case:
    """A plausible engine in the midst of decoding; lengths are drawn, the same in every run.

    There are KV blocks for everyone, and a seat for each running request, 48 at least: with
    nobody waiting the newcomer is admitted at once, otherwise it queues for a seat.
    """
    rng = Random(f"{running}+{waiting}/{sequence}")
    now = time.time()
    config = EngineConfig(
        model_name="m",
        block_size_tokens=16,
        total_blocks=200 * (running + waiting + 1),
        max_num_seqs=max(RPC_SIZE[0] + (not waiting), running + (not waiting)),
        max_num_scheduled_tokens=2048,
        max_model_len=4096,
    )
    runs = tuple(_running(rng, index, now) for index in range(running))
    waits = tuple(_waiting(rng, running + index, now) for index in range(waiting))
    used = sum(config.blocks_for(state.computed_tokens) for state in runs)
    snapshot = EngineSnapshot(
        "engine-0", "run", sequence, now, now, config, config.total_blocks - used, runs, waits,
        (), (),
    )  # fmt: skip
    length = LengthEstimate(float(rng.randint(32, 512)))
    return Case(snapshot, RequestSpec("newcomer", rng.randint(16, 1024), 0, length))


def _running(rng: Random, index: int, now: float) -> RequestState:
    prompt, expected = rng.randint(16, 1024), rng.randint(32, 512)
    output = rng.randint(1, expected - 1)
    return RequestState(
        request_id=f"chatcmpl-{index:032x}-0",
        foretell_id=f"{index:032x}",
        prompt_tokens=prompt,
        output_tokens=output,
        computed_tokens=prompt + output,
        max_tokens=2048,
        arrival_unix_s=now - 10.0,
        predicted_output_tokens=float(expected),
        scheduled_tokens=1,
        in_flight_tokens=1,
    )


def _waiting(rng: Random, index: int, now: float) -> RequestState:
    return RequestState(
        request_id=f"chatcmpl-{index:032x}-0",
        foretell_id=f"{index:032x}",
        prompt_tokens=rng.randint(16, 1024),
        output_tokens=0,
        computed_tokens=0,
        max_tokens=2048,
        arrival_unix_s=now - 1.0,
        predicted_output_tokens=float(rng.randint(32, 512)),
    )


def time_in_process(predictions: int, progress: Progress) -> dict[Size, list[Took]]:
    """What each `EngineBook.predict` took; the sizes take turns, one prediction each."""
    step_time = OnlineStepTime(LinearStepTime(load_profile(PROFILE).coefficients_s)).current()
    expect = expected_output(PRIOR_TOKENS)
    books: dict[Size, list[tuple[EngineBook, RequestSpec]]] = {}
    for size in SIZES:
        for sequence in range(STATES):
            case = make_case(*size, sequence)
            book = EngineBook(dispatch_delay_s=DISPATCH_DELAY_S)
            book.hear(case.snapshot)
            books.setdefault(size, []).append((book, case.newcomer))
    took: dict[Size, list[Took]] = {size: [] for size in SIZES}
    gc.freeze()  # what was built above is not the prediction's garbage
    for turn in progress.track(range(-WARMUP, predictions), description="in process"):
        for size in SIZES:
            book, newcomer = books[size][turn % STATES]
            now = time.time()
            started, cpu_started = time.perf_counter(), time.thread_time()
            prediction = book.predict(newcomer, step_time, expect, now)
            spent = Took(time.perf_counter() - started, time.thread_time() - cpu_started)
            assert prediction is not None
            assert prediction.e2e_s < float("inf")
            if turn >= 0:
                took[size].append(spent)
    return took


async def time_rpc(predictions: int, progress: Progress) -> tuple[list[float], list[float]]:
    """Seconds per call: Predict at `RPC_SIZE`, and Status, which runs no twin."""
    predict_s: list[float] = []
    status_s: list[float] = []
    with TemporaryDirectory(prefix="foretell-bench-") as folder:
        endpoint = f"ipc://{folder}/snapshots.ipc"
        publisher = SnapshotPublisher(endpoint, heartbeat_s=0.2)
        try:
            async with running_services(Path(folder)) as services:
                address = await _start_predictor(services, endpoint)
                async with grpc.aio.insecure_channel(address) as channel:
                    stub = predictor_pb2_grpc.PredictorStub(channel)
                    bar = progress.add_task("Predict over a socket", total=predictions)
                    for sequence in range(STATES):
                        case = make_case(*RPC_SIZE, sequence)
                        await _publish(publisher, stub, case)
                        await _time_calls(
                            stub, case, -(-predictions // STATES), predict_s, status_s
                        )
                        progress.update(bar, completed=len(predict_s))
        finally:
            publisher.close()
    return predict_s, status_s


async def _start_predictor(services: Services, endpoint: str) -> str:
    service = await services.start(
        "predictor",
        "services.predictor",
        f"--listen=unix:{services.folder}/predictor.sock",
        f"--snapshot-endpoint={endpoint}",
        f"--profile={PROFILE}",
    )
    return str(service.facts["address"])


async def _publish(
    publisher: SnapshotPublisher, stub: predictor_pb2_grpc.PredictorStub, case: Case
) -> None:
    """Publish the case's snapshot and wait until the predictor has it."""
    publisher.publish(wire.snapshot_to_proto(case.snapshot))
    wanted = case.snapshot.config.total_blocks - case.snapshot.free_blocks
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        status = await stub.Status(predictor_pb2.StatusRequest(), timeout=_DEADLINE_S)
        if status.snapshot_age_s >= 0 and status.load.used_blocks == wanted:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("the predictor never heard of the snapshot")
        await asyncio.sleep(0.01)


async def _time_calls(
    stub: predictor_pb2_grpc.PredictorStub,
    case: Case,
    count: int,
    predict_s: list[float],
    status_s: list[float],
) -> None:
    message = predictor_pb2.PredictRequest(request=wire.request_to_proto(case.newcomer))
    for turn in range(-5, count):
        started = time.perf_counter()
        answer = await stub.Predict(message, timeout=_DEADLINE_S)
        between = time.perf_counter()
        await stub.Status(predictor_pb2.StatusRequest(), timeout=_DEADLINE_S)
        ended = time.perf_counter()
        assert (answer.load.running, answer.load.waiting) == RPC_SIZE
        if turn >= 0:
            predict_s.append(between - started)
            status_s.append(ended - between)


def write_report(
    facts: dict[str, Any],
    in_process: dict[Size, list[Took]],
    predict_s: list[float],
    status_s: list[float],
) -> str:
    """Write the JSON and the Markdown; returns the latter."""
    rpc = f"{RPC_SIZE[0]} + {RPC_SIZE[1]}"
    rows: dict[str, list[float]] = {}
    for (running, waiting), took in in_process.items():
        name = f"EngineBook.predict, {running} + {waiting}"
        rows[name] = [one.wall_s for one in took]
        rows[f"{name}, CPU time"] = [one.cpu_s for one in took]
    rows[f"Predict over a unix socket, {rpc}"] = predict_s
    rows[f"Status over a unix socket, {rpc} (no twin)"] = status_s
    result = {
        **facts,
        "profile": PROFILE,
        "states_per_size": STATES,
        "anchor": ANCHOR,
        "ms": {name: {"calls": len(took), **percentiles(took)} for name, took in rows.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "predict.json").write_text(json.dumps(result, indent=1) + "\n")
    text = _markdown(result)
    (RESULTS / "predict.md").write_text(text)
    return text


def _markdown(result: dict[str, Any]) -> str:
    cells: dict[str, dict[str, float]] = result["ms"]
    levels = [name for name in next(iter(cells.values())) if name != "calls"]
    rows = [
        (name, cell["calls"], *(f"{cell[level]:.3f}" for level in levels))
        for name, cell in cells.items()
    ]
    return "\n".join(
        (
            "# Cost of one prediction\n",
            f"Made by `{result['command']}` on {result['date']}; "
            f"{machine_line(result['machine'])}.\n",
            f"Sizes are running + waiting requests of an engine with {PROFILE}'s step time; "
            f"{STATES} states per size with drawn prompts of 16 to 1024 tokens and outputs of "
            "32 to 512, no shortage of KV blocks. Milliseconds per call.\n",
            markdown_table(("ms", "calls", *levels), rows),
            ANCHOR + "\n",
        )
    )


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predictions", type=int, default=1000, help="measured per row")
    count = parser.parse_args().predictions
    facts = {
        **describe_run("bench.predict"),
        "machine": describe_machine("foretell", "grpcio", "protobuf", "pyzmq"),
    }
    try:
        with Progress() as progress:
            in_process = time_in_process(count, progress)
            rpc = asyncio.run(time_rpc(count, progress))
    except KeyboardInterrupt:
        raise SystemExit("interrupted: all processes have ended, nothing is written") from None
    print(write_report(facts, in_process, *rpc))


if __name__ == "__main__":
    main()
