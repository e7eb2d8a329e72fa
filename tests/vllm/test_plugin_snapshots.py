"""What the plugin publishes equals the scheduler's own state, at every step of random runs."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foretell.model import (
    EngineSnapshot,
    Step,
)
from foretell.services.backend import publisher
from foretell.services.backend.vllm import columns, compat, plugin
from foretell.services.backend.vllm import snapshot as snapshot_module
from foretell.services.backend.vllm.plugin import ForetellScheduler
from foretell.tools.verify.engine_loop import Iteration, VerifiedLoop
from foretell.tools.verify.installed import build_scheduler, engine_config
from foretell.v1 import snapshot_pb2
from foretell.wire import snapshot_from_proto
from tests.vllm.scenarios import VARIANTS, drive, extra_args
from tests.vllm.truth import EngineState, Truth, state_of

pytestmark = pytest.mark.vllm


class Recording:
    """Replaces the publisher; keeps what is published and calls `on_publish` at once.

    The plugin hides every exception from the engine, this class's too: it is raised in the end.
    """

    def __init__(self) -> None:
        self.snapshots: list[EngineSnapshot] = []
        self.grown = 0
        """The number of snapshots that only report by how much all running requests have grown."""
        self.on_publish: Callable[[EngineSnapshot], None] = lambda _snapshot: None
        self.failures: list[BaseException] = []

    def __call__(self, endpoint: str) -> "Recording":
        return self

    def send(self, base: bytes, rest: bytes, once: bytes) -> None:
        message = snapshot_pb2.EngineSnapshot.FromString(base + rest + once)
        self.grown += message.grown_computed_tokens > 0
        decoded = snapshot_from_proto(message)
        self.snapshots.append(decoded)
        try:
            self.on_publish(decoded)
        except BaseException as error:
            self.failures.append(error)
            raise

    def close(self) -> None:
        pass


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    result = Recording()
    monkeypatch.setenv("FORETELL_PLUGIN_SNAPSHOT_ENDPOINT", "shm:///recorded-not-bound")
    monkeypatch.setenv("FORETELL_PLUGIN_INSTANCE_ID", "engine-7")
    monkeypatch.setattr(publisher, "SnapshotPublisher", result)
    monkeypatch.setattr(plugin, "REPORTED_WITHIN_S", 0.0)
    yield result
    if result.failures:
        raise result.failures[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_every_snapshot_equals_the_scheduler(variant: str, seed: int, recording: Recording) -> None:
    config = VARIANTS[variant]
    truths: list[Truth] = []
    loops: list[VerifiedLoop] = []

    def observe(loop: VerifiedLoop) -> None:
        loops.append(loop)
        truths.append(Truth(loop))
        recording.on_publish = truths[0].check

    iterations = drive(config, ForetellScheduler, seed, observe=observe)

    snapshots, shapes = recording.snapshots, truths[0].shapes
    # With vLLM 0.30 runs with images take another course, which covers fewer cases.
    covers = truths[0].tells_inputs or not config.max_num_encoder_input_tokens
    if covers:
        assert any(i.preempted for i in iterations), "the run must exercise preemption"
    assert [s.sequence for s in snapshots] == list(range(1, len(snapshots) + 1))
    assert len({s.engine_run_id for s in snapshots}) == 1
    assert {s.instance_id for s in snapshots} == {"engine-7"}
    depth = 2 if config.async_scheduling else 1
    assert max(len(s.steps_in_flight) for s in snapshots) == depth
    completed = [step for s in snapshots for step in s.completed_steps]
    assert [step.step for step in completed] == list(range(len(shapes)))
    assert [step.shape for step in completed] == shapes
    assert all(step.duration_s > 0 for step in completed)
    for snapshot in snapshots:
        assert all(s.shape == shapes[s.step] for s in snapshot.steps_in_flight)
    recorder = loops[0].scheduler.foretell.recorder
    if truths[0].tells_inputs:
        assert recorder._encoder._inputs == {}
        held = [e.held for s in snapshots for row in s.running for e in row.encoder_inputs]
        assert 0 < sum(held) < len(held)
        assert 0 < truths[0].unused < truths[0].cached
    reads_all = config.attends_locally or config.num_speculative_tokens
    often = 8 if config.max_num_encoder_input_tokens else 4
    if reads_all:
        assert recording.grown == 0
    elif covers:
        assert recording.grown > len(snapshots) / often
    last = snapshots[-1]
    assert (last.running, last.waiting, last.steps_in_flight) == ((), (), ())
    assert last.free_blocks == config.total_blocks
    assert (recorder._facts, recorder._cached) == ({}, {}), "nothing is kept of ended requests"
    if config.attends_locally:
        assert recorder._left._known == {}
        assert any(row.left_blocks for s in snapshots for row in s.running)


@pytest.fixture
def restless() -> Iterator[None]:
    """Make threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


