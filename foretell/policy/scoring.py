"""Choice by the lowest score, also if the scores of some candidates are unknown."""

from collections.abc import Callable, Sequence
from math import inf, isfinite, isnan
from statistics import median
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Key, Memory


class ScoringPolicy(JudgingPolicy):
    """A policy that scores each candidate by itself; the lowest score is chosen."""

    needs: ClassVar[Needs] = Needs.NOTHING

    def score(self, candidate: Candidate) -> float | None:
        """Return what is compared; None: unknown."""
        raise NotImplementedError

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """Compare by `score`."""
        return lowest_known(candidates, [self.score(candidate) for candidate in candidates])


def pick_lowest(
    candidates: Sequence[Candidate], score: Callable[[Candidate], float], draw: float
) -> str:
    """Return the `instance_id` with the lowest score; `draw` in [0, 1) chooses among ties."""
    return lowest(candidates, score).choose(draw)


def lowest(candidates: Sequence[Candidate], score: Callable[[Candidate], float]) -> Judgement:
    """Compare candidates whose scores are all known; the lowest is the best."""
    return Judgement(candidates, [(score(candidate), 1.0) for candidate in candidates])


def lowest_known(candidates: Sequence[Candidate], scores: Sequence[float | None]) -> Judgement:
    """Compare candidates of which some scores are unknown (None or NaN); the lowest is the best.

    An instance with an unknown score is probably as busy as its peers with as many requests. It
    gets their median score, increased by its share of outstanding requests:
    `median(scores) + abs(median(scores)) * (share - 1)` with
    `share = (1 + outstanding) / (1 + median(outstanding of those with a score))`, which is
    `median(scores) * share` unless scores are negative.
    So an unknown score neither attracts traffic nor repels it permanently. If no score is known,
    candidates are compared by requests per seat if all loads are known, then by outstanding
    requests. An infinite score (the request can never run there) is known: it is the worst.
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
        # Also the tie break, as a typical score of 0 would hide how loaded this instance is.
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
