"""Places requests: the placement core's driver before asyncio, real predictors and engines."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from foretell import wire
from foretell.cosched.deadlines import JobClass
from foretell.length import ConversationTokens, PromptTokenEstimator
from foretell.model import LengthEstimate, RequestSpec
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.driver import Driver, Record
from foretell.placement.needs import Need, Unfit
from foretell.placement.request import Stage
from foretell.policy import Needs, Policy
from foretell.services.process.logs import about, all_about
from foretell.services.process.loop_clock import LoopClock
from foretell.services.scheduler.api.headers import unique_ids
from foretell.services.scheduler.api.parsing import ApiRequest
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.placing.attempt import Attempt, Trace, Traces
from foretell.services.scheduler.placing.conversation import PromptCounter, conversation_of, need_of
from foretell.services.scheduler.placing.demand import Demand
from foretell.services.scheduler.placing.kept import KeptResponses
from foretell.services.scheduler.placing.lateness import Lateness
from foretell.services.scheduler.placing.lengths import Lengths
from foretell.services.scheduler.placing.pool import Instance, Pool
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.placing.prefixes import Prefix, continued, prefix_of
from foretell.services.scheduler.placing.refusals import refusal
from foretell.services.scheduler.placing.tagging import TaggerClient
from foretell.services.scheduler.tenants.quota import Grant
from foretell.telemetry import SchedulerMetrics, series
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

_NO_PREFIX = Prefix()


@dataclass(slots=True, eq=False)
class _Request:
    """The facts about a request that placing it needs until it ends."""

    parsed: ApiRequest
    grant: Grant | None
    """What its tenant has left; None: it has no limits."""
    began_s: float
    """When its placement began: of a request that is placed again, the latest one."""
    arrived_s: float
    trace: Trace
    need: Need
    """What it needs of its engine."""
    attempt: Attempt | None = None
    """The one under way."""


@dataclass(frozen=True, slots=True)
class Estimators:
    """The estimators of prompt and output lengths, which learn from finished requests."""

    lengths: Lengths
    prompt_tokens: PromptTokenEstimator
    counter: PromptCounter
    conversation_tokens: ConversationTokens


class Placer:
    """Every request that is placed must be ended, by `end` or by a `retry` that raises.

    Whoever wants a request placed awaits it. To the core's driver it is `ports.Send`.
    """

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
        """`record` is told each event before the core is."""
        self._pool = pool
        self.predictors = Predictors(
            pool,
            metrics,
            follows=policy.needs is not Needs.NOTHING,
            listener=self._tell,
            random=rng.random,
        )
        self.core = PlacementCore(policy, config, rng.random, self.predictors)
        self._clock = LoopClock()
        self._driver = Driver(self.core, self._clock, self, record)
        self._awaited: dict[str, asyncio.Future[Attempt]] = {}
        self._estimators = estimators
        self._tagger = tagger
        self._metrics = metrics
        self._placement_s, self._degradations = series(metrics.placement), series(metrics.degraded)
        self._background = background
        self._keys = unique_ids()
        self._requests: dict[str, _Request] = {}
        self.traces = Traces()
        self.kept = KeptResponses()
        self._lateness = Lateness()
        self._demand = Demand()
        pool.listener = self._hear_of_instance
        if tagger is not None:
            tagger.listener = self._hear_of_length

    async def place(
        self, parsed: ApiRequest, grant: Grant | None = None, *, recallable: bool = True
    ) -> Attempt:
        """Choose an instance for a new request.

        `grant`: what its tenant has left; None: it has no limits. `recallable`: its sender will
        set `Attempt.carrier`.

        Raises `ApiError` if none is up, if none could begin to answer in time and the request
        would rather be told, or if its tenant has too few tokens left.
        """
        keeper = self.kept.keeper(parsed, self._pool.instances)
        # An id of its own: clients may use one X-Request-Id for many requests.
        key = next(self._keys)
        began_s = time.perf_counter()
        with all_about(parsed.request_id):
            spec = self._described(parsed, key)
        online = parsed.job_class is JobClass.ONLINE
        if online:
            self._demand.arrived(spec)
        if grant is not None:
            answer_tokens = spec.sequences * spec.length.expected_tokens
            generates = parsed.endpoint.generates
            grant.reserve(spec.prompt_tokens + (answer_tokens if generates else 0))
        trace = Trace(parsed.request_id, parsed.model, parsed.endpoint.generates)
        need = need_of(parsed, spec.prompt_tokens, keeper)
        self._requests[key] = _Request(parsed, grant, began_s, began_s, trace, need)
        waited_s = 0.0
        if parsed.terms.arrived_unix_s:
            waited_s = max(0.0, time.time() - parsed.terms.arrived_unix_s)
        arrived = events.Arrived(
            spec,
            parsed.model,
            parsed.terms.late,
            waited_s=waited_s,
            among=parsed.among,
            late_s=self._lateness.seconds,
            recallable=recallable,
            whole=not parsed.stream,
            foreseeable=parsed.endpoint.generates,
            tenant=parsed.tenant,
            need=need,
        )
        attempt = await self._place(key, arrived)
        if online:
            self._demand.placed(time.perf_counter(), attempt.prediction)
        if grant is not None and attempt.prediction is not None:
            grant.foretell(attempt.prediction.e2e_s)
        if self._tagger is not None and parsed.text and spec.length.source != "hint":
            self._tagger.ask(key, partial(_described_to_tagger, parsed, attempt))
        return attempt

    async def retry(self, attempt: Attempt, output_tokens: int = 0, unfit: Unfit = "") -> Attempt:
        """Choose another instance after an attempt that failed.

        `output_tokens`: of the answer that the client has; the next attempt goes on after them.
        `unfit`: the engine is well, and cannot serve the request for this reason.

        Raises `ApiError` after the last attempt, or if no instance is up.
        """
        request = self._requests[attempt.key]
        if unfit == "model":
            attempt.instance.forget_model(request.parsed.model)
        request.attempt, request.began_s = None, time.perf_counter()
        return await self._place(attempt.key, events.Failed(attempt.key, output_tokens, unfit))

    async def place_again(self, attempt: Attempt) -> Attempt:
        """The instance for a request that its carrier has taken back from its engine."""
        request = self._requests[attempt.key]
        request.attempt, request.began_s = None, time.perf_counter()
        return await self._place(attempt.key, events.Recalled(attempt.key))

    def need(self, attempt: Attempt) -> Need:
        """What the request of an attempt that has not ended needs of its engine."""
        return self._requests[attempt.key].need

    def started(self, attempt: Attempt, goes_on: bool = False) -> None:
        """The engine has answered with a first token; `goes_on`: another one could go on."""
        self._tell(events.Started(attempt.key, goes_on))

    def close(self) -> None:
        """Follow and watch nothing any more."""
        self._lateness.close()
        self.predictors.close()

    def demand(self) -> dict[str, object]:
        """What has come, what waits for an instance and how long answers took."""
        return self._demand.told(time.perf_counter(), len(self.core.without_instance))

    def predicted_ends_s(self) -> list[float]:
        """When each request that is with an engine was predicted to end, as far as it was, in
        `time.perf_counter`."""
        placed = [(r.began_s, r.attempt) for r in self._requests.values()]
        return [
            began_s + each.took_s + each.prediction.e2e_s
            for began_s, each in placed
            if each is not None and each.prediction is not None
        ]

    def counts(self, instance_id: str) -> tuple[int, int]:
        """This replica's requests in progress at an instance, and all that it has sent there."""
        if instance_id not in self.core.instances:
            return 0, 0
        known = self.core.instances[instance_id]
        return known.outstanding, known.dispatched_total

    def end(self, attempt: Attempt, *, broken: bool = False, answered: bool = False) -> None:
        """The answer has ended, well or badly.

        `broken`: the engine failed in the midst of it; `answered`: the client did not leave.
        """
        request = self._requests.pop(attempt.key)
        if answered and not broken and request.parsed.job_class is JobClass.ONLINE:
            now_s = time.perf_counter()
            self._demand.ended(now_s, now_s - request.arrived_s)
        self._tell(events.Ended(attempt.key, broken, answered))

    def _tell(self, event: events.Event) -> None:
        self._driver.tell(event)

    async def _place(
        self, key: str, event: events.Arrived | events.Failed | events.Recalled
    ) -> Attempt:
        """Tell the core of `event`; return once the request is dispatched, or raise why not.

        A caller that is cancelled meanwhile counts as a client that has left.
        """
        found: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        self._awaited[key] = found
        try:
            self._tell(event)
            attempt = await found
        except asyncio.CancelledError:
            self._left(key)
            del self._requests[key]
            raise
        except BaseException:  # refused
            del self._requests[key]
            raise
        finally:
            del self._awaited[key]
            self._driver.forget_timer(key)
        self._placement_s(attempt.policy).observe(attempt.took_s)
        return attempt

    def _described(self, parsed: ApiRequest, key: str) -> RequestSpec:
        """The request as predictors see it: its prompt counted or estimated."""
        known = self._estimators
        prompt_tokens = (
            parsed.token_ids
            or known.counter.count(parsed)
            or known.prompt_tokens.estimate(parsed.model, parsed.characters, len(parsed.messages))
        )
        longest = self._pool.max_model_len(parsed.model) if parsed.unending else None
        prefix = _NO_PREFIX
        if self.core.policy.needs.prediction and parsed.endpoint.generates:
            prefix = prefix_of(parsed, prompt_tokens)
            if conversation_tokens := known.conversation_tokens.of(
                parsed.model, prefix.turn.before
            ):
                prompt_tokens, prefix = continued(prefix, prompt_tokens, conversation_tokens)
        return RequestSpec(
            request_id=key,
            prompt_tokens=prompt_tokens,
            max_tokens=parsed.max_tokens,
            length=known.lengths.estimate(key, parsed, prompt_tokens, longest),
            priority=parsed.priority,
            sequences=parsed.sequences,
            prefix=prefix.hashes,
            prefix_chunk_tokens=prefix.chunk_tokens,
            turn=prefix.turn,
            slo=parsed.terms.slo,
            x_request_id=parsed.request_id,
        )

    def _left(self, key: str) -> None:
        """The client of a request that is awaited has left."""
        stage = self.core.stage(key)
        if stage is Stage.ANSWER:
            self._unsent(key)
            self._tell(events.Ended(key))
        elif stage is not None:
            self._tell(events.Gone(key))

    # What the core's driver has done.

    def recall(self, effect: effects.Recall) -> None:
        """Take the request back; whoever awaits its answer tells `Recalled` then."""
        if not self._take_back(effect.key):
            self._tell(events.Started(effect.key))

    def _take_back(self, key: str) -> bool:
        attempt = self._requests[key].attempt
        if attempt is None or attempt.carrier is None or not attempt.carrier.take_back():
            return False
        self._metrics.recalls.labels(attempt.instance_id).inc()
        return True

    def give_up(self, effect: effects.GiveUp) -> None:
        """End the attempt; whoever awaits its answer tells `Failed` then."""
        attempt = self._requests[effect.key].attempt
        if attempt is not None and attempt.carrier is not None:
            attempt.carrier.give_up()

    def _hear_of_length(self, key: str, length: LengthEstimate) -> None:
        self._tell(events.Estimated(key, length))

    def _hear_of_instance(self, event: events.Event) -> None:
        if isinstance(event, events.InstanceUp):
            self.predictors.follow(event.instance_id)
            event = replace(event, worked_s=self.predictors.worked_s(event.instance_id))
        elif isinstance(event, events.InstanceRemoved):
            self.predictors.leave(event.instance_id)
        self._tell(event)

    def dispatch(self, effect: effects.Dispatch) -> None:
        """Whoever awaits the placement sends the request."""
        request = self._requests[effect.key]
        assert effect.decision is not None, "the core decides what it dispatches"
        attempt = request.attempt = Attempt(
            key=effect.key,
            number=effect.attempt,
            instance=self._pool.instances[effect.instance_id],
            policy=self.core.policy.name,
            decision=effect.decision._replace(inputs=None),  # which are forgotten sooner
            inputs=effect.decision.inputs,
            spec=effect.spec,
            prediction=effect.prediction,
            placed_unix_s=time.time(),
            took_s=time.perf_counter() - request.began_s,
        )
        self.traces.add(request.trace, attempt)
        if logger.isEnabledFor(logging.DEBUG):
            known = about(request.parsed.request_id)
            logger.debug("attempt %d goes to %s", effect.attempt, effect.instance_id, extra=known)
        awaited = self._awaited[effect.key]
        if not awaited.done():  # otherwise its caller is being cancelled
            awaited.set_result(attempt)

    def sent_elsewhere(self, attempt: Attempt, instance: Instance) -> Attempt:
        """A gateway has sent the request to another instance than the one that was chosen.

        Its lease stays where it was: the answer's end gives it back.
        """
        another = replace(
            attempt, number=attempt.number + 1, instance=instance, inputs=None, prediction=None
        )
        self.traces.add(self._requests[attempt.key].trace, another)
        return another

    def revise(self, effect: effects.Revise) -> None:
        """Notify the predictor of what else is known of the request."""
        attempt = self._attempt(effect.key)
        attempt.spec = effect.spec
        self._metrics.lengths_revised.inc()
        self.predictors.revise(attempt.instance, effect.spec)

    def _attempt(self, key: str) -> Attempt:
        attempt = self._requests[key].attempt
        assert attempt is not None, f"{key} was not dispatched"
        return attempt

    def _unsent(self, key: str) -> None:
        attempt = self._attempt(key)
        if not self._requests[key].parsed.endpoint.generates:
            return
        ended = self.predictors.complete(attempt.instance, attempt.spec, answered=False)
        self._background.spawn(ended)

    def refuse(self, effect: effects.Refuse) -> None:
        """Whoever awaits the placement gets an error."""
        parsed, awaited = self._requests[effect.key].parsed, self._awaited[effect.key]
        if not awaited.done():
            now_s = self._clock.now_s()
            awaited.set_exception(refusal(effect, parsed, self.core, self._pool, now_s))

    def degraded(self, effect: effects.Degraded) -> None:
        """Count it."""
        self._degradations(effect.missing).inc(effect.count)


def _described_to_tagger(parsed: ApiRequest, attempt: Attempt) -> tagger_pb2.TagRequest:
    attempt.tagged = True
    message = tagger_pb2.TagRequest(
        request_id=attempt.key,
        model_name=parsed.model,
        tenant=parsed.tenant,
        x_request_id=attempt.spec.x_request_id,
    )
    wire.conversation_to_proto(conversation_of(parsed, attempt.spec.prompt_tokens), message)
    return message
