"""Places requests: the placement core's driver before asyncio, real predictors and engines."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from foretell import wire
from foretell.cosched.deadlines import JobClass
from foretell.length import PromptTokenEstimator, SpokenTokens
from foretell.model import LengthEstimate, RequestSpec
from foretell.placement import PlacementConfig, PlacementCore, effects, events
from foretell.placement.decision import Decision
from foretell.placement.driver import Driver, Record
from foretell.placement.needs import Need, Unfit
from foretell.placement.request import Stage
from foretell.policy import Needs, Policy
from foretell.services.process.logs import about, all_about
from foretell.services.process.loop_clock import LoopClock
from foretell.services.scheduler.background import Background
from foretell.services.scheduler.http.parsing import ParsedRequest
from foretell.services.scheduler.ids import unique_ids
from foretell.services.scheduler.placing.conversation import conversation_of
from foretell.services.scheduler.placing.demand import Demand
from foretell.services.scheduler.placing.kept import KeptResponses
from foretell.services.scheduler.placing.lateness import Lateness
from foretell.services.scheduler.placing.lengths import Lengths
from foretell.services.scheduler.placing.needs import need_of
from foretell.services.scheduler.placing.placement import Placement
from foretell.services.scheduler.placing.pool import Pool
from foretell.services.scheduler.placing.predictors import Predictors
from foretell.services.scheduler.placing.prefixes import Prefix, continued, prefix_of
from foretell.services.scheduler.placing.refusals import refusal
from foretell.services.scheduler.placing.stories import Chapter, Stories, Story
from foretell.services.scheduler.placing.tagging import TaggerClient
from foretell.services.scheduler.placing.tokens import PromptCounter
from foretell.telemetry import SchedulerMetrics, series
from foretell.v1 import tagger_pb2

logger = logging.getLogger(__name__)

_NO_PREFIX = Prefix()


@dataclass(slots=True, eq=False)
class _Request:
    """The facts about a request that placing it needs until it ends."""

    parsed: ParsedRequest
    began_s: float
    """When its placement began: of a request that is placed again, the latest one."""
    arrived_s: float
    story: Story
    need: Need
    """What it needs of its engine."""
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Estimators:
    """The estimators of prompt and output lengths, which learn from finished requests."""

    lengths: Lengths
    prompt_tokens: PromptTokenEstimator
    counter: PromptCounter
    spoken: SpokenTokens


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
        self._awaited: dict[str, asyncio.Future[Placement]] = {}
        self._estimators = estimators
        self._tagger = tagger
        self._metrics = metrics
        self._placement_s, self._degradations = series(metrics.placement), series(metrics.degraded)
        self._background = background
        self._keys = unique_ids()
        self._requests: dict[str, _Request] = {}
        self.stories = Stories()
        self.kept = KeptResponses()
        self._lateness = Lateness()
        self._demand = Demand()
        pool.listener = self._hear_of_instance
        if tagger is not None:
            tagger.listener = self._hear_of_length

    async def place(
        self, parsed: ParsedRequest, request_id: str, *, recallable: bool = True
    ) -> Placement:
        """Choose an instance for a new request, which its client knows by `request_id`.

        `recallable`: its sender will set `Placement.take_back`.

        Raises `ApiError` if none is up, if none could begin to answer in time and the request
        would rather be told, or if its tenant has too few tokens left.
        """
        # An id of its own: clients may use one X-Request-Id for many requests.
        key = next(self._keys)
        began_s = time.perf_counter()
        with all_about(request_id):
            spec = self._described(parsed, key, request_id)
        online = parsed.job_class is JobClass.ONLINE
        if online:
            self._demand.arrived(spec)
        if parsed.grant is not None:
            answer_tokens = spec.sequences * spec.length.expected_tokens
            generates = parsed.endpoint.generates
            parsed.grant.reserve(spec.prompt_tokens + (answer_tokens if generates else 0))
        keeper = self.kept.keeper(parsed, self._pool.instances)
        story = Story(request_id, parsed.model)
        need = need_of(parsed, spec.prompt_tokens, keeper)
        self._requests[key] = _Request(parsed, began_s, began_s, story, need)
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
        placement = await self._place(key, arrived)
        if online:
            self._demand.placed(time.perf_counter(), placement.prediction)
        if parsed.grant is not None and placement.prediction is not None:
            parsed.grant.foretell(placement.prediction.e2e_s)
        if self._tagger is not None and parsed.text and spec.length.source != "hint":
            self._tagger.ask(key, partial(_described_to_tagger, parsed, placement))
        return placement

    async def retry(
        self, placement: Placement, output_tokens: int = 0, unfit: Unfit = ""
    ) -> Placement:
        """Choose another instance after an attempt that failed.

        `output_tokens`: of the answer that the client has; the next attempt goes on after them.
        `unfit`: the engine is well, and cannot serve the request for this reason.

        Raises `ApiError` after the last attempt, or if no instance is up.
        """
        if unfit == "model":
            placement.instance.forget_model(placement.model)
        request = self._requests[placement.key]
        request.placement, request.began_s = None, time.perf_counter()
        return await self._place(placement.key, events.Failed(placement.key, output_tokens, unfit))

    async def place_again(self, placement: Placement) -> Placement:
        """The instance for a request that `Placement.take_back` has taken back from its engine."""
        request = self._requests[placement.key]
        request.placement, request.began_s = None, time.perf_counter()
        return await self._place(placement.key, events.Recalled(placement.key))

    def started(self, placement: Placement, goes_on: bool = False) -> None:
        """The engine has answered with a first token; `goes_on`: another one could go on."""
        self._tell(events.Started(placement.key, goes_on))

    def close(self) -> None:
        """Follow and watch nothing any more."""
        self._lateness.close()
        self.predictors.close()

    def demand(self) -> dict[str, object]:
        """What has come, what waits for an instance and how long answers took."""
        return self._demand.told(time.perf_counter(), self.core.held)

    def foretold_ends_s(self) -> list[float]:
        """When each request that is with an engine was foretold to end, as far as it was, in
        `time.perf_counter`."""
        placed = [(r.began_s, r.placement) for r in self._requests.values()]
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

    def end(self, placement: Placement, *, broken: bool = False, answered: bool = False) -> None:
        """The answer has ended, well or badly.

        `broken`: the engine failed in the midst of it; `answered`: the client did not leave.
        """
        request = self._requests.pop(placement.key)
        if answered and not broken and request.parsed.job_class is JobClass.ONLINE:
            now_s = time.perf_counter()
            self._demand.ended(now_s, now_s - request.arrived_s)
        self._tell(events.Ended(placement.key, broken, answered))

    def _tell(self, event: events.Event) -> None:
        self._driver.tell(event)

    async def _place(
        self, key: str, event: events.Arrived | events.Failed | events.Recalled
    ) -> Placement:
        """Tell the core of `event`; return once the request is dispatched, or raise why not.

        A caller that is cancelled meanwhile counts as a client that has left.
        """
        found: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._awaited[key] = found
        try:
            self._tell(event)
            placement = await found
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
        self._placement_s(placement.policy).observe(placement.took_s)
        return placement

    def _described(self, parsed: ParsedRequest, key: str, request_id: str) -> RequestSpec:
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
            if spoken := known.spoken.of(parsed.model, prefix.turn.before):
                prompt_tokens, prefix = continued(prefix, prompt_tokens, spoken)
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
            x_request_id=request_id,
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
        placement = self._requests[key].placement
        if placement is None or placement.take_back is None or not placement.take_back():
            return False
        self._metrics.recalls.labels(placement.instance.config.instance_id).inc()
        return True

    def give_up(self, effect: effects.GiveUp) -> None:
        """End the attempt; whoever awaits its answer tells `Failed` then."""
        placement = self._requests[effect.key].placement
        if placement is not None and placement.give_up is not None:
            placement.give_up()

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
        placement = request.placement = Placement(
            key=effect.key,
            instance=self._pool.instances[effect.instance_id],
            spec=effect.spec,
            prediction=effect.prediction,
            policy=self.core.policy.name,
            attempt=effect.attempt,
            decided_unix_s=time.time(),
            took_s=time.perf_counter() - request.began_s,
            need=request.need,
            model=request.parsed.model,
        )
        assert effect.decision is not None, "the core decides what it dispatches"
        self._remember(request, placement, effect.decision)
        if logger.isEnabledFor(logging.DEBUG):
            known = about(request.story.request_id)
            logger.debug("attempt %d goes to %s", effect.attempt, effect.instance_id, extra=known)
        awaited = self._awaited[effect.key]
        if not awaited.done():  # otherwise its caller is being cancelled
            awaited.set_result(placement)

    def _remember(self, request: _Request, placement: Placement, decision: Decision) -> None:
        placement.chapter = chapter = Chapter(
            decision._replace(inputs=None),  # which are forgotten sooner
            decision.inputs,
            placement.policy,
            placement.attempt,
            placement.instance.config.instance_id,
            placement.instance.emulated,
            placement.decided_unix_s,
            placement.took_s,
        )
        self.stories.add(request.story, chapter)

    def sent_elsewhere(self, placement: Placement) -> None:
        """A gateway has sent the request to another instance than the one that was chosen."""
        chapter = placement.chapter
        if chapter is not None:
            placement.chapter = chapter = replace(
                chapter,
                scene=None,
                attempt=placement.attempt,
                instance_id=placement.instance.config.instance_id,
                emulated=placement.instance.emulated,
                ended=None,
            )
            self.stories.add(self._requests[placement.key].story, chapter)

    def revise(self, effect: effects.Revise) -> None:
        """Notify the predictor of what else is known of the request."""
        placement = self._placement(effect.key)
        placement.spec = effect.spec
        self._metrics.lengths_revised.inc()
        self.predictors.revise(placement.instance, effect.spec)

    def _placement(self, key: str) -> Placement:
        placement = self._requests[key].placement
        assert placement is not None, f"{key} was not dispatched"
        return placement

    def _unsent(self, key: str) -> None:
        placement = self._placement(key)
        if not self._requests[key].parsed.endpoint.generates:
            return
        ended = self.predictors.complete(placement.instance, placement.spec, answered=False)
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


def _described_to_tagger(parsed: ParsedRequest, placement: Placement) -> tagger_pb2.TagRequest:
    placement.tagged = True
    message = tagger_pb2.TagRequest(
        request_id=placement.key,
        model_name=parsed.model,
        tenant=parsed.tenant,
        x_request_id=placement.spec.x_request_id,
    )
    wire.conversation_to_proto(conversation_of(parsed, placement.spec.prompt_tokens), message)
    return message
