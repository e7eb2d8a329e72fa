"""Recall: requests that wait in engines' queues can still be placed on other engines.

A request in an engine's queue waits for this engine, although another one may have room by now,
because answers end sooner or later than predicted. Nothing of it has been computed, so it can be
taken back and sent elsewhere without its client noticing. This is work stealing (Blumofe and
Leiserson, JACM 46(5), 1999), started by a forecast instead of an idle worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from foretell.model import Prediction, RequestSpec
from foretell.placement import effects as do
from foretell.placement.decision import Decision, decide
from foretell.placement.instances import Instances
from foretell.placement.request import Request, Stage
from foretell.placement.state import PlacementState, expect, lease_of
from foretell.policy import Candidate
from foretell.policy.order import OVERTAKEN_PART, LargestLast, costs_too_much, sooner

REVIEW_PAUSE_S = 0.1
"""Least time between two reviews of one request, about the interval of snapshots."""
GAIN = 2.0
"""A request is recalled if it would wait more than this many times as long as elsewhere. The margin
allows for forecast errors. It also prevents ping-pong, as each recall halves the wait at least."""


@dataclass(slots=True)
class _Waiting:
    instance_id: str
    arrived_s: float
    sent_s: float
    reviewed_s: float
    overdue_s: float


class Unstarted:
    """The dispatched requests that have no first token yet, as far as is known."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}

    def add(
        self, key: str, instance_id: str, arrived_s: float, now_s: float, overdue_s: float = inf
    ) -> None:
        """Add a request that is sent to this instance, which is the best choice at the moment.
        Others may overtake it there until `overdue_s`."""
        self._waiting[key] = _Waiting(instance_id, arrived_s, now_s, now_s, overdue_s)

    def is_overdue(self, key: str, now_s: float) -> bool:
        """Whether the request may no longer be overtaken.

        It is not overdue while a request of normal priority that was sent to the same instance
        before `overdue_s` still waits. Other requests that go last do not count: waiting for them
        would let all later arrivals pass."""
        overdue_s, here = self._waiting[key].overdue_s, self._waiting[key].instance_id
        return overdue_s <= now_s and not any(
            other.instance_id == here and other.sent_s < overdue_s and other.overdue_s == inf
            for other in self._waiting.values()
        )

    def discard(self, key: str) -> None:
        """Remove a request that has a token, has ended or cannot be recalled any more."""
        self._waiting.pop(key, None)

    def pick(self, instances: Instances, now_s: float) -> str | None:
        """Return the oldest request that is due for a review and note the review; None: none is."""
        due = [
            (waiting.arrived_s, key)
            for key, waiting in self._waiting.items()
            if now_s - waiting.reviewed_s >= REVIEW_PAUSE_S and _may_wait(waiting, instances)
        ]
        if not due:
            return None
        _, key = min(due)
        self._waiting[key].reviewed_s = now_s
        return key


def _may_wait(waiting: _Waiting, instances: Instances) -> bool:
    """Whether it may still wait in the engine's queue, by the latest snapshot.

    A snapshot from before it was sent says nothing about it."""
    instance = instances.get(waiting.instance_id)
    if instance is None:
        return False
    load = instance.load
    if load is None or instance.heard_s <= waiting.sent_s:
        return True
    return load.waiting + load.reserved > 0


def is_worth_it(wait_s: float, elsewhere_s: float) -> bool:
    """Whether a request that would wait another `wait_s` is recalled for a shorter wait."""
    return wait_s > GAIN * elsewhere_s


