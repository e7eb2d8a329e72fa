"""Policies for comparison: other readings of two of the Block paper's."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from foretell.model import Load, RequestSpec
from foretell.policy import Candidate, Needs, Policy, make_policy
from foretell.policy.scoring import pick_lowest_known


class LowestLoad:
    """Chooses the lowest score of a load."""

    name: ClassVar[str] = "lowest_load"
    needs: ClassVar[Needs] = Needs.LOAD

    def __init__(self, score: Callable[[Load], float]) -> None:
        self._score = score

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the lowest score."""

        def score(candidate: Candidate) -> float | None:
            return None if candidate.load is None else self._score(candidate.load)

        return pick_lowest_known(candidates, score, draw)


def _awaited(load: Load) -> int:
    return load.used_blocks + load.waiting_prefill_blocks


READINGS: dict[str, Callable[[Load], float]] = {
    "infaas, used/running": lambda load: load.used_blocks / max(1, load.running),
    "llumnix_minus, used/running": lambda load: _awaited(load) / max(1, load.running),
    "infaas, used/seats": lambda load: load.used_blocks / load.max_num_seqs,
    "llumnix_minus, used/seats": lambda load: _awaited(load) / load.max_num_seqs,
}
"""usedMemory / batchSize of the Block paper's text, with the requests that run now as the batch
size, or with those that may run at most."""


def make(name: str) -> Policy:
    """A fresh policy of that name, from here or from `foretell.policy`."""
    return LowestLoad(READINGS[name]) if name in READINGS else make_policy(name)
