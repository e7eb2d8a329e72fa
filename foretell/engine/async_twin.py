"""The twin with async scheduling: the next step is scheduled before this one's output is known.

Mirrors `AsyncScheduler` (vllm/v1/core/sched/async_scheduler.py, 0.32) and what `Scheduler` does for
it. A sampled token counts as a placeholder until its output is applied; `max_tokens` is foreseen,
the end of a text is not. Output in flight of a preempted request is stale: it still delivers its
tokens, and the request waits until it has.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from foretell.engine.batch import Batch, Outcome
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin
from foretell.model import BatchShape


@dataclass(slots=True)
class AsyncBatch(Batch):
    """One step as scheduled, with who will have sampled a token at its end."""

    sampling: list[bool] = field(default_factory=list)
    """One for each of `scheduled`."""


class AsyncTwin(Twin):
    """Batches are completed in the order in which they were scheduled, each once.

    Several may be in flight; vLLM's engine keeps two (`max_concurrent_batches`).
    """

    max_steps_in_flight: ClassVar[int] = 2

    def schedule(self) -> AsyncBatch | None:
        """As `Twin.schedule`, but batches before it need not be complete."""
        batch = super().schedule()
        if batch is None:
            return None
        sampling = []
        for seq, tokens in batch.scheduled:
            seq.in_flight_tokens += tokens
            samples = seq.computed_tokens >= seq.num_tokens + seq.placeholders
            seq.placeholders += samples
            sampling.append(samples)
        return AsyncBatch(batch.scheduled, batch.admitted, batch.preempted, batch.shape, sampling)

    def complete(self, batch: Batch) -> Outcome:
        """Apply a step's outputs; also to those preempted since, not to those ended."""
        assert isinstance(batch, AsyncBatch)
        sampled: list[Sequence] = []
        finished: list[Sequence] = []
        for (seq, tokens), samples in zip(batch.scheduled, batch.sampling, strict=True):
            if seq.ended:
                continue
            stale = seq.stale_tokens > 0
            seq.in_flight_tokens -= tokens
            if stale:
                seq.stale_tokens -= tokens
            if not samples:
                continue
            seq.output_tokens += 1
            sampled.append(seq)
            if not stale:
                seq.placeholders -= 1
                self._kv.commit(seq, seq.computed_tokens - seq.placeholders)
            if seq.output_tokens >= seq.stop_after or seq.num_tokens >= self.config.max_model_len:
                finished.append(seq)
        self._retire(finished)
        return Outcome(sampled, finished)

    def decode_run(self, max_steps: int) -> tuple[int, BatchShape]:
        """Steps overlap here, so none is certain before the one before it is complete."""
        return 0, BatchShape()

    def _preempt(self, victim: Sequence, batch: Batch, index: int) -> tuple[int, int]:
        victim.stale_tokens = victim.in_flight_tokens
        victim.placeholders = 0
        return super()._preempt(victim, batch, index)

    def _retire(self, finished: list[Sequence]) -> None:
        super()._retire(finished)
        for seq in finished:
            if seq in self.waiting:  # its last token was stale
                self.waiting.remove(seq)
