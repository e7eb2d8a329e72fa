"""Compares forecasts of ranks that step together with vLLM's own engine cores of an MoE model.

`DPEngineCoreProc.run_busy_loop` and its schedulers run unchanged, with one thread a rank. Faked are
the model, whose forward pass all ranks make together, and the messages between processes.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Queue
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.config import ParallelConfig
from vllm.v1.engine.core import DPEngineCoreProc
from vllm.v1.outputs import ModelRunnerOutput

from foretell.engine.forecast import Forecaster
from foretell.engine.questions import EngineQuestion, arrival
from foretell.engine.snapshots import fill_snapshot
from foretell.latency.linear import LinearStepTime
from foretell.length.distribution import certain
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
)
from foretell.services.backend import publisher
from foretell.services.backend.vllm import plugin
from foretell.services.backend.vllm.plugin import ForetellScheduler
from foretell.tools.verify.engine_loop import VerifiedLoop
from foretell.tools.verify.installed import engine_config
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto
from tests.sweeps import cases

pytestmark = pytest.mark.vllm

MODEL = LinearStepTime((2e-3, 4e-5, 1e-8, 5e-4, 3e-4, 2e-7))
DUMMY = BatchShape(decode_seqs=1, decode_pairs=1)
WAIT_S = 60.0


class Server:
    """What the ranks of one deployment share: joint forward passes, and agreements."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=WAIT_S)
        self.told: list[Any] = [None] * ranks

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self.told[rank] = value
        self.barrier.wait()
        told = list(self.told)
        self.barrier.wait()
        return told


@dataclass
class Rank:
    """One engine core, and the record of its run."""

    number: int
    server: Server
    config: EngineConfig
    arriving: deque[tuple[int, str, int, int]]
    """Step of arrival, id, prompt tokens and output tokens."""
    snapshots: dict[int, EngineSnapshot] = field(default_factory=dict)
    """The latest snapshot at the beginning of each step."""
    passes: list[float] = field(default_factory=list)
    """Seconds of each forward pass, determined by the slowest rank."""
    shapes: list[BatchShape] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """The indices of passes in which this rank computed something."""
    tokens: dict[str, list[int]] = field(default_factory=dict)
    """The indices of the passes that sampled each request's tokens."""


class Executor:
    """A model that takes as long as `MODEL` says, and waits for the other ranks' models."""

    is_sleeping = False

    def __init__(self, rank: Rank, loop: VerifiedLoop) -> None:
        self._rank, self._loop = rank, loop
        self._sampled: ModelRunnerOutput | None = None

    def execute_model(self, output: Any, non_block: bool = False) -> Future[Any]:
        tokens = self._loop._sample(output)
        batch = SimpleNamespace(output=output, tokens=tokens)
        self._sampled = self._loop.sampled(batch)  # type: ignore[arg-type]
        if output.num_scheduled_tokens:
            self._rank.own.append(len(self._rank.passes))
            self.run(self._shape(output.num_scheduled_tokens))
            for request_id, sampled in tokens.items():
                if sampled:
                    self._rank.tokens.setdefault(request_id, []).append(len(self._rank.passes) - 1)
        return _done(None if output.num_scheduled_tokens else self._sampled)

    def _shape(self, scheduled: dict[str, int]) -> BatchShape:
        """The shape of the step that was just scheduled."""
        counts = dict.fromkeys(BatchShape.__dataclass_fields__, 0)
        for request_id, tokens in scheduled.items():
            request = self._loop.scheduler.requests[request_id]
            behind = request.num_computed_tokens - tokens
            kind = "decode" if tokens == 1 and behind >= request.num_prompt_tokens else "prefill"
            counts[f"{kind}_seqs"] += 1
            counts[f"{kind}_pairs"] += sum(behind + i + 1 for i in range(tokens))
            if kind == "prefill":
                counts["prefill_tokens"] += tokens
        return BatchShape(**counts)

    def sample_tokens(self, grammar: Any, non_block: bool = False) -> Any:
        return _done(self._sampled) if non_block else self._sampled

    def execute_dummy_batch(self) -> None:
        self.run(DUMMY)

    def run(self, shape: BatchShape) -> None:
        seconds = self._rank.server.exchange(self._rank.number, MODEL.step_s(shape))
        self._rank.shapes.append(shape)
        self._rank.passes.append(max(seconds))


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Core(DPEngineCoreProc):  # type: ignore[misc]
    """vLLM's engine core without the processes around it, for one wave."""

    def __init__(self, rank: Rank, interval: int) -> None:
        self.rank, self.step_counter = rank, -1
        Recording.ranks[threading.get_ident()] = self.keep
        self.loop = VerifiedLoop(rank.config, ForetellScheduler)
        self.scheduler = self.loop.scheduler
        self.model_executor = Executor(rank, self.loop)
        self.vllm_config = self.scheduler.vllm_config
        self.prefill_schedule_interval, self.dp_sync_interval = interval, 16
        self.step_counter = self.current_wave = 0
        self.dp_rank, self.dp_group = rank.number, None
        self.engines_running, self.has_coordinator = True, False
        self.pending_pause = self.ignore_start_dp_wave = False
        self.publish_dp_lb_stats = self.log_stats = self.enable_fault_tolerance = False
        self.check_for_draft_tokens = self.use_spec_decode = False
        self.is_mm_encoder_only = self.is_pooling_model = False
        self.is_ec_consumer = True  # of 0.30
        self.async_scheduling = rank.config.async_scheduling
        self.eep_scaling_state = None
        self._weight_version = "default"
        self.output_queue: Queue[Any] = Queue()
        self.aborts_queue: Queue[Any] = Queue()
        depth = 2 if self.async_scheduling else 1
        self.batch_queue_size = depth
        self.batch_queue = deque(maxlen=depth) if depth > 1 else None
        self.step_fn = self.step_with_batch_queue if depth > 1 else self.step

    def keep(self, told: EngineSnapshot) -> None:
        # Without a step in flight it shows what is left after the current step.
        self.rank.snapshots[self.step_counter + (not told.steps_in_flight)] = told

    def _handle_shutdown(self) -> bool:
        return bool(self.engines_running)

    def _process_input_queue(self) -> None:
        arriving = self.rank.arriving
        while arriving and arriving[0][0] <= self.step_counter:
            _, request_id, prompt, output = arriving.popleft()
            self.loop.add(request_id, prompt, output)

    def _process_engine_step(self) -> bool:
        return bool(super()._process_engine_step())


