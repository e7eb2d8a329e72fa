"""Foreseen: a request waits in the scheduler until its wait in an engine can be foreseen."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import Prediction, RequestSpec
from foretell.policy.base import Candidate, Needs, Policy
from foretell.policy.baselines.externality import ExternalityPolicy
from foretell.policy.slo import ttft_quantiles, value_at
from foretell.policy.trust import trusted

LOW, HIGH = 0.1, 0.9
"""Levels between which a TTFT is said to lie."""
UNCERTAIN_S = 1.0
"""If these quantiles are further apart, the wait cannot be foreseen."""


class ForeseenPolicy:
    """Chooses as another policy does, but not while nobody can say how long the wait there is.

    Which engine will first have room depends on how long the answers are that run there. Where
    that is known, a request may join the right queue early: nothing is gained by holding it. Where
    it is only believed, the choice among queues is a gamble, which in an engine's queue cannot be
    taken back. The risk shows in the quantiles of the TTFT that the twin foretells: while those of
    the chosen instance are more than `UNCERTAIN_S` apart, the request is better kept. The longer
    others have run, the more is known.

    With certain lengths all quantiles are equal and this is the other policy. Whoever asks again
    and again in vain is placed by it when the caller's bound has passed.

    What it is worth with a tagger's estimates is measured by `bench.placement.estimates`.
    """

    name: ClassVar[str] = "foreseen"
    needs: ClassVar[Needs] = Needs.RISK

    def __init__(self, chooser: Policy | None = None) -> None:
        """`chooser` must need no more than an externality; none: that policy."""
        self._chooser = chooser or ExternalityPolicy()

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The other policy's choice."""
        return self._chooser.choose(request, candidates, draw)

    def consider(
        self, request: RequestSpec, candidates: Sequence[Candidate], draw: float
    ) -> str | None:
        """The other policy's choice; None where what was foretold of it is too uncertain.

        An instance that did not answer, or that cannot be compared, says nothing of how uncertain
        it is: where the other policy prefers it all the same, it gets the request.
        """
        prediction_of = trusted(candidates)
        chosen = self.choose(request, candidates, draw)
        found = next(prediction_of(c) for c in candidates if c.instance_id == chosen)
        return None if found is not None and uncertainty_s(found) > UNCERTAIN_S else chosen


def uncertainty_s(prediction: Prediction) -> float:
    """How far apart the quantiles `LOW` and `HIGH` of the TTFT are; NaN if neither ever comes."""
    quantiles = ttft_quantiles(prediction)
    return value_at(quantiles, HIGH) - value_at(quantiles, LOW)
