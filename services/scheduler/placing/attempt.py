"""One record of each attempt: where a request was sent and why, and how it ended.

The request log, metrics, traces, the console and `foretell explain` all read it.
"""

import time
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from foretell.engine.announced import Announced, Calibration, with_length
from foretell.engine.hindsight import Exposure, PredictionInputs
from foretell.model import LengthEstimate, Prediction, RequestSpec
from foretell.openai.parsing import ApiRequest
from foretell.placement.decision import Decision
from foretell.services.scheduler.placing.instance import PoolInstance

MOST_TRACES = 1000
"""Requests whose traces are kept."""
MOST_SNAPSHOT_BYTES = 16 << 20
"""Bytes of engines' snapshots that are kept with the latest requests."""
_ARRIVAL_BYTES = 1000
"""Approximate size of one reservation in a snapshot."""


class Carrier(Protocol):
    """Carries an attempt to its engine. The placer calls it for effects of the placement core."""

    def take_back(self) -> bool:
        """Take the request back from its engine unless it has a token; return whether it was."""
        ...

    def give_up(self) -> None:
        """End the attempt as failed, unless output has come that no other engine can continue."""
        ...


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt. Timestamps are unix seconds, 0 where the event did not happen."""

    key: str
    number: int
    instance: PoolInstance
    policy: str
    decision: Decision
    inputs: PredictionInputs | None
    """What its predictions were made from; None if nothing was predicted, or once dropped."""
    spec: RequestSpec
    prediction: Prediction | None
    """The prediction for this instance, which includes requests expected to arrive later."""
    placed_unix_s: float
    took_s: float
    """Seconds until the placement was decided, including any time in which it was held."""
    announced: Announced | None = None
    """The latencies that the client is told; None without quantiles: it is told the means."""
    announced_by: dict[Hashable, Prediction] = field(default_factory=dict)
    """The predictions that `announced` was made from, by kind; the calibration learns from each."""
    expected: Announced | None = None
    """As `announced`, but always by the newest length estimate: for comments in its stream."""
    is_final: bool = False
    """The headers were made: `announced` does not change any more."""
    withheld: Prediction | None = None
    """The prediction that was not used because the engine is doubted. It is compared with the
    outcome."""
    tagged: bool = False
    """The tagger was asked about it."""
    carrier: Carrier | None = None
    """What carries it to its engine while it is in progress; None if it cannot be recalled."""
    status: int = 0
    """The engine's HTTP status; 0 if it sent none."""
    first_byte_unix_s: float = 0.0
    """When a stream's first byte came; otherwise estimated from what the predictor saw."""
    ended_unix_s: float = 0.0
    finished: bool = False
    """The whole answer came from the engine."""
    prompt_tokens: int = 0
    """0 where not known."""
    output_tokens: int = 0
    """Summed over all sequences of the request; 0 where not known."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache: from the engine's usage, else from the predictor."""
    truncated: bool = False
    """The engine says that some choice was ended by its token limit."""
    abandoned: bool = False
    """The client left, or the engine was lost in mid-answer: no attempt follows."""
    broken: bool = False
    """The engine was lost in mid-answer."""
    met_targets: bool | None = None
    """Whether the answer kept its targets; None if it has none, or too little is known."""
    settled: bool = False
    """It has ended, and its outcome is recorded."""
    continued: bool = False
    """It continued another engine's answer, so its latencies are not those of the request."""
    instance_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.instance_id = self.instance.config.instance_id

    @property
    def answered(self) -> bool:
        """The engine has answered it, and not with an error."""
        return self.finished and self.status < 400

    @property
    def ttft_s(self) -> float:
        """Seconds from its placement to the first byte; 0 where not known."""
        return self.since_placed_s(self.first_byte_unix_s)

    @property
    def e2e_s(self) -> float:
        """Seconds from its placement to the end of the whole answer; 0 where not known."""
        return self.since_placed_s(self.ended_unix_s) if self.finished else 0.0

    @property
    def tokens_each(self) -> float:
        """Mean output tokens of a sequence; 0 where not known."""
        return self.output_tokens / self.spec.sequences

    def since_placed_s(self, unix_s: float) -> float:
        """Seconds from its placement to a stamp; 0 where the stamp is not known."""
        return max(0.0, unix_s - self.placed_unix_s) if unix_s else 0.0

    def tell(
        self,
        calibration: Calibration,
        request: ApiRequest,
        under_way: Iterable["Attempt"],
        length: LengthEstimate | None = None,
    ) -> None:
        """Update `expected`, and `announced` unless the headers were made. `length`: a newer
        estimate, to which the prediction is adapted. `under_way`: all attempts in progress."""
        prediction = self.prediction
        if prediction is None:
            return
        if length is not None:
            prediction = with_length(prediction, self.spec.length, length)
        kind = _kind(request, length or self.spec.length)
        now_s = time.time()
        others = (
            (each.announced_by[kind], each.since_placed_s(now_s))
            for each in under_way
            if kind in each.announced_by
        )
        self.expected = calibration.tell(kind, prediction, lambda: others)
        self.announced_by[kind] = prediction
        if not self.is_final:
            self.announced = self.expected

    def headers(self) -> dict[str, str]:
        """The headers that its client gets. `announced` does not change afterwards."""
        self.is_final = True
        headers = {"x-foretell-instance": self.instance_id, "x-foretell-policy": self.policy}
        prediction = self.prediction
        if prediction is not None:
            ttft_s, e2e_s = prediction.ttft_s, prediction.e2e_s
            if self.announced is not None:
                ttft, e2e = self.announced
                ttft_s, e2e_s = ttft.typical_s, e2e.typical_s
                headers["x-foretell-predicted-ttft-p90-s"] = f"{ttft.p90_s:.4f}"
                headers["x-foretell-predicted-e2e-p90-s"] = f"{e2e.p90_s:.4f}"
            headers["x-foretell-predicted-ttft-s"] = f"{ttft_s:.4f}"
            headers["x-foretell-predicted-e2e-s"] = f"{e2e_s:.4f}"
            headers["x-foretell-calibration"] = _calibration(prediction)
        return headers

    def left(self, now_unix_s: float) -> str:
        """The remaining latencies, as text for a comment in its stream; "" where not known."""
        if self.expected is None:
            return ""
        passed_s = self.since_placed_s(now_unix_s)
        parts = {"e2e": self.expected.e2e.left(passed_s)}
        if not self.first_byte_unix_s:
            parts = {"ttft": self.expected.ttft.left(passed_s), **parts}
        return "".join(
            f" {name}-left-s={left.median_s:.1f} {name}-left-p90-s={left.p90_s:.1f}"
            for name, left in parts.items()
        )


