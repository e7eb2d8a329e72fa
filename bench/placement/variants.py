"""Policies for comparison: parts of one left out, and other readings of two of the paper's."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from foretell.model import Load, Prediction, RequestSpec
from foretell.policy import Candidate, Needs, Policy, make_policy
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.total_delay import others_delay_s


class LowestPrediction:
    """Chooses the lowest score of a prediction; below 0 counts as 0."""

    name: ClassVar[str] = "lowest_prediction"
    needs: ClassVar[Needs] = Needs.EXTERNALITY

    def __init__(self, score: Callable[[Prediction], float]) -> None:
        self._score = score

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the lowest score."""

        def score(candidate: Candidate) -> float | None:
            return None if (p := candidate.prediction) is None else max(0.0, self._score(p))

        return pick_lowest_known(candidates, score, draw)


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


def _others_s(prediction: Prediction) -> float:
    return others_delay_s(prediction) or 0.0


def _awaited(load: Load) -> int:
    return load.used_blocks + load.waiting_prefill_blocks


ABLATIONS: dict[str, Callable[[Prediction], float]] = {
    "e2e + added e2e": lambda p: p.e2e_s + (p.added_e2e_s or 0.0),
    "without impatience": lambda p: p.ttft_s + _others_s(p),
    "e2e in place of TTFT": lambda p: p.e2e_s + p.ttft_s**2 + _others_s(p),
    "TTFT alone": lambda p: p.ttft_s,
}
"""`externality` with a part left out or replaced."""
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
    if name in ABLATIONS:
        return LowestPrediction(ABLATIONS[name])
    return LowestLoad(READINGS[name]) if name in READINGS else make_policy(name)
