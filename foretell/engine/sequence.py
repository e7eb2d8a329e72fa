"""One request inside the twin."""

from dataclasses import dataclass

from foretell.engine.content import Content


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable scheduling state of one request; all counts are tokens unless named otherwise.

    Identity is the object's: an engine may run several sequences of one request (`n > 1`).
    """

    request_id: str
    prompt_tokens: int
    stop_after: int
    """Output tokens after which it ends, whatever the cause (EOS, `max_tokens`, model length)."""
    max_tokens: int
    arrival_s: float = 0.0
    priority: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    """KV entries, those of a scheduled step included (vLLM's `num_computed_tokens`)."""
    blocks: int = 0
    preemptions: int = 0
    content: Content | None = None
    """None: nothing is known of it, so it shares no block with any other."""
    cached_tokens: int = 0
    """Prefix-cache hits at the latest admission."""
    ended: bool = False
    """Finished or aborted; a step in flight may still hold it."""
    placeholders: int = 0
    """Async scheduling: output tokens scheduled to be sampled and not yet known."""
    in_flight_tokens: int = 0
    """Async scheduling: tokens in scheduled steps whose output has not been applied."""
    stale_tokens: int = 0
    """Async scheduling: those of `in_flight_tokens` that were scheduled before a preemption."""

    @property
    def num_tokens(self) -> int:
        """Prompt and known output tokens (vLLM's `num_tokens`)."""
        return self.prompt_tokens + self.output_tokens

    @property
    def decoding(self) -> bool:
        """Between steps: only the newest token's KV entry is missing."""
        return self.output_tokens > 0 and self.computed_tokens == self.num_tokens - 1
