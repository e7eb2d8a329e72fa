"""Drives the twin with a wall clock, in the order of vLLM's engine core.

Each turn takes in arrivals and aborts, schedules, publishes its state, waits for the step's time,
and hands out the tokens of the step.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from foretell.cosched import OnlineWatch
from foretell.engine import Sequence, StepBatch, StepOutcome, Twin
from foretell.kernel.step_time import scaled
from foretell.latency.linear import StepTimeModel
from foretell.model import OFFLINE_PRIORITY, Step
from foretell.services.backend.emulator.metrics import EngineMetrics
from foretell.services.backend.emulator.snapshot import RequestTag, SnapshotFeed

# A step that begins at most this late is still timed from when it was due, so that timer
# granularity does not add up; a process that was held up longer does not hurry to catch up.
_SLACK_S = 0.01


class RefusedError(Exception):
    """The engine accepts no request now: it holds as many sequences as allowed, or has stopped."""


@dataclass(slots=True, eq=False)
class EmulatedSequence:
    """One sequence in the engine, and how far it has come.

    Tokens are only counted, because their text follows from the prompt. So a slow reader costs no
    memory.
    """

    sequence: Sequence
    tag: RequestTag
    wake: asyncio.Event
    """Set when there is something new; shared by the sequences of one request."""
    every_token: bool
    """False: wake the reader at the end only."""
    tokens: int = 0
    finished: bool = False


class EmulatorDriver:
    """The engine. `run` is its loop; everything else is called from the same event loop."""

    def __init__(
        self,
        twin: Twin,
        step_time: StepTimeModel,
        *,
        speedup: float,
        noise: Callable[[], float],
        max_queue: int,
        feed: SnapshotFeed | None,
    ) -> None:
        """`noise()` is the relative deviation of one step's time from `step_time`'s."""
        self._twin = twin
        self.metrics = EngineMetrics(twin)
        self._step_time = step_time
        self._model = scaled(step_time.packed(), 1.0 / speedup)
        self._online = OnlineWatch() if twin.config.co_schedules else None
        self._speedup = speedup
        self._noise = noise
        self._max_queue = max_queue
        self._feed = feed
        self._streams: dict[str, EmulatedSequence] = {}
        self._tags: dict[str, RequestTag] = {}
        self._arrivals: list[EmulatedSequence] = []
        self._aborts: list[str] = []
        self._arrived = asyncio.Event()
        self._step = 0
        self._completed: list[Step] = []
        self.stopped = False

    def submit(self, streams: list[EmulatedSequence]) -> None:
        """Take in the sequences of one request together; raises `RefusedError`."""
        if self.stopped:
            raise RefusedError("the engine has stopped")
        if len(self._streams) + len(streams) > self._max_queue:
            raise RefusedError(f"the engine holds {len(self._streams)} requests; try later")
        for stream in streams:
            self._streams[stream.sequence.request_id] = stream
            self._tags[stream.sequence.request_id] = stream.tag
            self.metrics.arrived(stream.sequence.request_id)
        self._arrivals.extend(streams)
        self._arrived.set()

    def abort(self, stream: EmulatedSequence) -> None:
        """Drop `stream` before the next step; nothing happens when it has ended already."""
        request_id = stream.sequence.request_id
        if self._forget(request_id) is not None:
            self.metrics.aborted(request_id)
            self._aborts.append(request_id)

    async def run(self) -> None:
        """Run steps while there is work, and wait for work; ends only by cancellation."""
        due = time.monotonic()
        try:
            while True:
                self._take_in()
                self._expect_online()
                batch = self._twin.schedule(time.time(), self._model)
                if batch is not None:
                    due = await self._run_step(batch, due)
                    continue
                self._tell(None, ())
                await self._arrived.wait()
                due = time.monotonic()
        finally:
            self.stopped = True
            for stream in self._streams.values():
                stream.wake.set()

    def _take_in(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        aborts, self._aborts = self._aborts, []
        self._arrived.clear()
        for stream in arrivals:
            sequence = stream.sequence
            if self._online is not None and sequence.priority != OFFLINE_PRIORITY:
                self._online.expected.came(sequence.targets_s[0] or inf, time.monotonic())
            self._twin.add(sequence)
        for request_id in aborts:
            self._twin.abort(request_id)

    def _expect_online(self) -> None:
        """Tell the twin which online requests to expect, as `cosched` does it in vLLM."""
        if self._online is None:
            return
        now_s, running = time.monotonic(), self._twin.running
        online = (each.blocks for each in running if each.priority != OFFLINE_PRIORITY)
        self._online.observe(lambda: sum(online), now_s)
        self._twin.expect_online(*self._online.for_snapshot(now_s))

    async def _run_step(self, batch: StepBatch, due: float) -> float:
        """Let the step's time pass and apply it; returns when the next one is due."""
        begun = time.monotonic()
        if begun - due > _SLACK_S:
            due = begun
        if not batch.scheduled:  # preempted requests and scheduled none: the model does not run
            self._tell(batch, ())
            self._twin.complete(batch)
            await asyncio.sleep(0)
            return due
        self.metrics.admitted(batch)
        self._step += 1
        started_unix_s = time.time()
        self._tell(batch, (Step(self._step, started_unix_s, 0.0, batch.shape),))
        due += self._step_time.step_s(batch.shape) * (1.0 + self._noise()) / self._speedup
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        elapsed_s = time.monotonic() - begun
        self._completed.append(Step(self._step, started_unix_s, elapsed_s, batch.shape))
        self._hand_out(self._twin.complete(batch, time.time()))
        return due

    def _hand_out(self, outcome: StepOutcome) -> None:
        streams = self._streams
        self.metrics.generated(len(outcome.sampled))
        for seq in outcome.sampled:
            stream = streams.get(seq.request_id)
            if stream is None:
                continue  # aborted while its step was in flight
            if not stream.tokens:
                self.metrics.first_token(seq)
            stream.tokens = seq.output_tokens
            if stream.every_token:
                stream.wake.set()
        for seq in outcome.finished:
            stream = self._forget(seq.request_id)
            if stream is not None:
                self.metrics.finished(seq)
                stream.finished = True
                stream.wake.set()

    def _forget(self, request_id: str) -> EmulatedSequence | None:
        self._tags.pop(request_id, None)
        return self._streams.pop(request_id, None)

    def _tell(self, batch: StepBatch | None, in_flight: tuple[Step, ...]) -> None:
        completed, self._completed = tuple(self._completed), []
        if self._feed is not None:
            self._feed.publish(
                self._twin,
                batch,
                self._tags,
                now_unix_s=time.time(),
                steps_in_flight=in_flight,
                completed_steps=completed,
            )
