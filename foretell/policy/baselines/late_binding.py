"""Late binding: a request waits in the scheduler until some instance can start it."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs, Policy
from foretell.policy.baselines.externality import ExternalityPolicy
from foretell.policy.trust import trusted

MOST_QUEUED = 1
"""Requests that may queue in an engine. Not 0: a seat that falls free is taken by the engine's next
step, which no scheduler could hear of in time."""
MOST_PREEMPTIONS = 0.25
"""Predicted preemptions on an instance, while the newcomer lives there, that count as none."""


class LateBindingPolicy:
    """Chooses as another policy does, but among instances that are *open*.

    Open is an instance with fewer than `MOST_QUEUED` requests that wait for a seat, those on their
    way included, and where the twin foretells no preemption while the newcomer lives. Where none is
    open, the request is better kept: in an engine's queue it waits for this engine, in the
    scheduler for the first of all.

    Schedulers need not know of each other: predictors count what any of them has reserved. Whoever
    asks again and again in vain is placed by the other policy, among all, when the caller's bound
    has passed: it calls `choose` then. The idea is that of sparrow's late binding (Ousterhout et
    al., SOSP 2013), with a forecast in the place of a worker's call.
    """

    name: ClassVar[str] = "late_binding"
    needs: ClassVar[Needs] = Needs.EXTERNALITY

    def __init__(self, chooser: Policy | None = None) -> None:
        """`chooser` must need no more than an externality; none: that policy."""
        self._chooser = chooser or ExternalityPolicy()

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The other policy's choice, open or not."""
        return self._chooser.choose(request, candidates, draw)

    def consider(
        self, request: RequestSpec, candidates: Sequence[Candidate], draw: float
    ) -> str | None:
        """The other policy's choice among the open; None where all that answered are full.

        An instance that did not answer may be full too, so nothing waits for it, and nothing is
        sent to it while others answer. If nobody answered there is nothing to wait for.
        """
        prediction_of = trusted(candidates)
        answered = [c for c in candidates if prediction_of(c) is not None]
        if not answered:
            return self.choose(request, candidates, draw)
        open_ones = [c for c in answered if is_open(c)]
        return self.choose(request, open_ones, draw) if open_ones else None


def is_open(candidate: Candidate) -> bool:
    """Whether a newcomer would start there soon and disturb nobody, as far as is foretold."""
    prediction = candidate.prediction
    if prediction is None or prediction.preemptions > MOST_PREEMPTIONS:
        return False
    load = prediction.load
    seats = max(0, load.max_num_seqs - load.running)
    return load.waiting + max(0, load.reserved - seats) < MOST_QUEUED
