"""Places requests: connects the placement core's driver with asyncio, predictors and engines."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random

from foretell import wire
from foretell.cosched.deadlines import JobClass
from foretell.model import LengthEstimate, RequestSpec
from foretell.openai.conversation import conversation_of
from foretell.openai.kept import KeptResponses
from foretell.openai.needs import need_of
from foretell.openai.refusals import refusal
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.driver import Driver, Record
from foretell.placement.needs import Unfit
from foretell.policy import Needs, Policy
from foretell.provision.demand import Demand
from foretell.services.process.logs import about
from foretell.services.process.loop_clock import LoopClock
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.ids import unique_ids
from foretell.services.scheduler.metrics import SchedulerMetrics
from foretell.services.scheduler.placing.attempt import Attempt, RequestTrace, Traces
from foretell.services.scheduler.placing.estimators import Estimators
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.lateness import Lateness
from foretell.services.scheduler.placing.placing import Placing
from foretell.services.scheduler.placing.pool import Pool
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.placing.tagging import TaggerClient
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

_ONLINE = JobClass.ONLINE


class Placer:
    """Places requests, and implements `ports.Send` for the core's driver. Each request ends with a
    call of `end`, or with a placement method that raises."""

    def __init__(
        self,
        policy: Policy,
        config: PlacementConfig,
        rng: Random,
        *,
        pool: Pool,
        estimators: Estimators,
        tagger: TaggerClient | None,
        metrics: SchedulerMetrics,
        background: Background,
        record: Record = lambda event, now_s: None,
    ) -> None:
        """`record` is called with each event before the core gets it."""
        self._pool = pool
        self.predictors = Predictors(
            pool,
            metrics,
            follows=policy.needs is not Needs.NOTHING,
            listener=self._tell,
            random=rng.random,
        )
        self.core = PlacementCore(policy, config, rng.random, self.predictors)
        self._predicts = policy.needs.prediction
        self._clock = LoopClock()
        self._driver = Driver(self.core, self._clock, self, record)
        self._estimators = estimators
        self._tagger = tagger
        self._metrics = metrics
        self._placement_s = metrics.placement.labels(policy.name)
        self._background = background
        self._keys = unique_ids()
        self._requests: dict[str, Placing] = {}
        self.traces = Traces()
        self.kept = KeptResponses()
        self._lateness = Lateness()
        self._demand = Demand()
        pool.listener = self._hear_of_instance
        if tagger is not None:
            tagger.listener = self._hear_of_length

    async def place(self, placing: Placing, *, recallable: bool = True) -> Attempt:
        """Choose an instance for a new request. `recallable`: the caller will set
        `Attempt.carrier`.

        Raises `ApiError` if no instance is up, if none could begin to answer in time and the
        request asked to be refused then, or if its tenant has too few tokens left.
        """
        request, grant = placing.request, placing.grant
        endpoint, terms = request.endpoint, request.terms
        keeper = self.kept.keeper(request, self._pool.instances)
        placing.arrived_s = placing.began_s = time.perf_counter()
        placing.key = key = next(self._keys)
        placing.is_online = request.job_class is _ONLINE
        longest = self._pool.max_model_len(request.model) if request.unending else None
        spec = self._estimators.describe(key, request, longest, with_prefix=self._predicts)
        tagger = self._tagger if request.text and spec.length.source != "hint" else None
        describe = partial(_described_to_tagger, placing, spec)
        waits = self._predicts and tagger is not None and tagger.wait_s > 0
        if tagger is not None and waits:
            spec = spec._replace(length=await tagger.answer(key, describe) or spec.length)
        if placing.is_online:
            self._demand.arrived(spec)
        if grant is not None:
            answer_tokens = spec.sequences * spec.length.expected_tokens
            grant.reserve(spec.prompt_tokens + (answer_tokens if endpoint.generates else 0))
        placing.trace = RequestTrace(request.request_id, request.model, endpoint.generates)
        placing.need = need = need_of(request, spec.prompt_tokens, keeper)
        self._requests[key] = placing
        waited_s = max(0.0, time.time() - terms.arrived_unix_s) if terms.arrived_unix_s else 0.0
        arrived = events.Arrived(
            spec,
            request.model,
            terms.late,
            waited_s=waited_s,
            among=request.among,
            late_s=self._lateness.seconds,
            recallable=recallable,
            whole=not request.stream,
            foreseeable=endpoint.generates,
            tenant=request.tenant,
            given_priority=request.given_priority,
            need=need,
        )
        attempt = await self._placed(placing, arrived)
        if attempt.prediction is not None:
            if placing.is_online:
                self._demand.placed(time.perf_counter(), attempt.prediction)
            if grant is not None:
                grant.foretell(attempt.prediction.e2e_s)
        if tagger is not None and not waits:
            tagger.ask(key, describe)
        return attempt

    async def retry(self, placing: Placing, output_tokens: int = 0, unfit: Unfit = "") -> Attempt:
        """Choose another instance after an attempt that failed.

        `output_tokens`: tokens of the answer that the client has; the next attempt continues it.
        `unfit`: why the engine cannot serve the request although it is healthy; "": it failed.

        Raises `ApiError` after the last attempt, or if no instance is up.
        """
        if unfit == "model" and placing.attempt is not None:
            placing.attempt.instance.forget_model(placing.request.model)
        return await self._placed(placing, events.Failed(placing.key, output_tokens, unfit))

    async def place_again(self, placing: Placing) -> Attempt:
        """Choose an instance for a request that its carrier has taken back from its engine."""
        return await self._placed(placing, events.Recalled(placing.key))

    def started(self, placing: Placing, goes_on: bool = False) -> None:
        """Note that the engine has sent a first token. `goes_on`: another one could continue."""
        self._tell(events.Started(placing.key, goes_on))

    def close(self) -> None:
        """Stop following predictors and measuring lateness."""
        self._lateness.close()
        self.predictors.close()

    def demand(self) -> dict[str, object]:
        """Arrivals, requests that wait for an instance, and how long answers took."""
        held = self.core.outages.held + self.core.yielding.held
        return self._demand.status(time.perf_counter(), held)

    def predicted_ends_s(self) -> list[float]:
        """The predicted end of each request on an engine, in `time.perf_counter`. Requests
        without a prediction are left out."""
        placed = [(each.began_s, each.attempt) for each in self._requests.values() if each.is_sent]
        return [
            began_s + each.took_s + each.prediction.e2e_s
            for began_s, each in placed
            if each is not None and each.prediction is not None
        ]

    def counts(self, instance_id: str) -> tuple[int, int]:
        """This replica's requests in progress at an instance, and the total it has sent there."""
        if instance_id not in self.core.instances:
            return 0, 0
        known = self.core.instances[instance_id]
        return known.outstanding, known.dispatched_total

    def end(self, placing: Placing, *, broken: bool = False, answered: bool = False) -> None:
        """End a request that was dispatched.

        `broken`: the engine failed; `answered`: the whole answer came from the engine.
        """
        del self._requests[placing.key]
        if answered and not broken and placing.is_online:
            now_s = time.perf_counter()
            self._demand.ended(now_s, now_s - placing.arrived_s)
        self._driver.tell(events.Ended(placing.key, broken, answered))

    def _tell(self, event: events.Event) -> None:
        self._driver.tell(event)

    async def _placed(
        self, placing: Placing, event: events.Arrived | events.Failed | events.Recalled
    ) -> Attempt:
        """Pass `event` to the core. Return once the request is dispatched, or raise its refusal.

        If the caller is cancelled meanwhile, the client counts as having left.
        """
        key = placing.key
        if placing.is_sent:
            placing.is_sent, placing.began_s = False, time.perf_counter()
        try:
            self._driver.tell(event)
            if not placing.is_sent and placing.refusal is None:
                placing.awaited = asyncio.get_running_loop().create_future()
                try:
                    await placing.awaited
                finally:
                    placing.awaited = None
                    self._driver.forget_timer(key)
            if placing.refusal is not None:
                raise placing.refusal
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self._left(placing)
            del self._requests[key]
            raise
        attempt = placing.attempt
        assert attempt is not None, f"{key} was sent"
        self._placement_s.observe(attempt.took_s)
        return attempt

    def _left(self, placing: Placing) -> None:
        """Handle a client that left during the placement."""
        key, attempt = placing.key, placing.attempt
        if placing.is_sent and attempt is not None:
            placing.is_sent = False
            if placing.request.endpoint.generates:
                ended = self.predictors.complete(attempt.instance, attempt.spec, answered=False)
                self._background.spawn(ended)
            self._tell(events.Ended(key))
        elif placing.refusal is None:
            self._tell(events.Gone(key))

    # Called by the core's driver.

    def recall(self, effect: effects.Recall) -> None:
        """Have the carrier take the request back; `place_again` is called then."""
        attempt = self._requests[effect.key].attempt
        if attempt is None or attempt.carrier is None or not attempt.carrier.take_back():
            self._tell(events.Started(effect.key))
        else:
            self._metrics.recalls.labels(attempt.instance_id).inc()

    def give_up(self, effect: effects.GiveUp) -> None:
        """Have the carrier end the attempt, if that is possible; `retry` is called then."""
        attempt = self._requests[effect.key].attempt
        if attempt is not None and attempt.carrier is not None:
            attempt.carrier.give_up()

    def _hear_of_length(self, key: str, length: LengthEstimate) -> None:
        placing = self._requests.get(key)
        if placing is not None and placing.is_sent and placing.attempt is not None:
            announced, under_way = self._estimators.announced, self._under_way()
            placing.attempt.tell(announced, placing.request, under_way, length)
        self._tell(events.Estimated(key, length))

    def _under_way(self) -> Iterator[Attempt]:
        """The attempts in progress, the oldest request's first."""
        for each in self._requests.values():
            if each.is_sent and each.attempt is not None:
                yield each.attempt

    def _hear_of_instance(self, event: events.Event) -> None:
        if isinstance(event, events.InstanceUp):
            self.predictors.follow(event.instance_id)
            event = replace(event, worked_s=self.predictors.worked_s(event.instance_id))
        elif isinstance(event, events.InstanceRemoved):
            self.predictors.leave(event.instance_id)
        self._tell(event)

    def dispatch(self, effect: effects.Dispatch) -> None:
        """Create the attempt that `place`, `retry` or `place_again` returns."""
        placing, decision = self._requests[effect.key], effect.decision
        assert decision is not None, "the core decides what it dispatches"
        inputs = decision.inputs
        attempt = placing.attempt = Attempt(
            key=effect.key,
            number=effect.attempt,
            instance=self._pool.instances[effect.instance_id],
            policy=self.core.policy.name,
            # The inputs are kept apart, because they are dropped sooner.
            decision=decision if inputs is None else decision._replace(inputs=None),
            inputs=inputs,
            spec=effect.spec,
            prediction=effect.prediction,
            tagged=placing.tagged,
            placed_unix_s=time.time(),
            took_s=time.perf_counter() - placing.began_s,
            withheld=self.predictors.withheld(effect.key, effect.instance_id),
        )
        attempt.tell(self._estimators.announced, placing.request, self._under_way())
        placing.is_sent = True
        self.traces.add(placing.trace, attempt)
        if logger.isEnabledFor(logging.DEBUG):
            known = about(placing.request.request_id)
            logger.debug("attempt %d goes to %s", effect.attempt, effect.instance_id, extra=known)
        _decided(placing)

    def sent_elsewhere(self, placing: Placing, instance: PoolInstance) -> Attempt:
        """Return an attempt for a request that a gateway sent to another instance than the chosen.

        The core's lease stays with the chosen instance until the answer ends.
        """
        attempt = placing.attempt
        assert attempt is not None, "it was sent"
        another = replace(
            attempt,
            number=attempt.number + 1,
            instance=instance,
            inputs=None,
            prediction=None,
            announced=None,
            announced_by={},
            expected=None,
            withheld=None,
        )
        self.traces.add(placing.trace, another)
        return another

    def revise(self, effect: effects.Revise) -> None:
        """Notify the predictor of the length that was estimated after the dispatch."""
        attempt = self._requests[effect.key].attempt
        assert attempt is not None, f"{effect.key} was not dispatched"
        attempt.spec = effect.spec
        self._metrics.lengths_revised.inc()
        self.predictors.revise(attempt.instance, effect.spec)

    def refuse(self, effect: effects.Refuse) -> None:
        """Refuse the request: `place`, `retry` or `place_again` raises the error."""
        placing, now_s = self._requests[effect.key], self._clock.now_s()
        placing.refusal = refusal(effect, placing.request, self.core, now_s, self._pool.out_for_s)
        _decided(placing)

    def degraded(self, effect: effects.Degraded) -> None:
        """Count the predictions that a placement had to do without."""
        self._metrics.degraded.labels(effect.missing).inc(effect.count)


def _decided(placing: Placing) -> None:
    if placing.awaited is not None and not placing.awaited.done():  # or it is being cancelled
        placing.awaited.set_result(None)


def _described_to_tagger(placing: Placing, spec: RequestSpec) -> tagger_pb2.TagRequest:
    request, placing.tagged = placing.request, True
    if placing.attempt is not None:
        placing.attempt.tagged = True
    message = tagger_pb2.TagRequest(
        request_id=placing.key,
        model_name=request.model,
        tenant=request.tenant,
        x_request_id=spec.x_request_id,
    )
    wire.conversation_to_proto(conversation_of(request, spec.prompt_tokens), message)
    return message
