"""Requests of both classes, and the twin of a co-scheduling engine, in virtual time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foretell.cosched.deadlines import CLASS_FIELD, TPOT_FIELD, TTFT_FIELD, JobClass
from foretell.engine import Sequence as Request
from foretell.engine import StepBatch, Twin
from foretell.latency.linear import LinearStepTime
from foretell.model import OFFLINE_PRIORITY, EngineConfig

MODEL = LinearStepTime((5e-3, 40e-6, 10e-9, 50e-6, 100e-6, 100e-9))
Steps = list[tuple[float, list[tuple[str, int]]]]
"""Each step's time, and its tokens by request, in order."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request of either class."""

    name: str
    at_s: float
    prompt_tokens: int
    max_tokens: int
    stop_after: int
    offline: bool
    ttft_target_s: float = 0.0
    tpot_target_s: float = 0.0

    def fields(self) -> dict[str, Any]:
        """Its `vllm_xargs`."""
        told: dict[str, Any] = {"foretell_id": self.name}
        told["foretell_predicted_tokens"] = self.stop_after
        if self.offline:
            return told | {CLASS_FIELD: JobClass.OFFLINE.value}
        if self.ttft_target_s:
            told[TTFT_FIELD] = 1e3 * self.ttft_target_s
        if self.tpot_target_s:
            told[TPOT_FIELD] = 1e3 * self.tpot_target_s
        return told


class TwinEngine:
    """The twin of an engine that co-schedules, driven as `EngineCore` drives a scheduler."""

    def __init__(self, config: EngineConfig, usual_blocks: float) -> None:
        self.twin = Twin(config)
        self.twin.engine["usual_online_blocks"] = usual_blocks
        self.now_s = 0.0
        self.steps: Steps = []
        self.first_s: dict[str, float] = {}
        """The times of each request's first token, and of its last."""
        self.ended_s: dict[str, float] = {}
        self._flying: deque[tuple[StepBatch, float]] = deque()

    def add(self, ask: Ask) -> None:
        self.twin.add(
            Request(
                ask.name,
                ask.prompt_tokens,
                ask.stop_after,
                ask.max_tokens,
                arrival_s=ask.at_s,
                priority=OFFLINE_PRIORITY if ask.offline else 0,
                targets_s=(ask.ttft_target_s, ask.tpot_target_s),
            )
        )

    def run(self, asks: Sequence[Ask]) -> None:
        """Serve all requests to their ends."""
        coming = deque(sorted(asks, key=lambda ask: ask.at_s))
        for _ in range(50_000):
            if self.twin.idle and not self._flying:
                if not coming:
                    return
                self.now_s = max(self.now_s, coming[0].at_s)
            while coming and coming[0].at_s <= self.now_s:
                self.add(coming.popleft())
            self._iterate()

    def _iterate(self) -> None:
        batch = self.twin.schedule(self.now_s, MODEL.packed())
        if batch is not None:
            seconds = MODEL.step_s(batch.shape) if batch.scheduled else 0.0
            begin_s = max([self.now_s, *(end_s for _, end_s in self._flying)])
            self._flying.append((batch, begin_s + seconds))
            if batch.scheduled:
                named = [(seq.request_id, tokens) for seq, tokens in batch.scheduled]
                self.steps.append((self.now_s, named))
            if len(self._flying) < self.twin.max_steps_in_flight and batch.scheduled:
                return
        if self._flying:
            oldest, end_s = self._flying.popleft()
            self.now_s = max(self.now_s, end_s)
            done = self.twin.complete(oldest, self.now_s)
            for seq in done.sampled:
                self.first_s.setdefault(seq.request_id, self.now_s)
            for seq in done.finished:
                self.ended_s[seq.request_id] = self.now_s
        self.twin.check()
