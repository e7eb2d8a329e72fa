"""Runs of `offline.cosched` whose online requests are foretold as they come; needs vLLM."""

from dataclasses import dataclass, replace
from typing import Any

from bench.offline.cosched_runs import HOST_S, TARGETS, Run
from foretell import wire
from foretell.engine.forecast import Forecaster
from foretell.engine.questions import Arrival, Question, arrival
from foretell.engine.snapshots import fill_picture
from foretell.length.distribution import certain
from foretell.model import BatchShape, EngineSnapshot, LengthEstimate, RequestSpec, Slo, Step
from foretell.services.backend.vllm.compat import engine_config, waiting_reader
from foretell.services.backend.vllm.snapshot import SnapshotRecorder
from foretell.v1 import snapshot_pb2

_EVERY = 4
"""One of so many online requests is foretold."""


@dataclass(slots=True)
class _Foretold:
    ttft_s: dict[str, float]
    e2e_s: dict[str, float]


class Foretelling(Run):
    """A run that foretells some of its online requests."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._told: dict[str, _Foretold] = {}
        self._published: list[snapshot_pb2.EngineSnapshot] = []
        scheduler = self._scheduler
        self._config = engine_config(scheduler)
        self._recorder = SnapshotRecorder(
            scheduler,
            self._config,
            waiting_reader(scheduler),
            self._publish,
            instance_id="engine",
            engine_run_id="run",
        )
        packed = self._machine.step_time.packed()
        coefficients = packed.coefficients.copy()
        coefficients[0] += HOST_S
        self._model = packed._replace(coefficients=coefficients)

    def _publish(self, base: bytes, rest: bytes, once: bytes) -> None:
        self._published.append(snapshot_pb2.EngineSnapshot.FromString(base + rest + once))

    def _scheduled(self, output: Any, shape: BatchShape) -> None:
        ends_s = self._now_s + HOST_S + self._machine.step_time.step_s(shape)
        place = len(self._online)
        while place < len(self._arrivals) and self._arrivals[place].at_s <= ends_s:
            if place % _EVERY == 0 and self._arrivals[place].at_s > self._now_s:
                self._foretell(place, output, shape)
            place += 1

    def _foretell(self, place: int, output: Any, shape: BatchShape) -> None:
        coming = self._arrivals[place]
        snapshot = self._snapshot(output, shape)
        slo = Slo(*(1e-3 * each for each in TARGETS.values())) if self._targets else Slo()
        request = RequestSpec(
            f"online {place}",
            coming.prompt_tokens,
            coming.output_tokens,
            LengthEstimate(float(coming.output_tokens)),
            slo=slo,
        )
        row = arrival(request, certain(float(coming.output_tokens)), coming.at_s)
        told = _Foretold({}, {})
        before = replace(self._config, policy="priority", co_schedules=False)
        for way, config in (("mirrored", self._config), ("priority", before)):
            found = self._forecast(replace(snapshot, config=config), row, coming.at_s)
            told.ttft_s[way], told.e2e_s[way] = found
        self._told[request.request_id] = told

    def _snapshot(self, output: Any, shape: BatchShape) -> EngineSnapshot:
        self._published.clear()
        self._recorder.must_read = True
        self._recorder.scheduled(output, self._now_s)
        found = wire.snapshot_from_proto(self._published[0])
        step = Step(0, self._now_s, 0.0, shape)
        return replace(found, taken_unix_s=self._now_s, steps_in_flight=(step,))

    def _forecast(
        self, snapshot: EngineSnapshot, row: Arrival, now_s: float
    ) -> tuple[float, float]:
        forecaster = Forecaster()
        requests = (*snapshot.running, *snapshot.waiting)
        lengths = [certain(float(self._length(each.request_id))) for each in requests]
        fill_picture(forecaster, 0, snapshot, lengths)
        forecaster.believe(0, self._model)
        (found,) = forecaster.forecast([Question(0, 1, 0, ())], row, now_s)
        return found.ttft_s, found.e2e_s

    def _length(self, request_id: str) -> int:
        return int(self._scheduler.requests[request_id].max_tokens)

    def errors(self) -> list[dict[str, dict[str, float]]]:
        """(predicted - actual) / actual of each that has ended, by the way of foretelling."""
        result = []
        for name, told in self._told.items():
            seen = self._online.get(name)
            if seen is None or seen.tokens < self._arrivals[int(name.split()[1])].output_tokens:
                continue
            ttft_s, e2e_s = seen.first_s - seen.arrived_s, seen.last_s - seen.arrived_s
            result.append(
                {
                    way: {
                        "ttft": round(told.ttft_s[way] / ttft_s - 1.0, 4),
                        "e2e": round(told.e2e_s[way] / e2e_s - 1.0, 4),
                    }
                    for way in told.ttft_s
                }
            )
        return result