class Recalls:
    """Reviews the requests of one placement core that wait in engines' queues, one at a time.

    Engines that admit by priority get the largest requests with a lower priority where that pays
    (`foretell.policy.order`). If others overtake such a request for too long, it is recalled and
    sent again with a higher priority. This bounds its wait: of the requests with the priority that
    it asked for, it is overtaken only by those that are sent to its engine

    - before it is overdue, `OVERTAKEN_PART` of its predicted decoding time after its arrival, or
    - at a time when they begin before the next review, or
    - while its wait is at most `GAIN` times the wait it would have as the first of them.

    This holds while there is time for reviews (`PredictionBudget.is_spare`) and forecasts are
    right.
    """

    def __init__(self, state: PlacementState) -> None:
        self._state = state
        self._unstarted = Unstarted()
        self._orders: dict[str, LargestLast] = {}
        self._recalled_key = ""  # the request that is being recalled

    def arrived(self, request: Request) -> None:
        """Rank a new request among the others to its model."""
        if self._is_recallable(request):
            order = self._orders.setdefault(request.arrived.model, LargestLast())
            request.spec = request.trial = order.ranked(request.spec)

    def rank(self, request: Request, candidates: Sequence[Candidate]) -> None:
        """Restore the request's own priority if it would wait too long with a lower one."""
        usual = request.arrived.spec.priority
        goes_last = request.trial.priority > usual
        if goes_last and costs_too_much(c.prediction for c in candidates):
            request.trial = request.trial._replace(priority=usual)

    def sent(
        self, request: Request, spec: RequestSpec, instance_id: str, prediction: Prediction | None
    ) -> None:
        """Note that the request is dispatched."""
        if not self._is_recallable(request):
            return
        arrived_s, overdue_s = request.arrived_s, inf
        if spec.priority > request.arrived.spec.priority:
            decoding_s = prediction.e2e_s - prediction.ttft_s if prediction else 0.0
            overdue_s = arrived_s + OVERTAKEN_PART * decoding_s
        now_s = self._state.now_s
        self._unstarted.add(request.key, instance_id, arrived_s, now_s, overdue_s)

    def _is_recallable(self, request: Request) -> bool:
        # Of several sequences some may have begun, so such requests are not recalled.
        late = self._state.policy.late_binding
        return late and request.arrived.recallable and request.spec.sequences == 1

    def review(self) -> None:
        """Recall the oldest request due for a review if it would wait much less elsewhere."""
        state = self._state
        key = None if self._recalled_key else self._unstarted.pick(state.instances, state.now_s)
        if key is None:
            return
        request = state.requests[key]
        here, spec = lease_of(request).instance.instance_id, state.with_time_left(request)
        others = [i for i in state.eligible(request) if i != here]
        if self._unstarted.is_overdue(key, state.now_s):
            first = sooner(request.arrived.spec).priority
            request.spec = request.spec._replace(priority=first)
            spec = spec._replace(priority=first)
            others.append(here)
        if not others or not state.budgets.online.is_spare(len(others), state.now_s):
            return
        waits = state.predict.wait(spec, here, state.now_s)
        if waits.begun:
            self._unstarted.discard(key)
        if waits.wait_s is None:
            return
        chosen = self._better(request, spec, others, waits.wait_s)
        if chosen is not None:
            self._unstarted.discard(key)
            self._recalled_key, request.stage, request.better = key, Stage.RECALL, chosen
            state.do(do.Recall(key, here))

    def _better(
        self, request: Request, spec: RequestSpec, others: Sequence[str], wait_s: float
    ) -> Decision | None:
        """A choice with a wait that is much shorter than `wait_s`, or None."""
        state = self._state
        predicted = state.ask(spec, others)
        known = [a.instance_id for a in predicted.answers if a.prediction is not None]
        if not known:
            return None
        candidates = state.candidates.of(known, predicted.answers, state.now_s)
        spec = state.with_time_left(request)
        found = decide(state.policy, spec, candidates, state.random(), predicted.inputs)
        assert found.chosen.prediction is not None, "it needs predictions"
        if not is_worth_it(wait_s, found.chosen.prediction.ttft_s):
            return None
        return found._replace(waited_s=wait_s)

    def keep(self, request: Request) -> None:
        """Note that the request cannot be recalled any more; end its recall if there is one."""
        self._unstarted.discard(request.key)
        if request.key == self._recalled_key:
            self._recalled_key, request.stage, request.better = "", Stage.ANSWER, None

    def recalled(self, request: Request) -> Decision:
        """End the request's recall, which succeeded, and return where it goes."""
        expect(request, Stage.RECALL)
        request.stage, chosen, request.better = Stage.ANSWER, request.better, None
        self._recalled_key = ""
        assert chosen is not None, f"{request.key} was called back for nothing"
        return chosen
