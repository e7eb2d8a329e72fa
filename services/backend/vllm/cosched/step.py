"""Plans each step of a scheduler with offline requests: which of them are paused, preempted or
admitted. vLLM's `schedule()` then works as always, with fewer running requests and tokens.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from foretell.cosched import JobClass, Offer, OnlineWatch, best_of, job_of
from foretell.cosched.deadlines import Job, Targets
from foretell.cosched.plan import Allowance, StepPlan, StepWork, plan_step, with_prefill
from foretell.kernel.offline import arrival_s
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs
from foretell.services.backend.vllm.columns import PREDICTED_KEY, clean_prediction
from foretell.services.backend.vllm.cosched.step_times import CalibratedStepTimes
from foretell.services.backend.vllm.cosched.waiting import TwoClassQueue
from foretell.services.backend.vllm.steps import Instant

_log = logging.getLogger("vllm.foretell")


class Planner:
    """Follows one scheduler; `begin` and `end` are called before and after its `schedule()`."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.now: Callable[[], Instant] = Instant.now
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self._blocks_of = manager.coordinator.single_type_managers[0].req_to_blocks
        self._find_cached = manager.coordinator.find_longest_cache_hit
        self._caching = bool(manager.enable_caching)
        self._block_tokens = int(scheduler.block_size)
        self.waiting = TwoClassQueue(scheduler.policy, self.is_offline, self._choose)
        for request in scheduler.waiting:
            self.waiting.add_request(request)
        scheduler.waiting = self.waiting
        self._jobs: dict[str, Job] = {}
        self._unbegun: set[str] = set()
        """Ids of requests with targets that have no token yet."""
        self._updated: tuple[Mapping[str, int], Instant] = {}, Instant(0.0, 0.0)
        self.begun = 0
        """Number of requests with targets that have had their first token."""
        self._offline = 0
        """Offline requests that have not ended."""
        self.online = OnlineWatch()
        self._steps = CalibratedStepTimes(scheduler)
        # About the step that is being planned:
        self._parked: list[Any] = []
        # Before 0.31, vLLM has one limit for running and active requests.
        self._seats = "max_num_active_reqs"
        if not hasattr(scheduler, self._seats):
            self._seats = "max_num_running_reqs"
        self._limits = (scheduler.max_num_scheduled_tokens, getattr(scheduler, self._seats))
        self._failed = False
        self._shape = BatchShape()
        self._open = False
        self._prefill_left = 0

    @property
    def plans(self) -> bool:
        """Whether there is anything to plan."""
        return self._offline > 0 and not self._failed

    def guarded(self, hook: Callable[..., Any], *args: Any) -> Any:
        """Call a hook and return its result; None once one has failed, which ends all planning.

        From then on requests are served in order of arrival, offline ones behind online ones.
        """
        if self._failed:
            return None
        try:
            return hook(*args)
        except Exception:
            # The boundary: whatever is wrong with a plan, the engine must not notice.
            self._failed = True
            _log.warning(
                "Foretell: offline requests are no longer planned; they are served in order of "
                "arrival behind online ones.",
                exc_info=True,
            )
            self.end()
            return None

    def is_offline(self, request: Any) -> bool:
        """Whether the request is of the class offline."""
        job = self._jobs.get(request.request_id)
        return job is not None and job.job_class is JobClass.OFFLINE

    # Events of the scheduler.

    def added(self, request: Any) -> None:
        """Classify a request that is about to be queued."""
        params = request.sampling_params
        fields = (params.extra_args if params else None) or {}
        job = job_of(fields) if fields and not request.resumable else _ONLINE
        self._jobs[request.request_id] = job
        # vLLM's policy `priority` chooses victims by it, and snapshots show the class by it.
        request.priority = job.priority(request.priority)
        if job.job_class is JobClass.OFFLINE:
            self._offline += 1
            return
        self.online.expected.came(job.targets.ttft_s, self.now().monotonic_s)
        if job.targets != _NO_TARGETS:
            self._unbegun.add(request.request_id)

    def ended(self, request_id: str) -> None:
        """Forget a request that has ended."""
        job = self._jobs.pop(request_id, None)
        self._unbegun.discard(request_id)
        self._offline -= job is not None and job.job_class is JobClass.OFFLINE

    def targets(self, request: Any) -> Targets:
        """The targets from which it follows when a request's next token is due."""
        return self._jobs.get(request.request_id, _ONLINE).targets

    def expected_online(self) -> tuple[float, float]:
        """What snapshots say of online requests to come: `online_ttft_s`, `usual_online_blocks`."""
        return self.online.for_snapshot(self.now().monotonic_s)

    def scheduled(self, output: Any, started: Instant) -> None:
        """`schedule()` has returned `output`."""
        self._steps.scheduled(output, started)

    def updating(self, output: Any, started: Instant) -> None:
        """`update_from_output()` is about to apply `output`."""
        self._steps.updating(output, started, every_step=self._offline > 0)
        self._updated = output.num_scheduled_tokens, started

    def updated(self) -> None:
        """`update_from_output()` has returned."""
        computed, at = self._updated
        for request_id in self._unbegun & computed.keys():
            request = self._scheduler.requests.get(request_id)
            if request is not None and request.num_output_tokens > 0:
                self._begin_answer(request, at)
        self._steps.updated(work_left=bool(self._scheduler.running or len(self.waiting)))

    def _begin_answer(self, request: Any, at: Instant) -> None:
        """Base the deadlines of a request's further tokens on its first one, which has come."""
        self._unbegun.discard(request.request_id)
        job = self._jobs[request.request_id]
        self._jobs[request.request_id] = job.begun(at.unix_s - request.arrival_time)
        self.begun += 1

    # Planning of a step.

    def begin(self, now: Instant) -> None:
        """Make room for online requests, and leave offline ones what fits beside them."""
        scheduler = self._scheduler
        self._parked, self._open = [], False
        online = [each for each in scheduler.running if not self.is_offline(each)]
        offline = [each for each in scheduler.running if self.is_offline(each)]
        offline.sort(key=_computed, reverse=True)
        scheduler.running = online + offline
        self.online.observe(lambda: self._held_by(online), now.monotonic_s)
        arriving = self._arriving()
        self._make_room(online, arriving, offline)
        shape = self._online_shape(online, arriving)
        decodes = [each for each in offline if not each.is_prefill_chunk]
        prefills = [each for each in offline if each.is_prefill_chunk]
        plan = self._plan(online, arriving, shape, decodes, prefills, now)
        serve = decodes[: plan.decodes] + (prefills[:1] if plan.prefill_tokens else [])
        self._parked = decodes[plan.decodes :] + prefills[bool(plan.prefill_tokens) :]
        scheduler.running = online + serve
        setattr(scheduler, self._seats, max(0, self._limits[1] - len(self._parked)))
        tokens = shape.tokens + plan.decodes + plan.prefill_tokens
        scheduler.max_num_scheduled_tokens = min(self._limits[0], tokens)
        taken = min(_left(prefills[0]), plan.prefill_tokens) if prefills else 0
        self._prefill_left = plan.prefill_tokens - taken
        seats = self._limits[1] - len(online) - len(offline)
        self._open = not self.waiting.online and self._prefill_left > 0 and seats > 0

    def end(self) -> None:
        """Put everything back that `begin` took away."""
        scheduler = self._scheduler
        scheduler.running.extend(self._parked)
        scheduler.max_num_scheduled_tokens = self._limits[0]
        setattr(scheduler, self._seats, self._limits[1])
        self._parked, self._open = [], False
        self.waiting.forget_choice()

    def _held_by(self, requests: list[Any]) -> int:
        """Number of blocks that `requests` hold; a block that several share counts once."""
        own, shared = 0, set[int]()
        for request in requests:
            blocks = self._blocks_of.get(request.request_id, ())
            # Shared blocks are a prefix: a request with a block of a prompt has those before it.
            first = bisect_left(blocks, True, key=_is_own)
            own += len(blocks) - first
            shared.update(block.block_id for block in blocks[:first])
        return own + len(shared)

    def _arriving(self) -> list[Any]:
        """The waiting online requests that a step has tokens for."""
        tokens, result = self._limits[0], []
        for request in self.waiting.online:
            if tokens <= 0:
                break
            tokens -= request.num_tokens
            result.append(request)
        return result

    def _make_room(self, online: list[Any], arriving: list[Any], offline: list[Any]) -> None:
        """Preempt offline requests, least computed first, until online ones have their room."""
        if not offline:
            return
        blocks = sum(map(self._growth, online))
        seats = 0
        for request in arriving:
            blocks += self._admission_blocks(request)
            seats += 1
        if arriving:
            blocks += self._scheduler.kv_cache_manager.watermark_blocks
        while offline and (
            self._pool.get_num_free_blocks() < blocks
            or self._limits[1] - len(online) - len(offline) < seats
        ):
            self._preempt(offline.pop())

    def _preempt(self, victim: Any) -> None:
        scheduler = self._scheduler
        scheduler.running.remove(victim)
        scheduler._preempt_request(victim, time.monotonic())
        # If it is admitted again at once, it must not look as if it had just been computed.
        scheduler.prev_step_scheduled_req_ids.discard(victim.request_id)

    def _growth(self, request: Any) -> int:
        """Blocks that a running request may need in this step."""
        tokens = min(_left(request), self._limits[0])
        held = len(self._blocks_of.get(request.request_id, ()))
        return int(max(0, -(-(_computed(request) + tokens) // self._block_tokens) - held))

    def _admission_blocks(self, request: Any) -> int:
        """Free blocks that a waiting request takes; cached blocks in use by others cost nothing."""
        needed = -(-int(request.num_tokens) // self._block_tokens)
        if self._caching and request.block_hashes:
            (cached,), *_ = self._find_cached(request.block_hashes, request.num_tokens - 1)
            needed -= sum(block.ref_cnt > 0 for block in cached)
        return needed

    def _online_shape(self, online: list[Any], arriving: list[Any]) -> BatchShape:
        """What online requests could compute in this step, without regard to prefix-cache hits."""
        left = self._limits[0]
        seqs = tokens = pairs = decodes = decode_pairs = 0
        for request in online:
            new, computed = min(left, _left(request)), request.num_computed_tokens
            if new <= 0:
                continue
            left -= new
            if new == 1 and not request.is_prefill_chunk:
                decodes += 1
                decode_pairs += computed + 1
            else:
                seqs, tokens, pairs = seqs + 1, tokens + new, pairs + prefill_pairs(new, computed)
        for request in arriving:
            new = min(left, request.num_tokens)
            if new <= 0:
                break
            left -= new
            seqs, tokens, pairs = seqs + 1, tokens + new, pairs + prefill_pairs(new, 0)
        return BatchShape(seqs, tokens, pairs, decodes, decode_pairs)

    def _plan(
        self,
        online: list[Any],
        arriving: list[Any],
        shape: BatchShape,
        decodes: list[Any],
        prefills: list[Any],
        now: Instant,
    ) -> StepPlan:
        wanted = (0, 0)  # nothing of an offline prompt while an online one waits
        if not arriving and (prefills or len(self.waiting.pool)):
            wanted = (_computed(prefills[0]) if prefills else 0), self._limits[0]
        load = StepWork(shape, [_computed(each) for each in decodes], wanted, self._limits[0])
        plan = plan_step(self._steps.packed(), load, self._allowance([*online, *arriving], now))
        self._shape = BatchShape(
            shape.prefill_seqs,
            shape.prefill_tokens,
            shape.prefill_pairs,
            shape.decode_seqs + plan.decodes,
            shape.decode_pairs + sum(load.contexts[: plan.decodes]) + plan.decodes,
        )
        return plan

    def _allowance(self, online: list[Any], now: Instant) -> Allowance:
        slack_s, as_alone = float("inf"), False
        for request in online:
            targets = self.targets(request)
            if targets == _NO_TARGETS:
                as_alone = True
            else:
                waited_s = now.unix_s - request.arrival_time
                slack_s = min(slack_s, targets.slack_s(waited_s, request.num_output_tokens))
        expected_s = self.online.expected.ttft_s(now.monotonic_s)
        if expected_s == float("inf"):
            return Allowance(slack_s, as_alone)
        shortest_s = self._steps.step_s(BatchShape(decode_seqs=1, decode_pairs=1))
        return Allowance(slack_s, as_alone, arrival_s(shortest_s, expected_s))

    # Admission of offline requests.

    def _choose(self) -> int | None:
        """The key of the waiting offline request that vLLM should admit next; None: none."""
        if self._failed:
            return next(iter(self.waiting.pool))
        chosen: int | None = self.guarded(self._select)
        return chosen

    def _select(self) -> int | None:
        if not self._open or self._prefill_left <= 0:
            return None
        free = self._pool.get_num_free_blocks() - self._kept_free()
        candidates = self.waiting.pool.candidates(self._is_resident)
        offers = [self._offer(each.key, each.resident_blocks, free) for each in candidates]
        best = best_of(filter(None, offers), self._shape.tokens)
        if best is None:
            return None
        self._prefill_left -= best.computed_tokens
        self._shape = with_prefill(self._shape, best.computed_tokens, best.cached_tokens)
        return best.key

    def _kept_free(self) -> float:
        """Blocks that admissions leave free: for bursts, and for running requests to grow."""
        running = self._scheduler.running
        if not running and not self._parked:
            return 0.0
        online = [each for each in running if not self.is_offline(each)]
        return self.online.reserve.blocks(self._held_by(online)) + len(running) + len(self._parked)

    def _offer(self, key: int, resident: int, free: float) -> Offer | None:
        """What admitting a waiting offline request would mean; None if it does not fit."""
        request = self.waiting.request(key)
        if getattr(request, "num_stale_output_tokens", 0):
            return None  # vLLM would skip it until its output in flight has come
        size = self._block_tokens
        resident = min(resident, (request.num_tokens - 1) // size)
        hashes = self.waiting.pool.hashes(key)[:resident]
        unused = sum(self._cached_block(each).ref_cnt == 0 for each in hashes)
        new = -(-request.num_tokens // size) - resident
        extra = request.sampling_params.extra_args or {}
        expected = min(request.max_tokens, clean_prediction(extra.get(PREDICTED_KEY)))
        if new + unused + expected / size > free and self._scheduler.running:
            return None
        cached = resident * size
        tokens = min(self._prefill_left, request.num_tokens - cached)
        lost = max(0, new - self._pool.get_num_free_blocks()) * size
        step_s = self._steps.step_s(with_prefill(self._shape, tokens, cached))
        return Offer(key, cached, tokens, lost, step_s)

    def _is_resident(self, block_hash: bytes) -> bool:
        return self._cached_block(block_hash) is not None

    def _cached_block(self, block_hash: bytes) -> Any:
        cached = self._pool.get_cached_block(block_hash, [0])
        return cached[0] if cached else None


_ONLINE = job_of({})
_NO_TARGETS = _ONLINE.targets


def _is_own(block: Any) -> bool:
    return bool(block.ref_cnt == 1)


def _computed(request: Any) -> int:
    return int(request.num_computed_tokens)


def _left(request: Any) -> int:
    """Tokens that a running request could compute."""
    return int(
        request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    )