def _kind(request: ApiRequest, length: LengthEstimate) -> Hashable:
    """The kind for `Calibration`: model, job class and, with quantiles, source of the length."""
    return request.model, request.job_class, bool(length.quantiles) and length.source


def _calibration(prediction: Prediction) -> str:
    """The number of steps behind a prediction, and the features that it does not model."""
    steps = f"{prediction.calibration_steps} steps"
    if not prediction.approximations:
        return steps
    return f"{steps}; not modelled: {', '.join(prediction.approximations)}"


@dataclass(slots=True, eq=False)
class RequestTrace:
    """One request and its attempts in order."""

    request_id: str
    """The id that its client knows."""
    model_name: str
    generates: bool = True
    """Its endpoint generates tokens."""
    attempts: list[Attempt] = field(default_factory=list)


class Traces:
    """The latest requests that were placed. References are kept, and formatted only on demand."""

    def __init__(self, most: int = MOST_TRACES, most_bytes: int = MOST_SNAPSHOT_BYTES) -> None:
        self._traces: deque[RequestTrace] = deque(maxlen=most)
        self._most_bytes = most_bytes
        self._with_inputs: deque[tuple[Attempt, int]] = deque()
        """Attempts with inputs, each with the bytes of snapshots that its predecessor lacked."""
        self.snapshot_bytes = 0
        """Approximate bytes of the snapshots that are kept."""
        self._latest: Collection[Exposure] = ()

    def __len__(self) -> int:
        return len(self._traces)

    def add(self, trace: RequestTrace, attempt: Attempt) -> None:
        """Add an attempt of a request that has been placed."""
        if not trace.attempts:
            self._traces.append(trace)
        trace.attempts.append(attempt)
        if attempt.inputs is not None:
            self._keep(attempt, attempt.inputs)

    def latest(self) -> Iterator[RequestTrace]:
        """All traces, the latest first. Nothing may be added during the iteration."""
        return reversed(self._traces)

    def since(self, unix_s: float) -> Iterator[RequestTrace]:
        """The traces whose first attempt was placed since `unix_s`, the latest first."""
        for trace in self.latest():
            if trace.attempts[0].placed_unix_s < unix_s:
                return
            yield trace

    def find(self, request_id: str) -> RequestTrace | None:
        """The latest request with that id; None if it is not kept."""
        return next((each for each in self.latest() if each.request_id == request_id), None)

    def _keep(self, attempt: Attempt, inputs: PredictionInputs) -> None:
        """Keep the inputs of an attempt, and drop the oldest where there are too many."""
        before = {id(exposure.snapshot) for exposure in self._latest}
        added = sum([_bytes(e) for e in inputs.exposures if id(e.snapshot) not in before])
        self._latest = inputs.exposures
        self._with_inputs.append((attempt, added))
        self.snapshot_bytes += added
        most = self._traces.maxlen or 0
        while self.snapshot_bytes > self._most_bytes or len(self._with_inputs) > most:
            oldest, size = self._with_inputs.popleft()
            oldest.inputs = None
            self.snapshot_bytes -= size


def _bytes(exposure: Exposure) -> int:
    snapshot = exposure.snapshot
    return len(snapshot.requests) + _ARRIVAL_BYTES * len(snapshot.reservations)
