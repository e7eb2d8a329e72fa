"""A predictor sidecar in virtual time: the service's own book, fed by the simulator."""

from math import inf

from foretell.engine import EngineBook
from foretell.latency.linear import StepTimeModel
from foretell.length import PRIOR_TOKENS
from foretell.length.distribution import knots
from foretell.model import EngineSnapshot, Load, Prediction, RequestSpec


class SimPredictor:
    """Knows only what was published and what was reserved, never the engine itself."""

    def __init__(
        self,
        first: EngineSnapshot,
        step_time: StepTimeModel,
        *,
        dispatch_delay_s: float,
        every_step_published: bool,
        expect_arrivals: bool,
    ) -> None:
        self.published_s = first.published_unix_s
        self._book = EngineBook(
            dispatch_delay_s=dispatch_delay_s,
            length_row=knots,
            prior_tokens=PRIOR_TOKENS,
            every_step_published=every_step_published,
            expect_arrivals=expect_arrivals,
        )
        self._book.hear(first)
        self._step_time = step_time

    def hear(self, snapshot: EngineSnapshot) -> None:
        """A newer snapshot; the requests that it shows need no reservation any more."""
        self.published_s = snapshot.published_unix_s
        self._book.hear(snapshot)

    def reserve(self, request: RequestSpec, now_s: float) -> None:
        """`request` is being dispatched here."""
        self._book.reserve(request, now_s, inf)

    def complete(self, request_id: str) -> None:
        """The request has ended, perhaps between two snapshots."""
        self._book.complete(request_id)

    def load(self, now_s: float) -> Load:
        """The engine's occupancy as last heard, reservations included."""
        load = self._book.load(now_s)
        assert load is not None, "the first snapshot was given"
        return load

    def predict(
        self, request: RequestSpec, now_s: float, *, externality: bool = False
    ) -> Prediction:
        """What the engine would do with `request`, dispatched at `now_s`, and to the others."""
        prediction = self._book.predict(request, self._step_time, now_s, externality=externality)
        assert prediction is not None, "the first snapshot was given"
        return prediction
