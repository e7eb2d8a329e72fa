"""The state that all parts of one placement core share."""

from collections.abc import Callable, Sequence

from foretell.model import RequestSpec
from foretell.placement.budget import PredictionBudgets
from foretell.placement.candidates import Candidates
from foretell.placement.config import PlacementConfig
from foretell.placement.effects import Effect, WaitUntil
from foretell.placement.instances import Instance, Instances, Lease
from foretell.placement.ports import Predict, Predicted
from foretell.placement.request import Request, Stage
from foretell.placement.shares import Shares, work_of
from foretell.policy import Needs, Policy

_ANSWER = Stage.ANSWER


class PlacementState:
    """The requests of one scheduler, the instances, and the effects of the current event."""

    def __init__(
        self, policy: Policy, config: PlacementConfig, random: Callable[[], float], predict: Predict
    ) -> None:
        """`random` draws uniformly from [0, 1)."""
        self.policy = policy
        self.random = random
        self.instances = Instances()
        self.predict = predict
        self.candidates = Candidates(self.instances, config.candidates, random)
        self.budgets = PredictionBudgets()
        self.shares = Shares()
        self.requests: dict[str, Request] = {}
        """Those that have arrived and not ended."""
        self.now_s = 0.0
        self._tickets = 0
        self._effects: list[Effect] = []

    def do(self, effect: Effect) -> None:
        """Append an effect to those that the driver will carry out."""
        self._effects.append(effect)

    def wait(self, request: Request, pause_s: float) -> None:
        """Ask for `events.TimePassed` after `pause_s`, in place of any earlier wait."""
        self._tickets += 1
        request.ticket = self._tickets
        self.do(WaitUntil(request.key, self.now_s + pause_s, request.ticket))

    def check_idle(self) -> None:
        """Raise AssertionError if any request or lease is left."""
        assert not self.requests, f"requests never ended: {sorted(self.requests)}"
        self.shares.check_idle()
        assert all(i.outstanding == 0 for i in self.instances), "a lease was never given back"

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        found, self._effects = self._effects, []
        return found

    def eligible(self, request: Request) -> list[str]:
        """Return the ids of the instances that may get the request."""
        among, model = request.arrived.among, request.arrived.model
        known = self.instances.eligible(
            model, request.avoid, need=request.arrived.need, unfit=request.unfit
        )
        return known if among is None else [each for each in known if each in among]

    def is_over_share(self, request: Request) -> bool:
        """Whether the request may only go where there is room; never after a failed attempt."""
        return not request.failures and self.shares.is_over(request.arrived.tenant)

    def open_to(self, request: Request) -> list[str]:
        """Return the eligible instances. A request that has waited because its tenant is over its
        share leaves out the first of them, for tenants within their shares; all schedulers leave
        out the same ones."""
        eligible = self.eligible(request)
        if self.shares.trying != request.key or not self.is_over_share(request):
            return eligible
        loads = [self.instances[each].recent_load(self.now_s) for each in eligible]
        return eligible[self.shares.left_to_others(loads) :]

    def ask(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        *,
        single: bool = False,
        load_alone: bool = False,
    ) -> Predicted:
        """Return what the policy needs to know of the request on each of the instances;
        `load_alone`: only their loads, as there is no time to predict."""
        return self.predict.predict(
            spec,
            instance_ids,
            self.now_s,
            needs=Needs.LOAD if load_alone else self.policy.needs,
            with_quantiles=spec.slo.given,
            single=single,
        )

    def lease(self, request: Request, instance: Instance, spec: RequestSpec) -> None:
        """Count the request as in progress at the instance from now on."""
        request.lease, request.stage = instance.lease(self.now_s), _ANSWER
        request.work = work_of(spec)
        self.shares.sent(request.arrived.tenant, request.work)

    def give_back(self, request: Request) -> Lease:
        """Give back the request's lease and return it."""
        expect(request, _ANSWER)
        lease, request.lease = lease_of(request), None
        lease.give_back()
        self.shares.ended(request.arrived.tenant, request.work)
        return lease

    def with_time_left(self, request: Request) -> RequestSpec:
        """Return the attempt's `spec` with what is left of its targets."""
        spec = request.trial
        if not spec.slo.given:
            return spec
        return spec._replace(slo=spec.slo.after(self.now_s - request.arrived_s))


def expect(request: Request, stage: Stage) -> None:
    """Raise AssertionError unless the request is in this stage."""
    assert request.stage is stage, f"{request.key} waits for {request.stage}, not {stage}"


def lease_of(request: Request) -> Lease:
    """Return the lease of a dispatched request."""
    assert request.lease is not None, f"{request.key} has no lease"
    return request.lease