class Recording:
    """Replaces the publisher of the rank whose thread publishes."""

    ranks: dict[int, Callable[[EngineSnapshot], None]] = {}  # noqa: RUF012

    def __init__(self, endpoint: str) -> None:
        pass

    def send(self, base: bytes, rest: bytes, once: bytes) -> None:
        message = snapshot_pb2.EngineSnapshot.FromString(base + rest + once)
        if keep := self.ranks.get(threading.get_ident()):
            keep(snapshot_from_proto(message))

    def close(self) -> None:
        pass


def serve(
    config: EngineConfig,
    interval: int,
    arriving: Sequence[list[tuple[int, str, int, int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> list[Rank]:
    """Let the ranks serve all arrivals, to the end of the wave."""
    server = Server(len(arriving))
    ranks = [Rank(k, server, config, deque(sorted(own))) for k, own in enumerate(arriving)]
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", "shm:///recorded-not-bound")
    monkeypatch.setenv("FORETELL_PLUGIN_RANKS", str(len(ranks)))
    monkeypatch.setattr(publisher, "SnapshotPublisher", Recording)
    monkeypatch.setattr(plugin, "REPORTED_WITHIN_S", 0.0)
    monkeypatch.setattr(Recording, "ranks", {})
    monkeypatch.setattr("foretell.services.backend.vllm.ranks.steps_with", lambda _: "moe")
    monkeypatch.setattr(
        "foretell.services.backend.vllm.ranks.prefill_schedule_interval",
        lambda _: interval if interval > 1 else 0,
    )
    here = threading.local()

    def agree(group: Any, has_unfinished: bool, pending_pause: bool) -> tuple[bool, bool]:
        return any(server.exchange(here.rank, has_unfinished)), False

    monkeypatch.setattr(ParallelConfig, "sync_dp_state", staticmethod(agree))
    cores = [Core(rank, interval) for rank in ranks]
    failures: list[BaseException] = []

    def run(core: Core) -> None:
        here.rank = core.rank.number
        Recording.ranks[threading.get_ident()] = core.keep
        try:
            core.run_busy_loop()
        except SystemExit:
            pass
        except BaseException as error:
            failures.append(error)
            server.barrier.abort()

    threads = [threading.Thread(target=run, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    if failures:
        raise failures[0]
    for core in cores:
        core.loop.close()
    return ranks


def traffic(rng: Random, ranks: int, most: int) -> list[list[tuple[int, str, int, int]]]:
    """All arrive before the step at which forecasts are made; the last rank may have no request."""
    return [
        [
            (rng.randint(0, 8), f"{k}-{i}", rng.randint(1, 300), rng.randint(2, 80))
            for i in range(rng.randint(int(k < ranks - 1), most))
        ]
        for k in range(ranks)
    ]


def snapshot_of(rank: Rank, step: int, begun_s: Sequence[float]) -> EngineSnapshot:
    """The rank's latest snapshot at that step, with the start times of its passes."""
    known = max(k for k in rank.snapshots if k <= step)
    snapshot = rank.snapshots[known]
    flying = tuple(
        replace(each, started_unix_s=begun_s[rank.own[each.step]])
        for each in snapshot.steps_in_flight
        if known == step
    )
    taken_s = flying[0].started_unix_s if flying else begun_s[step]
    return replace(snapshot, taken_unix_s=taken_s, steps_in_flight=flying)


def forecaster_of(snapshots: Sequence[EngineSnapshot], outputs: dict[str, int]) -> Forecaster:
    forecaster = Forecaster(len(snapshots))
    for index, snapshot in enumerate(snapshots):
        lengths = [certain(outputs[row.request_id]) for row in rows_of(snapshot)]
        fill_snapshot(forecaster, index, snapshot, lengths)
        forecaster.believe(index, MODEL.packed())
    return forecaster


def rows_of(snapshot: EngineSnapshot) -> list[RequestState]:
    return [*snapshot.running, *snapshot.waiting]


CASES = [
    (seed, is_async, interval)
    for seed in range(cases(40, 4))
    for is_async in (False, True)
    for interval in (1, 3)
]


def config_of(is_async: bool) -> EngineConfig:
    return engine_config(
        total_blocks=400, max_num_seqs=4, async_scheduling=is_async, enable_prefix_caching=False
    )


@pytest.mark.sweep
@pytest.mark.parametrize(("seed", "is_async", "interval"), CASES)
def test_each_rank_waits_for_the_slowest(
    seed: int, is_async: bool, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(f"{seed} {is_async} {interval}")
    arriving = traffic(rng, 2 + seed % 2, 7)
    outputs = {name: output for own in arriving for _, name, _, output in own}
    ranks = serve(config_of(is_async), interval, arriving, monkeypatch)
    assert all(rank.passes == ranks[0].passes for rank in ranks), "all make each pass"
    ends_s = np.cumsum(ranks[0].passes)
    begun_s = [0.0, *ends_s.tolist()]
    for step in range(9, len(ends_s), 7):
        snapshots = [snapshot_of(rank, step, begun_s) for rank in ranks]
        forecaster = forecaster_of(snapshots, outputs)
        now_s = max(snapshot.taken_unix_s for snapshot in snapshots)
        for rank, snapshot in zip(ranks, snapshots, strict=True):
            nobody = arrival(RequestSpec("nobody", 1, 1, LengthEstimate(1.0)), certain(1), now_s)
            question = EngineQuestion(rank.number, 1, 0, [], (), 1, 0.0)
            firsts_s, lasts_s = forecaster.futures_s(question, nobody, now_s)
            for row, first_s, last_s in zip(rows_of(snapshot), firsts_s, lasts_s, strict=True):
                mine = rank.tokens[row.request_id]
                if mine[0] > step:
                    assert first_s == pytest.approx(ends_s[mine[0]]), (step, row.request_id)
                assert last_s == pytest.approx(ends_s[mine[-1]]), (step, row.request_id)


@pytest.mark.sweep
@pytest.mark.parametrize(("seed", "is_async", "interval"), CASES)
def test_who_comes_waits_for_a_step_of_the_others(
    seed: int, is_async: bool, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at a rank that has no requests, and makes dummy steps."""
    rng = Random(f"newcomer {seed} {is_async} {interval}")
    arriving = traffic(rng, 2, 6)
    arriving[0].append((0, "long", 50, 200))
    number, comes, prompt, output = seed % 2, rng.randint(16, 60), rng.randint(1, 300), 20
    if seed % 4 == 1:
        arriving[1] = []
    outputs = {name: tokens for own in arriving for _, name, _, tokens in own}
    arriving[number].append((comes, "newcomer", prompt, output))
    ranks = serve(config_of(is_async), interval, arriving, monkeypatch)
    rank, ends_s = ranks[number], np.cumsum(ranks[0].passes)
    assert not rank.arriving, "it came while the ranks were stepping"
    begun_s = [0.0, *ends_s.tolist()]
    # An engine core with a step in flight reads its queue when the previous step has ended.
    in_flight = is_async and rank.shapes[comes - 1] != DUMMY
    at_s = begun_s[comes - 1 - in_flight] + 1e-4
    snapshots = [snapshot_of(each, comes - 4, begun_s) for each in ranks]
    request = RequestSpec("newcomer", prompt, output, LengthEstimate(output))
    (found,) = forecaster_of(snapshots, outputs).forecast(
        [EngineQuestion(number, 1, 0, [], (), 1, 0.0)],
        arrival(request, certain(output), at_s),
        at_s,
    )
    mine = rank.tokens["newcomer"]
    assert found.ttft_s == pytest.approx(ends_s[mine[0]] - at_s)
    assert found.e2e_s == pytest.approx(ends_s[mine[-1]] - at_s)
