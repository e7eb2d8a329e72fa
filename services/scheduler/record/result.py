"""What the relay saw of one attempt."""

from dataclasses import dataclass


@dataclass(slots=True)
class Result:
    """How an attempt ended. Stamps are unix seconds, 0 where the event did not happen."""

    status: int = 0
    """The engine's HTTP status; 0 if it sent none."""
    first_byte_unix_s: float = 0.0
    """When a stream's first byte came; otherwise estimated from what the sidecar saw."""
    ended_unix_s: float = 0.0
    finished: bool = False
    """The whole answer came from the engine."""
    prompt_tokens: int = 0
    """0 where not known."""
    output_tokens: int = 0
    """Summed over all sequences of the request; 0 where not known."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache: from the engine's usage, else from the sidecar."""
    truncated: bool = False
    """Some choice was ended by its limit of tokens, as the engine says."""
    abandoned: bool = False
    """The client left, or the engine was lost in mid-answer: no attempt follows."""
    broken: bool = False
    """The engine was lost in mid-answer."""
    continued: bool = False
    """It went on with what another engine had begun: its latencies are not those of the request."""
