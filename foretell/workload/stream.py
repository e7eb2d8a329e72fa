"""A request stream as plain data."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from foretell.length.prefix import chained
from foretell.model import NO_SLO, LengthEstimate, Slo
from foretell.workload.arrivals import Draws
from foretell.workload.lengths import LengthSampler

PREFIX_BLOCK_TOKENS = 512
"""Tokens of a block that `Arrival.prefix` names, as in Mooncake's traces."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes, and its true lengths."""

    t_s: float
    prompt_tokens: int
    output_tokens: int
    request_id: str
    prefix: tuple[int, ...] = ()
    """Names of its prompt's first blocks of `PREFIX_BLOCK_TOKENS`: equal names, equal tokens."""
    priority: int = 0
    """vLLM's priority: lower numbers first, where engines schedule by priority."""
    slo: Slo = NO_SLO
    length: LengthEstimate | None = None
    """The estimate of `output_tokens` made beforehand; None: there is none."""
    tenant: str = ""
    """The tenant that sends it."""

    def hashed_prefix(self) -> tuple[tuple[int, ...], float]:
        """`RequestSpec.prefix` as a scheduler would make it from the whole blocks with names, and
        the tokens of each block."""
        whole = self.prefix[: self.prompt_tokens // PREFIX_BLOCK_TOKENS]
        return chained(repr(name).encode() for name in whole), float(PREFIX_BLOCK_TOKENS)

    def segments(self) -> list[tuple[str, int]]:
        """The prompt as `foretell.engine.Content` takes it; the part without names is unique."""
        left, found = self.prompt_tokens, []
        for name in self.prefix:
            tokens = min(left, PREFIX_BLOCK_TOKENS)
            if tokens > 0:
                found.append((f"prefix {name}", tokens))
            left -= tokens
        if left > 0:
            found.append((f"prompt of {self.request_id}", left))
        return found


def stream(
    count: int, times_s: Iterable[float], lengths: LengthSampler, draws: Draws, prefix: str = "r"
) -> list[Arrival]:
    """The first `count` requests at `times_s` (fewer if those end), ids `prefix0`, `prefix1`, …

    The same seed behind `draws` (and behind `times_s`) gives the same stream.
    """
    return [
        Arrival(t_s, *lengths.sample(draws), f"{prefix}{index}")
        for index, t_s in enumerate(islice(times_s, count))
    ]
