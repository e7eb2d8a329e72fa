"""INFaaS++: the least KV memory per running request (Llumnix and Block use it as a baseline)."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest_known


class InfaasPolicy:
    """`used_blocks / max(1, running)`: the Block paper's usedMemory / batchSize."""

    name: ClassVar[str] = "infaas"
    needs: ClassVar[Needs] = Needs.LOAD

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the least memory load."""
        return pick_lowest_known(candidates, memory_load, draw)


def memory_load(candidate: Candidate) -> float | None:
    """KV blocks in use per running request; None when the load is unknown."""
    load = candidate.load
    return None if load is None else load.used_blocks / max(1, load.running)
