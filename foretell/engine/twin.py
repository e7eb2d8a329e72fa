"""vLLM V1's scheduler as a deterministic state machine.

`schedule()` and `complete()` mirror `Scheduler.schedule` and `Scheduler.update_from_output` of
`vllm/v1/core/sched/scheduler.py` (0.32) for full attention without speculation or connectors:
FCFS and priority queues, the token budget, chunked prefill, `max_num_seqs`, KV blocks, the
watermark, full-sequence reservation and preemption by recompute. Prefix-cache hits are modelled
when the twin is given a `BlockPool`; otherwise every admission computes its whole prompt.
`async_twin` adds the rules of async scheduling.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import ClassVar

from foretell.engine.batch import Batch, Outcome, advance
from foretell.engine.kv import Block, BlockCount
from foretell.engine.sequence import Sequence
from foretell.model import BatchShape, EngineConfig

_NOTHING = BatchShape()


class Twin:
    """The scheduler's whole state: who runs, who waits, which blocks are free."""

    max_steps_in_flight: ClassVar[int] = 1

    def __init__(
        self,
        config: EngineConfig,
        running: Iterable[Sequence] = (),
        waiting: Iterable[Sequence] = (),
        blocks: BlockCount | None = None,
    ) -> None:
        """`blocks` is by default a count of blocks that are all free."""
        self.config = config
        self.running: list[Sequence] = list(running)
        self.waiting: deque[Sequence] = deque(waiting)
        self._kv = blocks or BlockCount(config.block_size_tokens, config.total_blocks)
        # `num_gpu_blocks` includes the null block (KVCacheManager.watermark_blocks).
        self._watermark_blocks = int(config.watermark_ratio * (config.total_blocks + 1))
        self._max_running = config.max_num_active_seqs or config.max_num_seqs
        self._max_batched_tokens = config.max_num_batched_tokens or config.max_num_scheduled_tokens

    @property
    def free_blocks(self) -> int:
        """KV blocks that no sequence holds; with prefix caching some may be hit."""
        return self._kv.free

    @property
    def idle(self) -> bool:
        """Neither running nor waiting requests."""
        return not self.running and not self.waiting

    def add(self, seq: Sequence) -> None:
        """A new request joins the waiting queue."""
        if self.config.policy == "priority":
            insort(self.waiting, seq, key=_queue_key)
        else:
            self.waiting.append(seq)

    def abort(self, request_id: str) -> bool:
        """Drop every sequence of `request_id`; False when there is none."""
        running = [seq for seq in self.running if seq.request_id == request_id]
        waiting = [seq for seq in self.waiting if seq.request_id == request_id]
        for seq in running:
            self.running.remove(seq)
            self._kv.release(seq)
            seq.ended = True
        for seq in waiting:
            self.waiting.remove(seq)
            seq.ended = True
        return bool(running or waiting)

    def schedule(self) -> Batch | None:
        """Choose the next step's tokens, or None when nothing can change.

        A batch may be empty when all it did was preempt. The caller must `complete()` a batch
        before it schedules the next.
        """
        batch = Batch([])
        threshold = self._long_prefill_threshold()
        budget = self._schedule_running(batch, threshold)
        if not batch.preempted:
            self._schedule_waiting(batch, budget, threshold)
        if not batch.scheduled and not batch.preempted:
            return None
        batch.shape = advance(batch.scheduled)
        return batch

    def complete(self, batch: Batch) -> Outcome:
        """Apply a step's outputs: one token for every sequence whose KV has caught up."""
        sampled: list[Sequence] = []
        finished: list[Sequence] = []
        longest = self.config.max_model_len
        for seq, _ in batch.scheduled:
            prompt, output = seq.prompt_tokens, seq.output_tokens
            if seq.ended or seq.computed_tokens < prompt + output:
                continue  # aborted while in flight, or a prefill chunk that is not the last
            seq.output_tokens = output = output + 1
            sampled.append(seq)
            if output >= seq.stop_after or prompt + output >= longest:
                finished.append(seq)
        self._retire(finished)
        return Outcome(sampled, finished)

    def decode_run(self, max_steps: int) -> tuple[int, BatchShape]:
        """How many of the next steps are certain to be the same pure-decode batch, and its shape.

        At most `max_steps`, and no further than the first finish. 0 when the next step may
        admit, prefill or preempt. Each step adds one token, so one pair, to every sequence.
        """
        running, config = self.running, self.config
        count = len(running)
        if not count or count > config.max_num_scheduled_tokens or self._kv.knows_content:
            return 0, _NOTHING  # with prefix caching, what decodes may become a waiting one's hit
        steps, pairs, longest = max_steps, count, config.max_model_len
        for seq in running:
            output, computed = seq.output_tokens, seq.computed_tokens
            tokens = seq.prompt_tokens + output
            if not output or computed != tokens - 1:
                return 0, _NOTHING
            pairs += computed
            left = seq.stop_after - output
            if left < steps:
                steps = left
            if longest - tokens < steps:
                steps = longest - tokens
        # While only decoding, free blocks shrink: a head that does not fit now will not fit later.
        budget = config.max_num_scheduled_tokens - count
        room = budget > 0 and count < self._max_running
        if room and self.waiting:
            threshold = self._long_prefill_threshold()
            if self._admissible_tokens(self.waiting[0], budget, threshold, ()):
                return 0, _NOTHING
        # Every sequence opens at most this many blocks; only when that is too many, count exactly.
        at_most, free = count * (steps // config.block_size_tokens + 1), self._kv.free
        if at_most > free and self._decode_blocks(steps) > free:
            steps = bisect_right(range(1, steps + 1), free, key=self._decode_blocks)
        return max(0, steps), BatchShape(decode_seqs=count, decode_pairs=pairs)

    def advance_decode(self, steps: int) -> list[Sequence]:
        """Do `steps` pure-decode steps at once (see `decode_run`); returns who finished."""
        block_size, longest = self.config.block_size_tokens, self.config.max_model_len
        finished, taken = [], 0
        for seq in self.running:
            seq.output_tokens = output = seq.output_tokens + steps
            seq.computed_tokens = computed = seq.computed_tokens + steps
            blocks = -(-computed // block_size)
            if blocks != seq.blocks:
                taken += blocks - seq.blocks
                seq.blocks = blocks
            if output >= seq.stop_after or seq.prompt_tokens + output >= longest:
                finished.append(seq)
        self._kv.take(taken)
        self._retire(finished)
        return finished

    def check(self) -> None:
        """Blocks are conserved and limits kept, counted anew; a violation is a bug in the twin."""
        self._kv.check(self.running)
        assert not any(seq.blocks for seq in self.waiting), "a waiting request holds blocks"
        assert len(self.running) <= self._max_running, "too many requests run"

    def _schedule_running(self, batch: Batch, threshold: int) -> int:
        """Schedule running requests in list order; returns the token budget left."""
        budget = self.config.max_num_scheduled_tokens
        longest, grow = self.config.max_model_len, self._kv.grow
        index = 0
        while index < len(self.running) and budget > 0:
            seq = self.running[index]
            unknown = seq.placeholders
            if unknown and self._is_foreseen_to_end(seq):
                index += 1
                continue
            tokens = seq.prompt_tokens + seq.output_tokens + unknown - seq.computed_tokens
            if 0 < threshold < tokens:
                tokens = threshold
            if tokens > 1:
                tokens = min(tokens, budget)
            if tokens > longest - seq.computed_tokens - 1:
                tokens = longest - seq.computed_tokens - 1
            if tokens <= 0:
                index += 1
                continue
            while not grow(seq, seq.computed_tokens + tokens):
                victim = self._victim()
                index, refund = self._preempt(victim, batch, index)
                budget += refund
                if victim is seq:
                    return budget
            batch.scheduled.append((seq, tokens))
            budget -= tokens
            index += 1
        assert budget >= 0, "token budget exceeded"
        return budget

    def _schedule_waiting(self, batch: Batch, budget: int, threshold: int) -> None:
        """Admit from the head of the queue until something does not fit."""
        waiting, index = self.waiting, 0
        while budget > 0 and index < len(waiting) and len(self.running) < self._max_running:
            seq = waiting[index]
            if seq.stale_tokens:  # its output in flight decides where it must continue
                index += 1
                continue
            hits = self._kv.find(seq)
            tokens = self._admissible_tokens(seq, budget, threshold, hits)
            if not tokens:
                return
            del waiting[index]
            self._kv.admit(seq, hits)
            seq.cached_tokens = seq.computed_tokens = len(hits) * self.config.block_size_tokens
            grown = self._kv.grow(seq, seq.computed_tokens + tokens)
            assert grown, "admission was checked"
            self.running.append(seq)
            batch.scheduled.append((seq, tokens))
            batch.admitted.append(seq)
            budget -= tokens

    def _admissible_tokens(
        self, seq: Sequence, budget: int, threshold: int, hits: Seq[Block]
    ) -> int:
        """Tokens a waiting request would compute if admitted now; 0 when it must wait."""
        config = self.config
        cached = len(hits) * config.block_size_tokens
        tokens = seq.num_tokens - cached
        if 0 < threshold < tokens:
            tokens = threshold
        if not config.enable_chunked_prefill and tokens > budget:
            return 0
        tokens = min(tokens, budget)
        reserve = min(seq.num_tokens, config.max_model_len) if config.reserve_full_isl else 0
        blocks = config.blocks_for(max(cached + tokens, reserve)) - len(hits)
        watermark = self._watermark_blocks if self.running else 0
        # Free blocks that it hits are no longer free once it runs.
        needed = blocks + self._kv.evictable(hits) + watermark
        return tokens if needed <= self._kv.free else 0

    def _long_prefill_threshold(self) -> int:
        """Most tokens one request may compute in this step; 0 without such a limit."""
        threshold = self.config.long_prefill_token_threshold
        if not threshold:
            return 0
        # It exists to share a step: alone, a request may take the whole budget.
        requests = len(self.running) + len(self.waiting)
        if requests <= 1:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            return max(threshold, self._max_batched_tokens // requests)
        return threshold

    def _is_foreseen_to_end(self, seq: Sequence) -> bool:
        """Async scheduling: the token in flight is the last that `max_tokens` allows."""
        known = seq.computed_tokens + 2 - seq.placeholders
        return 0 < seq.max_tokens <= known - seq.prompt_tokens

    def _victim(self) -> Sequence:
        if self.config.policy == "priority":
            return max(self.running, key=_victim_key)
        return self.running[-1]

    def _preempt(self, victim: Sequence, batch: Batch, index: int) -> tuple[int, int]:
        """Move `victim` back to waiting; returns the new loop index and the budget refunded."""
        position = self.running.index(victim)
        del self.running[position]
        if position < index:
            index -= 1
        refund = 0
        for i, (seq, tokens) in enumerate(batch.scheduled):
            if seq is victim:
                refund = tokens
                del batch.scheduled[i]
                break
        self._kv.release(victim)
        victim.computed_tokens = 0
        victim.preemptions += 1
        if self.config.policy == "priority":
            insort(self.waiting, victim, key=_queue_key)
        else:
            self.waiting.appendleft(victim)
        batch.preempted.append(victim)
        return index, refund

    def _retire(self, finished: list[Sequence]) -> None:
        if not finished:
            return
        gone = set(map(id, finished))
        self.running = [seq for seq in self.running if id(seq) not in gone]
        for seq in finished:
            self._kv.release(seq)
            seq.ended = True

    def _decode_blocks(self, steps: int) -> int:
        """Blocks that `steps` further pure-decode steps take."""
        block_size = self.config.block_size_tokens
        return sum(
            -(-(seq.computed_tokens + steps) // block_size) - seq.blocks for seq in self.running
        )


def _queue_key(seq: Sequence) -> tuple[int, float, str]:
    return (seq.priority, seq.arrival_s, seq.request_id)


def _victim_key(seq: Sequence) -> tuple[int, float]:
    return (seq.priority, seq.arrival_s)
