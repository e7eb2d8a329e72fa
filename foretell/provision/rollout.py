"""Runs a cluster's twins forward from their live state to see how many requests keep targets."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from foretell.engine import Sequence as EngineSequence
from foretell.engine import Twin
from foretell.engine.published import Snapshot
from foretell.engine.snapshots import twin_from
from foretell.engine.table import EngineTable
from foretell.kernel.step_time import StepTime
from foretell.model import EngineConfig, Slo
from foretell.provision.config import TUNING


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What is known about an engine before it runs."""

    config: EngineConfig
    step_time: StepTime


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """An instance at the beginning of a rollout."""

    snapshot: Snapshot | None = None
    """None: it is empty."""
    ready_s: float = 0.0
    """Seconds until it gets requests."""


@dataclass(frozen=True, slots=True)
class Coming:
    """A request of the forecast."""

    at_s: float
    """Seconds from now."""
    prompt_tokens: int
    output_tokens: int


def share_within(
    places: Sequence[EnginePlace],
    kind: EngineKind,
    coming: Sequence[Coming],
    slo: Slo,
    begins_s: Sequence[float],
    enough: float,
) -> float:
    """The ratio of `coming` that would keep to `slo`, in the worst span of time. Spans begin
    `begins_s` from now and end where the next one begins; requests before them do not count.

    Every request goes to the ready instance with the fewest requests. The run ends as soon as a
    ratio cannot reach `enough`; the result is then only known to be less.
    """
    rollout = Rollout(places, kind, slo, begins_s, coming)
    rollout.run(enough)
    return rollout.worst


class Rollout:
    """The twins of `places`; each request goes to the ready one with the fewest requests."""

    def __init__(
        self,
        places: Sequence[EnginePlace],
        kind: EngineKind,
        slo: Slo,
        begins_s: Sequence[float],
        coming: Sequence[Coming],
    ) -> None:
        self._slo, self._begins_s, self._coming = slo, begins_s, coming
        self._table = EngineTable(len(places))
        self._model = kind.step_time
        self._twins = [_twin(place, kind.config) for place in places]
        self._live = [twin.live for twin in self._twins]
        self._requests = [len(twin.running) + len(twin.waiting) for twin in self._twins]
        self._ready_s = [place.ready_s for place in places]
        self._open: dict[str, EngineSequence] = {}
        self.judged = [0] * len(begins_s)
        """Requests that arrive in each span."""
        for request in coming:
            if (span := self._span(request.at_s)) >= 0:
                self.judged[span] += 1
        self.missed = [0] * len(begins_s)
        """Requests of each span that do not keep to the targets."""
        for index, twin in enumerate(self._twins):
            self._table.put(index, twin, self._model)
            if not twin.idle:
                self._table.step(index, 0.0)

    def run(self, enough: float = 0.0) -> None:
        """Run to the end, or until the ratio of a span cannot reach `enough`."""
        at_s = 0.0
        for number, request in enumerate(self._coming):
            next_s = self._next_ready_s(max(request.at_s, at_s))  # it waits until one is ready
            if next_s == inf:
                self._never_served(self._coming[number:])
                break
            at_s = next_s
            self._pass(at_s)
            self._add(str(number), request, at_s)
            if enough and self.worst < enough:
                return
        end_s = max([at_s, *(each.at_s for each in self._coming[-1:])]) + TUNING.grace_s
        self._pass(end_s)
        for seq in self._open.values():
            self._end(seq, end_s)

    @property
    def worst(self) -> float:
        """The ratio within the targets in the worst span, as far as the rollout has run."""
        spans = zip(self.missed, self.judged, strict=True)
        return min((1.0 - missed / judged for missed, judged in spans if judged), default=1.0)

    def _next_ready_s(self, at_s: float) -> float:
        """When the first place is ready, at `at_s` or later; infinite: there is no place."""
        return min((max(ready_s, at_s) for ready_s in self._ready_s), default=inf)

    def _never_served(self, requests: Sequence[Coming]) -> None:
        for request in requests:
            if (span := self._span(request.at_s)) >= 0:
                self.missed[span] += 1

    def _span(self, at_s: float) -> int:
        """The span of a request that arrives at `at_s`; -1: none."""
        return bisect_right(self._begins_s, at_s) - 1

    def _pass(self, until_s: float) -> None:
        while (found := self._table.run(until_s, each=False)) is not None:
            index, now_s, finished = found
            self._requests[index] -= len(finished)
            for seq in finished:
                if self._open.pop(seq.request_id, None) is not None:
                    self._end(seq, now_s)

    def _add(self, name: str, request: Coming, at_s: float) -> None:
        ready = (i for i, ready_s in enumerate(self._ready_s) if ready_s <= at_s)
        index = min(ready, key=self._requests.__getitem__)
        seq = EngineSequence(
            name, request.prompt_tokens, request.output_tokens, 0, arrival_s=request.at_s
        )
        if self._span(request.at_s) >= 0:
            self._open[name] = seq
        twin = self._twins[index]
        twin.add(seq)
        if twin.live is not self._live[index]:
            self._live[index] = twin.live
            self._table.put(index, twin, self._model)
        self._requests[index] += 1
        if not self._table.in_step(index):
            self._table.step(index, at_s)

    def _end(self, seq: EngineSequence, now_s: float) -> None:
        """Judge a request that ends now, or is cut off by the end of the rollout."""
        first_s = min(float(seq.row["first_token_s"]), now_s)
        tpot_s = (now_s - first_s) / max(1, seq.output_tokens - 1)
        if not self._slo.met(first_s - seq.arrival_s, tpot_s):
            self.missed[self._span(seq.arrival_s)] += 1


def _twin(place: EnginePlace, config: EngineConfig) -> Twin:
    return Twin(config) if place.snapshot is None else twin_from(place.snapshot)
