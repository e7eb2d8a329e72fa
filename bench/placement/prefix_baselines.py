"""Prefix policies of LLM gateways, for comparison: they know request counts, no engine state."""

from collections.abc import Sequence
from hashlib import blake2b
from math import ceil
from typing import ClassVar

from foretell.engine.prefixes import PrefixIndex
from foretell.model import EngineConfig, RequestSpec
from foretell.policy import Candidate, Needs
from foretell.policy.scoring import pick_lowest

HASHED_CHUNKS = 3
LOAD_FACTOR = 1.25
"""Bound on a load over the mean load; KubeAI's default."""
MATCH_RATIO = 0.5
IMBALANCE_REQUESTS, IMBALANCE_RATIO = 8, 1.5
"""Beyond both, the longest match yields to the least load (as in SGLang's router)."""


class PrefixHash:
    """Rendezvous hashing of the prompt's first chunks, with bounded loads (arXiv 1608.01350).

    It chooses the first instance in the prompt's own order that has at most `LOAD_FACTOR` times the
    mean number of requests in progress, this one included.
    """

    name: ClassVar[str] = "prefix_hash"
    needs: ClassVar[Needs] = Needs.NOTHING
    late_binding = False

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """A prompt without a whole chunk goes where the fewest requests are in progress."""
        if not request.prefix:
            return pick_lowest(candidates, lambda c: c.outstanding, draw)
        key = request.prefix[:HASHED_CHUNKS]
        ordered = sorted(candidates, key=lambda c: _weight(key, c.instance_id))
        most = ceil(LOAD_FACTOR * (sum(c.outstanding for c in ordered) + 1) / len(ordered))
        return next(c.instance_id for c in ordered if c.outstanding < most)


def _weight(key: tuple[int, ...], instance_id: str) -> bytes:
    return blake2b(f"{key} {instance_id}".encode(), digest_size=8).digest()


class LongestMatch:
    """The longest cached prefix, if that is at least half of the prompt; otherwise the least load.

    Cached prefixes are estimated by the predictors' index, fed by this policy's own choices.
    """

    name: ClassVar[str] = "longest_match"
    needs: ClassVar[Needs] = Needs.NOTHING
    late_binding = False

    def __init__(self, engine: EngineConfig) -> None:
        self._engine = engine
        self._indexes: dict[str, PrefixIndex] = {}

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """Loads are requests in progress."""
        for candidate in candidates:
            self._indexes.setdefault(candidate.instance_id, PrefixIndex(self._engine))
        hits = {c.instance_id: self._indexes[c.instance_id].find(request) for c in candidates}
        loads = [c.outstanding for c in candidates]
        least, most = min(loads), max(loads)
        uneven = most - least > IMBALANCE_REQUESTS and most > IMBALANCE_RATIO * least
        if uneven or max(hits.values()) < MATCH_RATIO * request.prompt_tokens:
            chosen = pick_lowest(candidates, lambda c: c.outstanding, draw)
        else:
            chosen = pick_lowest(candidates, lambda c: -hits[c.instance_id], draw)
        self._indexes[chosen].reserve(request)
        return chosen
