"""What a newcomer costs the requests that an engine already has or is about to get.

The economists' externality: who is placed pays for its own latency, the others pay the rest. Both
runs of the twin use the same lengths for the same requests, so that their difference is the
newcomer's doing and no accident of the draw.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foretell.engine.forecast import SEED, Forecaster, PendingRequest
from foretell.kernel.endings import Endings, sample_endings, sum_delays
from foretell.kernel.futures import Lengths, Start
from foretell.kernel.rollout import MARK
from foretell.kernel.step_time import StepTime
from foretell.latency.linear import StepTimeModel

_NOBODY = np.zeros(0, np.int32)
_NO_MARKS = np.empty(0, MARK)


@dataclass(frozen=True, slots=True)
class Added:
    """Seconds, summed over all others and averaged over what the output lengths may turn out to be.

    Negative where the newcomer happens to help, as it may by a preemption that it prevents;
    infinite where it keeps somebody from ever running.
    """

    ttft_s: float
    """By which first tokens come later, of those who have none yet."""
    e2e_s: float
    """By which last tokens come later."""


class _Run(NamedTuple):
    """Rollouts without a newcomer, and all that they depend on beside the snapshot."""

    coming: list[PendingRequest]
    samples: int
    clock: tuple[float, float, float]
    model: StepTime
    endings: Endings


class Externality:
    """Of newcomers to the engine of one snapshot; the run without them is kept for the next."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self._kept: _Run | None = None

    def added(
        self,
        step_time: StepTimeModel,
        newcomer: PendingRequest,
        now_unix_s: float,
        *,
        samples: int,
        others: Seq[PendingRequest] = (),
        every_step_published: bool = True,
    ) -> Added:
        """What `newcomer` adds to the requests of the snapshot and to `others` on their way.

        Nobody else is let come: who may come later is not there to be delayed, and will be placed
        where it suits. The other arguments are those of `Forecaster.prepare`.
        """
        forecaster, coming = self._forecaster, list(others)
        samples = forecaster.samples_for([*coming, newcomer], samples)
        start, lengths = forecaster.begin(step_time, coming, now_unix_s, every_step_published)
        without = self._without(start, lengths, step_time.packed(), coming, samples)
        coming = [*coming, newcomer]
        start, lengths = forecaster.begin(step_time, coming, now_unix_s, every_step_published)
        beside = self._endings(start, lengths, step_time.packed(), samples)
        count = forecaster.requests + sum(p.request.sequences for p in others)
        delays_s = np.empty((2, samples))
        sum_delays(without.first_token_s, beside.first_token_s, count, delays_s[0])
        sum_delays(without.last_token_s, beside.last_token_s, count, delays_s[1])
        ttft_s, e2e_s = delays_s.mean(axis=1).tolist()
        return Added(ttft_s, e2e_s)

    def _without(
        self,
        start: Start,
        lengths: Lengths,
        model: StepTime,
        coming: list[PendingRequest],
        samples: int,
    ) -> Endings:
        kept, clock = self._kept, _clock(start)
        if (
            kept is None
            or kept.model is not model  # it never changes: another one is made instead
            or (kept.samples, kept.clock) != (samples, clock)
            or kept.coming != coming
        ):
            endings = self._endings(start, lengths, model, samples)
            self._kept = kept = _Run(coming, samples, clock, model, endings)
        return kept.endings

    def _endings(self, start: Start, lengths: Lengths, model: StepTime, samples: int) -> Endings:
        shape = samples, len(start.sequences)
        endings = Endings(np.empty(shape, np.int64), np.empty(shape), np.empty(shape), _NO_MARKS)
        nobody = start._replace(watched=_NOBODY)
        sample_endings(nobody, self._forecaster.room, model, lengths, SEED, endings)
        return endings


def _clock(start: Start) -> tuple[float, float, float]:
    """When the steps in flight end; and now, but only where a step may be scheduled now."""
    record = start.records[0]
    clock, depth = record["clock"], record["engine"]["depth"]
    now_s = clock["now_s"] if clock["in_flight"] < depth else 0.0
    return float(now_s), float(clock["first_end_s"]), float(clock["last_end_s"])
