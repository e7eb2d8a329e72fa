"""Choosing the lowest score, also when some instances have not answered."""

from collections.abc import Callable, Sequence
from math import inf, isfinite, isnan
from statistics import median

from foretell.policy.base import Candidate


def pick_lowest(
    candidates: Sequence[Candidate], key: Callable[[Candidate], float], draw: float
) -> str:
    """The `instance_id` with the least `key`; `draw` in [0, 1) chooses among exact ties."""
    return _pick(candidates, [(key(candidate), 1.0) for candidate in candidates], draw)


def pick_lowest_known(
    candidates: Sequence[Candidate], score: Callable[[Candidate], float | None], draw: float
) -> str:
    """Like `pick_lowest` for a score that may be unknown (None or NaN).

    An instance that did not answer is probably as busy as its peers with as many requests, so it
    gets their median score, worsened by its share of outstanding requests:
    `median(scores) + abs(median(scores)) * (share - 1)` with
    `share = (1 + outstanding) / (1 + median(outstanding of those that answered))`, which is
    `median(scores) * share` unless scores are negative.
    Silence thus neither attracts traffic nor repels it for good. If nobody answered, the fullest
    loses: by requests for each seat where all loads are known, then by outstanding requests.
    An infinite score (it can never run there) is an answer: the worst.
    """
    scores = [score(candidate) for candidate in candidates]
    known = [value for value in scores if value is not None and isfinite(value)]
    if len(known) == len(candidates):
        return _pick(candidates, [(value, 1.0) for value in known], draw)
    answered = [
        (value, candidate.outstanding)
        for candidate, value in zip(candidates, scores, strict=True)
        if value is not None and isfinite(value)
    ]
    if not answered and not any(score == inf for score in scores):
        return _pick(candidates, _fullness(candidates), draw)
    typical_score = median(value for value, _ in answered) if answered else 0.0
    typical_outstanding = median(count for _, count in answered) if answered else 0.0
    keys = []
    for candidate, value in zip(candidates, scores, strict=True):
        # Second in the key too: a typical score of 0 would hide how loaded a silent one is.
        relative = (1 + candidate.outstanding) / (1 + typical_outstanding)
        if value is None or isnan(value):
            keys.append((typical_score + abs(typical_score) * (relative - 1), relative))
        else:
            keys.append((value, relative if value == inf else 1.0))
    return _pick(candidates, keys, draw)


def _fullness(candidates: Sequence[Candidate]) -> list[tuple[float, float]]:
    known = all(candidate.load is not None for candidate in candidates)
    keys = []
    for candidate in candidates:
        fullness, load = 0.0, candidate.load
        if load is not None and known:
            requests = load.running + load.waiting + load.reserved
            fullness = requests / max(1, load.max_num_seqs)
        keys.append((fullness, float(candidate.outstanding)))
    return keys


def _pick(candidates: Sequence[Candidate], keys: Sequence[tuple[float, float]], draw: float) -> str:
    least = min(keys)
    tied = [c.instance_id for c, key in zip(candidates, keys, strict=True) if key == least]
    return tied[int(draw * len(tied))]
