"""The placement state machine: which instance gets which request, and when."""

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from foretell.length import says_more
from foretell.model import RequestSpec
from foretell.placement import effects as do
from foretell.placement import events as on
from foretell.placement.config import PlacementConfig
from foretell.placement.decision import Decision, decide
from foretell.placement.instances import Lease
from foretell.placement.needs import MOST_REFUSALS, Unfit
from foretell.placement.outages import Outages
from foretell.placement.ports import Predict
from foretell.placement.recall import Recalls
from foretell.placement.request import Request, Stage
from foretell.placement.retries import LONGEST_PAUSE_S, LOOK_AGAIN, RetryBudget
from foretell.placement.shares import MOST_HELD, has_room
from foretell.placement.silence import Silences
from foretell.placement.state import PlacementState
from foretell.placement.yielding import Yielding
from foretell.policy import Candidate, Needs, Policy
from foretell.policy.admission import Unattainable, unattainable

if TYPE_CHECKING:  # configurations can be read without numpy
    from foretell.engine.hindsight import PredictionInputs

_HELD = (Stage.SHARE, Stage.YIELD)


class PlacementCore:
    """The placements of one scheduler. Deterministic given its events and draws; for one thread.

    Unless a request has to wait, it is predicted, given an instance by the policy, reserved and
    dispatched in the step in which it arrives. It is recalled from its engine's queue if it would
    wait far less elsewhere. It ends, or an attempt fails and it is placed again. Missing data
    degrades the choice: without a snapshot the last known load counts, without a load the number
    of outstanding requests.
    """

    def __init__(
        self,
        policy: Policy,
        config: PlacementConfig,
        random: Callable[[], float],
        predict: Predict,
    ) -> None:
        """`random` draws uniformly from [0, 1)."""
        self.policy = policy
        self._asks_predictors = policy.needs is not Needs.NOTHING
        self.config = config
        self._state = PlacementState(policy, config, random, predict)
        self.instances = self._state.instances
        self._requests = self._state.requests
        self._budgets = self._state.budgets
        self.shares = self._state.shares
        self._recalls = Recalls(self._state)
        self.yielding = Yielding(self._state)
        self._held = (self.shares, Stage.SHARE), (self.yielding, Stage.YIELD)
        self._silences = Silences()
        self._budget = RetryBudget()
        self.outages = Outages(self._state, config.instance_wait_s)
        self._handlers: dict[type, Callable[[Any], None]] = {
            on.Arrived: self._arrived,
            on.Estimated: self._estimated,
            on.Started: self._started,
            on.Recalled: self._recalled,
            on.TimePassed: self._time_passed,
            on.Failed: self._failed,
            on.Ended: self._ended,
            on.Gone: self._gone,
            on.InstanceUp: self._instance_up,
            on.InstanceDown: lambda event: self.instances.put_down(event.instance_id),
            on.InstanceDraining: lambda event: self.instances.drain(event.instance_id),
            on.InstanceTakenBack: self._instance_taken_back,
            on.InstanceRemoved: lambda event: self.instances.remove(event.instance_id),
            on.InstanceFollowed: self.instances.follow,
        }

    def step(self, event: on.Event, now_s: float) -> list[do.Effect]:
        """Process one event and return the effects that the driver has to carry out.

        `now_s` is from a monotonic clock. Raises AssertionError for an event that cannot happen,
        such as a second end of the same request.
        """
        state = self._state
        assert now_s >= state.now_s, f"time went from {state.now_s} back to {now_s}"
        state.now_s = now_s
        self._handlers[type(event)](event)
        return state.take_effects()

    def stage(self, key: str) -> Stage | None:
        """Return the stage of a request; None if it has ended."""
        request = self._requests.get(key)
        return request.stage if request else None

    def check_idle(self) -> None:
        """Raise AssertionError if any request or lease is left."""
        self._state.check_idle()

    # The life of a request.

    def _arrived(self, event: on.Arrived) -> None:
        key = event.spec.request_id
        assert key not in self._requests, f"{key} arrived twice"
        now_s = self._state.now_s
        arrived_s = now_s - event.waited_s
        request = self._requests[key] = Request(event, arrived_s, event.spec)
        if self._asks_predictors:
            self._budgets.of(event.spec.priority).arrived(now_s, event.late_s)
        self._budget.arrived(now_s)
        self._recalls.arrived(request)
        self.shares.arrived(event.tenant, now_s)
        self._place(request)

    def _estimated(self, event: on.Estimated) -> None:
        request = self._requests.get(event.key)
        if request is None or not says_more(event.length, request.spec.length):
            return
        request.spec = request.spec._replace(length=event.length)
        request.trial = request.trial._replace(length=event.length)
        if lease := request.lease:
            self._state.do(do.Revise(request.key, request.trial, lease.instance.instance_id))

    def _place(self, request: Request) -> None:
        """Choose an instance and dispatch the request, or let it wait, or refuse it."""
        if not self._state.eligible(request):
            self._await_instance(request)
            return
        if request.stage not in _HELD:
            request.next_attempt()
            if not request.failures and self.shares.must_wait(request.arrived.tenant):
                self._hold(request)
                return
        if not self._asks_predictors or not request.arrived.foreseeable:
            eligible = self._state.open_to(request)
            self._choose(request, self._state.candidates.of(eligible, (), self._state.now_s), None)
        else:
            self._predict(request)

    def _await_instance(self, request: Request) -> None:
        """Let the request wait because no instance that serves it is up, or refuse it."""
        if self.outages.begins(request):
            self.shares.stop_trying(request.key)
        else:
            self._refuse(request, "no_instance")

    def _place_who_waited(self) -> None:
        """Place the waiting requests that some instance serves now."""
        for request in self.outages.take_servable():
            self._place(request)

    def _predict(self, request: Request) -> None:
        """Choose by predictions for the most promising instances, or by their loads if there is
        no time to predict."""
        state, now_s = self._state, self._state.now_s
        eligible = state.candidates.known(state.open_to(request))
        budget = self._budgets.of(request.arrived.spec.priority)
        plan = budget.plan(len(eligible), now_s)
        picked = state.candidates.pick(eligible, plan.candidates, now_s)
        if not plan.candidates:
            state.do(do.Degraded(request.key, "budget"))
        predicted = state.ask(
            request.trial, picked, single=plan.single, load_alone=not plan.candidates
        )
        if plan.candidates:
            budget.took(plan, len(predicted.answers), predicted.took_s)
        if missing := len(picked) - len(predicted.answers):
            state.do(do.Degraded(request.key, "predictor", missing))
        if doubted := sum(answer.is_doubted for answer in predicted.answers):
            state.do(do.Degraded(request.key, "accuracy", doubted))
        request.single = plan.single
        candidates = state.candidates.of(picked, predicted.answers, now_s)
        self._choose(request, candidates, predicted.inputs)

    def _choose(
        self, request: Request, candidates: Sequence[Candidate], inputs: "PredictionInputs | None"
    ) -> None:
        """Let the policy choose among `candidates`, unless the request has to wait or is refused.
        `inputs`: what their predictions were made from."""
        if self._state.is_over_share(request):
            candidates = [each for each in candidates if has_room(each.load)]
            if not candidates:
                self._hold(request)
                return
        draw = self._state.random()
        self._recalls.rank(request, candidates)
        spec = self._state.with_time_left(request)
        if spec.slo.given and request.arrived.late == "reject" and request.attempt == 1:
            predictions = [c.prediction for c in candidates if c.prediction is not None]
            if (why := unattainable(spec.slo, predictions)) is not None:
                self._refuse(request, "late", why)
                return
        may_yield = self.policy.late_binding and request.arrived.spec.slo.ttft_s < inf
        if not (may_yield and self.yielding.begins(request, spec, candidates)):
            self._dispatch(request, spec, decide(self.policy, spec, candidates, draw, inputs))

    def _dispatch(self, request: Request, spec: RequestSpec, decision: Decision) -> None:
        chosen = decision.chosen
        instance = self.instances[chosen.instance_id]
        arrived, given = request.arrived, request.arrived.given_priority
        given = arrived.spec.priority if given is None else given
        if given != spec.priority and not instance.by_priority:
            # An engine that does not admit by priority would refuse one the client did not give.
            spec = spec._replace(priority=given)
        self._state.lease(request, instance, spec)
        key, prediction, request.instance_by_s = request.key, chosen.prediction, 0.0
        self._recalls.sent(request, spec, instance.instance_id, prediction)
        if arrived.recallable:
            predicted_s = request.predicted_s(prediction)
            self._silences.sent(key, instance.instance_id, predicted_s, self._state.now_s)
        attempt, name, now_s = request.attempt, instance.instance_id, self._state.now_s
        if prediction is not None and not request.single:
            prediction = self._state.predict.predict_one(spec, name, now_s) or prediction
        self._state.do(do.Dispatch(key, spec, name, prediction, attempt, decision))
        if arrived.foreseeable:  # in this step, so that the next placement counts it
            self._state.predict.reserve(spec, name, now_s)
        self.shares.stop_trying(key)

    # Requests that wait for room because their tenants are over their shares.

    def _hold(self, request: Request) -> None:
        if self.shares.held >= MOST_HELD:
            self._refuse(request, "over_share")
            return
        request.stage = Stage.SHARE
        self.shares.hold(request.arrived.tenant, request.urgency, request.key)
        self.shares.stop_trying(request.key)

    def _release(self) -> None:
        """Place held requests, since there may be room, until one of them has to wait again."""
        for waiting, stage in self._held:
            while waiting.held and (key := waiting.take_next()) is not None:
                request = self._requests[key]
                self._place(request)
                if request.stage is stage:
                    break

    # Requests that wait in an engine's queue.

    def _started(self, event: on.Started) -> None:
        request = self._requests.get(event.key)
        if request is not None:
            self._recalls.keep(request)
            self._silences.began(event.key, self._state.now_s, goes_on=event.goes_on)
            if request.lease is not None:
                self.instances.answered(request.lease)

    def _recalled(self, event: on.Recalled) -> None:
        request = self._requests[event.key]
        decision = self._recalls.recalled(request)
        self._silences.ended(event.key, self._state.now_s)
        self._state.give_back(request)
        if decision.chosen.instance_id in self.instances.eligible(request.arrived.model):
            request.next_attempt()
            self._dispatch(request, self._state.with_time_left(request), decision)
            self._recalls.review()
        else:  # the chosen instance went down meanwhile
            self._place(request)

    def _failed(self, event: on.Failed) -> None:
        request = self._requests[event.key]
        self._recalls.keep(request)
        lease = self._state.give_back(request)
        cost_s = self._silences.ended(event.key, self._state.now_s)
        if event.unfit:
            self._place_elsewhere(request, lease, event.unfit)
            return
        self.instances.failed(lease, self._state.now_s, cost_s)
        request.avoid.add(lease.instance.instance_id)
        request.failures += 1
        if event.output_tokens:
            request.continue_after(event.output_tokens)
        if request.failures >= self.config.max_attempts:
            self._refuse(request, "engine_failed")
            return
        pause_s = self.config.retry_pause_s * request.failures
        left = self._state.eligible(request)
        if left and request.avoid.issuperset(left):
            pause_s = LOOK_AGAIN * self.config.retry_pause_s
        self._retry(request, pause_s)

    def _place_elsewhere(self, request: Request, lease: Lease, why: Unfit) -> None:
        """Place a request that its instance cannot serve on another; refuse it if none is left."""
        arrived = request.arrived
        self.instances.answered(lease)
        request.unfit |= self.instances.refused(lease, arrived.model, why, arrived.need)
        request.refusals += 1
        if request.refusals < MOST_REFUSALS and self._state.eligible(request):
            self._place(request)
        else:
            self._refuse(request, "unfit")

    def _retry(self, request: Request, least_s: float = 0.0) -> None:
        """Place the request again once `least_s` has passed and the retry budget allows it.

        Beyond the budget it waits once for `LONGEST_PAUSE_S`. It is then placed if an instance is
        known to work, as the others can take what one failed engine left, and otherwise refused.
        """
        had_to_wait, request.beyond_budget = request.beyond_budget, False
        pause_s = self._budget.pause_s(self._state.now_s)
        if pause_s is None:
            if had_to_wait and not self.instances.work(request.arrived.model):
                self._refuse(request, "retry_budget")
                return
            request.beyond_budget = not had_to_wait
            pause_s = 0.0 if had_to_wait else LONGEST_PAUSE_S
        if (pause_s := max(pause_s, least_s)) > 0:
            request.stage = Stage.RETRY
            self._state.wait(request, pause_s)
        else:
            self._place(request)

    def _give_up_silent(self, event: on.InstanceUp) -> None:
        """Give up late attempts on an instance that answers its probes, but perhaps hangs."""
        instance, now_s = self.instances[event.instance_id], self._state.now_s
        late = self._silences.silent(
            event.instance_id, event.heard_s, event.worked_s, now_s, proven=instance.proven
        )
        for key in late:
            request = self._requests[key]
            elsewhere = any(each != event.instance_id for each in self._state.eligible(request))
            last = request.failures + 1 >= self.config.max_attempts
            if elsewhere and not last and self._budget.has_spare(now_s):
                self._state.do(do.GiveUp(key))

    def _ended(self, event: on.Ended) -> None:
        request = self._requests[event.key]
        self._recalls.keep(request)
        lease = self._state.give_back(request)
        del self._requests[event.key]
        self._silences.ended(event.key, self._state.now_s)
        if event.broken:
            self.instances.failed(lease, self._state.now_s)
        elif event.answered:
            self.instances.answered(lease)
        self._release()
        self._recalls.review()

    def _gone(self, event: on.Gone) -> None:
        request = self._requests[event.key]
        assert not request.lease, f"{event.key} is dispatched: tell its end"
        del self._requests[event.key]
        self.outages.leave(event.key)
        self.yielding.end(request)
        if request.stage is Stage.SHARE:
            self.shares.leave(request.arrived.tenant, event.key)
        self.shares.stop_trying(request.key)

    def _refuse(
        self, request: Request, because: do.RefusedBecause, why: Unattainable | None = None
    ) -> None:
        del self._requests[request.key]
        self._state.do(do.Refuse(request.key, because, why))
        self.shares.stop_trying(request.key)

    # Time.

    def _time_passed(self, event: on.TimePassed) -> None:
        request = self._requests.get(event.key)
        if request is None or request.ticket != event.ticket:
            return
        if request.stage is Stage.RETRY and request.beyond_budget:
            self._retry(request)
        elif request.stage in (Stage.RETRY, Stage.YIELD):
            self.yielding.end(request)
            self._place(request)
        elif request.stage is Stage.INSTANCE:
            self.outages.leave(request.key)
            self._refuse(request, "no_instance")

    # Instances.

    def _instance_up(self, event: on.InstanceUp) -> None:
        name, models, now_s = event.instance_id, event.models, self._state.now_s
        known = self.instances.get(name)
        if known is not None and not known.up:  # it is another process than the one that failed
            for request in self._requests.values():
                request.avoid.discard(name)
        if self.instances.put_up(name, models, now_s, event.lengths):
            self._place_who_waited()
        self._give_up_silent(event)
        self._release()
        self._recalls.review()  # at every probe, as a new instance has no snapshot at first

    def _instance_taken_back(self, event: on.InstanceTakenBack) -> None:
        self.instances.take_back(event.instance_id)
        self._place_who_waited()
        self._release()
