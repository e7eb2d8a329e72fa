"""Choosing the lowest score, also when some instances have not answered."""

from collections.abc import Callable, Sequence
from math import inf, isfinite, isnan
from statistics import median
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Key, Memory


class ScoringPolicy(JudgingPolicy):
    """The candidate with the least score, each by itself."""

    needs: ClassVar[Needs] = Needs.NOTHING

    def score(self, candidate: Candidate) -> float | None:
        """What is compared; None: not known."""
        raise NotImplementedError

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By `score`."""
        return lowest_known(candidates, [self.score(candidate) for candidate in candidates])


def pick_lowest(
    candidates: Sequence[Candidate], score: Callable[[Candidate], float], draw: float
) -> str:
    """The `instance_id` with the least score; `draw` in [0, 1) chooses among exact ties."""
    return lowest(candidates, score).choose(draw)


def lowest(candidates: Sequence[Candidate], score: Callable[[Candidate], float]) -> Judgement:
    """The least score is the best."""
    return Judgement(candidates, [(score(candidate), 1.0) for candidate in candidates])


def lowest_known(candidates: Sequence[Candidate], scores: Sequence[float | None]) -> Judgement:
    """The least score is the best; of some candidates it is unknown (None or NaN).

    An instance that did not answer is probably as busy as its peers with as many requests, so it
    gets their median score, worsened by its share of outstanding requests:
    `median(scores) + abs(median(scores)) * (share - 1)` with
    `share = (1 + outstanding) / (1 + median(outstanding of those that answered))`, which is
    `median(scores) * share` unless scores are negative.
    Silence thus neither attracts traffic nor repels it for good. If nobody answered, the fullest
    loses: by requests for each seat where all loads are known, then by outstanding requests.
    An infinite score (it can never run there) is an answer: the worst.
    """
    answered = [
        (value, candidate.outstanding)
        for candidate, value in zip(candidates, scores, strict=True)
        if value is not None and isfinite(value)
    ]
    if len(answered) == len(candidates):
        return Judgement(candidates, [(value, 1.0) for value, _ in answered])
    if not answered and not any(score == inf for score in scores):
        return Judgement(candidates, _fullness(candidates), [False] * len(candidates))
    typical_score = median(value for value, _ in answered) if answered else 0.0
    typical_outstanding = median(count for _, count in answered) if answered else 0.0
    keys: list[Key] = []
    for candidate, value in zip(candidates, scores, strict=True):
        # Second in the key too: a typical score of 0 would hide how loaded a silent one is.
        relative = (1 + candidate.outstanding) / (1 + typical_outstanding)
        if value is None or isnan(value):
            keys.append((typical_score + abs(typical_score) * (relative - 1), relative))
        else:
            keys.append((value, relative if value == inf else 1.0))
    known = [value is not None and not isnan(value) for value in scores]
    return Judgement(candidates, keys, known)


def _fullness(candidates: Sequence[Candidate]) -> list[Key]:
    known = all(candidate.load is not None for candidate in candidates)
    keys = []
    for candidate in candidates:
        fullness, load = 0.0, candidate.load
        if load is not None and known:
            fullness = load.requests / max(1, load.max_num_seqs)
        keys.append((fullness, float(candidate.outstanding)))
    return keys