LATE_VARIANTS = ["sync-fcfs", "sync-priority", "async-fcfs"]


class Lateness:
    """The scheduler's state at each step of a run, and what was published late about it."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._states: dict[int, list[EngineState]] = defaultdict(list)
        self._truth: Truth | None = None

    def follow(self, loop: VerifiedLoop, then: Callable[[], None] = lambda: None) -> None:
        """Note the state at each step of `loop`, and call `then` after it."""
        self._truth = truth = Truth(loop)
        recorder = loop.scheduler.foretell.recorder
        stock = recorder.scheduled

        def scheduled(output: Any, started_s: float) -> None:
            self._states[len(truth.shapes) - 1].append(truth.state())
            stock(output, started_s)
            then()

        recorder.scheduled = scheduled

    def check(self) -> None:
        """Check that each snapshot was true at its step, and each step is reported once."""
        assert self._truth
        told = self._recording.snapshots
        assert [s.sequence for s in told] == list(range(1, len(told) + 1))
        completed = [step for s in told for step in s.completed_steps]
        assert [step.step for step in completed] == list(range(len(self._truth.shapes)))
        assert [step.shape for step in completed] == self._truth.shapes
        for snapshot in told:
            assert snapshot.taken_unix_s <= snapshot.published_unix_s
            if snapshot.steps_in_flight:
                assert state_of(snapshot) in self._states[snapshot.steps_in_flight[-1].step]


@pytest.mark.parametrize("variant", LATE_VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_told_late_was_true_when_that_step_began(
    variant: str, seed: int, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published by explicit calls, so that their number does not depend on the machine."""
    monkeypatch.setattr(plugin, "REPORTED_WITHIN_S", 1.0)  # longer than any step here
    monkeypatch.setattr(plugin._Guard, "tell_late", lambda *_: None)
    lateness, draws = Lateness(recording), Random(seed)
    late = steps = 0

    def observe(loop: VerifiedLoop) -> None:
        def perhaps_tell() -> None:
            nonlocal late, steps
            steps += 1
            if draws.random() < 0.5:
                before = len(recording.snapshots)
                recorder = loop.scheduler.foretell.recorder
                if draws.random() < 0.5:
                    recorder._reported_s = 0.0  # then even steps are due, too
                recorder.tell_late()
                late += len(recording.snapshots) - before

        lateness.follow(loop, perhaps_tell)

    drive(VARIANTS[variant], ForetellScheduler, seed, observe=observe)
    lateness.check()
    assert late > 0
    assert recording.grown > 0
    assert len(recording.snapshots) < steps


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("every_s", [0.0, 1e-4, 0.01])
@pytest.mark.parametrize("variant", LATE_VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_thread_tells_only_what_was_true(
    every_s: float, variant: str, seed: int, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it gets its turn, which may be never on a busy machine."""
    monkeypatch.setattr(plugin, "REPORTED_WITHIN_S", 0.05)
    stock = plugin._Guard.tell_late
    monkeypatch.setattr(plugin._Guard, "tell_late", lambda guard, _: stock(guard, every_s))
    lateness = Lateness(recording)
    drive(VARIANTS[variant], ForetellScheduler, seed, observe=lateness.follow)
    lateness.check()


def test_an_exception_in_the_thread_is_kept_and_counted(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finally the plugin switches itself off, from that very thread."""
    monkeypatch.setattr(plugin, "REPORTED_WITHIN_S", 0.001)
    monkeypatch.setattr(snapshot_module.SnapshotRecorder, "tell_late", lambda _: 1 / 0)
    guards: list[Any] = []

    def observe(loop: VerifiedLoop) -> None:
        guards.append(loop.scheduler.foretell)
        guards[0]._teller.join(60.0)

    drive(VARIANTS["sync-fcfs"], ForetellScheduler, 0, observe=observe)
    assert not guards[0].active
    assert not guards[0]._teller.is_alive()


@pytest.mark.parametrize("variant", ["sync-fcfs", "sync-priority"])
def test_waiting_requests_are_listed_in_the_order_of_admission(
    variant: str, recording: Recording
) -> None:
    orders: list[list[str]] = []
    admissions = 0

    def observe(loop: VerifiedLoop) -> None:
        order = compat.waiting_reader(loop.scheduler)
        stock = loop.scheduler.schedule

        def schedule() -> Any:
            orders.append([r.request_id for r in order()])
            return stock()

        loop.scheduler.schedule = schedule

    def after_step(_loop: VerifiedLoop, iteration: Iteration) -> None:
        nonlocal admissions
        admitted = [
            i for i in iteration.scheduled or {} if i in {*iteration.new, *iteration.resumed}
        ]
        if admitted:
            assert admitted == orders[-1][: len(admitted)]
            admissions += len(admitted)

    drive(VARIANTS[variant], ForetellScheduler, 5, observe=observe, after_step=after_step)
    assert admissions >= 40


def test_a_request_that_waits_again_is_told_anew(recording: Recording) -> None:
    """The queue has the same requests as when it was last not empty, but they have changed."""
    loop = VerifiedLoop(engine_config(total_blocks=10), ForetellScheduler)
    recording.on_publish = Truth(loop).check
    last = [loop.add(f"r{i}", 33, 100, extra_args=extra_args(i)) for i in range(3)][-1]
    while last.num_preemptions < 1:
        loop.step()
    loop.abort("r1")  # makes room for it to resume
    while last.num_preemptions < 2:
        loop.step()
    queues = [[(r.request_id, r.preemptions) for r in s.waiting] for s in recording.snapshots]
    assert [q for i, q in enumerate(queues) if q and q != queues[i - 1]] == [
        [("r2", 1)],
        [("r2", 2)],
    ]


def test_who_waits_for_a_grammar_is_told(recording: Recording) -> None:
    loop = VerifiedLoop(engine_config(), ForetellScheduler)
    loop.add("r0", 33, 10)
    loop.add("r1", 33, 10, awaits_grammar=True)
    loop.step()
    assert [(r.request_id, r.awaits_grammar) for r in recording.snapshots[-1].waiting] == [
        ("r1", 1)
    ]
    loop.compile_grammar("r1")
    loop.step()
    assert [r.request_id for r in recording.snapshots[-1].running] == ["r0", "r1"]


def test_the_configuration_is_told(recording: Recording) -> None:
    config = engine_config(
        block_size_tokens=32,
        total_blocks=77,
        max_num_seqs=5,
        max_num_scheduled_tokens=300,
        max_num_batched_tokens=400,
        max_model_len=512,
        long_prefill_token_threshold=100,
        policy="priority",
        enable_prefix_caching=False,
        watermark_ratio=0.25,
        reserve_full_isl=False,
        async_scheduling=True,
    )
    build_scheduler(config, ForetellScheduler)
    # Before the first request: a predictor learns the engine's configuration as soon as it is up.
    (snapshot,) = recording.snapshots
    assert snapshot.config == replace(config, engine_version=f"vllm {compat.version()}")
    assert snapshot.free_blocks == 77


def test_a_long_queue_is_published_less_often(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = VerifiedLoop(engine_config(max_num_seqs=2), ForetellScheduler)
    monkeypatch.setattr(snapshot_module, "_REQUESTS_PER_STEP", 4)
    for i in range(20):
        loop.add(f"r{i}", 20, 4)
    steps = [i for i in loop.run() if i.scheduled]
    published = [s for s in recording.snapshots if s.steps_in_flight]
    assert published[0].sequence == 2
    assert len(published[0].waiting) + len(published[0].running) >= 16
    assert len(published) < len(steps)
    completed: list[Step] = [c for s in recording.snapshots for c in s.completed_steps]
    assert [c.step for c in completed] == list(range(len(steps)))
    assert recording.snapshots[-1].running == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a-1", "a-1"), (None, ""), (7, ""), (["x"], ""), ("ü", ""), ("\ud800", ""), ("x" * 257, "")],
)
def test_ids_from_clients_are_checked(value: Any, expected: str) -> None:
    assert columns.clean_id(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12, 12.0),
        (1.5, 1.5),
        ("9", 9.0),
        (1e300, 2.0**32 - 1),
        *((bad, 0.0) for bad in (None, "many", [1], -3, float("nan"), float("inf"), 10**400)),
    ],
)
def test_predictions_from_clients_are_checked(value: Any, expected: float) -> None:
    assert columns.clean_prediction(value) == expected


def test_extreme_values_fit_the_message(recording: Recording) -> None:
    loop = VerifiedLoop(engine_config(), ForetellScheduler)
    loop.add("r0", 10, 2**40, priority=-(2**40), extra_args={"foretell_predicted_tokens": 1e30})
    loop.add("r1", 10, 2, priority=2**40)
    loop.step()
    running = recording.snapshots[-1].running
    assert [r.max_tokens for r in running] == [2**32 - 1, 2]
    assert [r.priority for r in running] == [-(2**31 - 1), 2**31 - 1]
