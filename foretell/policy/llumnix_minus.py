"""Llumnix-: Llumnix's dispatch rule without its migration, as the Block paper defines it."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest_known


class LlumnixMinusPolicy:
    """`(used_blocks + waiting_prefill_blocks) / max(1, running)`.

    INFaaS++ plus the memory that queued prompts are about to need.
    """

    name: ClassVar[str] = "llumnix_minus"
    needs: ClassVar[Needs] = Needs.LOAD

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the least memory load, queued prompts included."""
        return pick_lowest_known(candidates, queued_memory_load, draw)


def queued_memory_load(candidate: Candidate) -> float | None:
    """KV blocks in use or awaited per running request; None when the load is unknown."""
    load = candidate.load
    if load is None:
        return None
    return (load.used_blocks + load.waiting_prefill_blocks) / max(1, load.running)
