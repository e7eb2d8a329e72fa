"""How a policy compares its candidates. The same comparison decides a choice and explains it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from foretell.model import RequestSpec
from foretell.policy.base import Candidate

Key = tuple[float, float]
"""A score, and a tie break between equal scores; the least key is chosen."""
Memory = float | str | None
"""What a policy remembers of its earlier choices; None: nothing."""


LATER = 2.0
"""The weight of what a request adds to the end-to-end latencies of others. A prediction covers the
requests that are there now; when they end, others take their places and are slowed as much."""


class DelayParts(NamedTuple):
    """The parts of a candidate's total delay (`foretell.policy.total_delay`), in seconds."""

    wait_s: float
    """The request's predicted wait, the time for which it will be preempted included."""
    weighed_wait_s: float
    """`wait_s`, weighted the more the longer it is compared to the usual wait."""
    decoding_s: float
    """Decoding time beyond that on the fastest engine, weighted by the free share of that one."""
    room_s: float
    """The price of the room that it takes on this kind of engine (`foretell.policy.room`)."""
    added_ttft_s: float | None
    """What the request adds to the TTFTs of others, summed; None: not predicted."""
    added_e2e_s: float | None
    """What it adds to the end-to-end latencies of others, summed; None: not predicted."""

    @property
    def added_s(self) -> float | None:
        """`added_ttft_s + LATER * added_e2e_s`: its cost to others; None: not predicted."""
        if self.added_ttft_s is None or self.added_e2e_s is None:
            return None
        return self.added_ttft_s + LATER * self.added_e2e_s


class Judgement(NamedTuple):
    """The comparison of some candidates; the least of `keys` is chosen."""

    candidates: Sequence[Candidate]
    """Those that are compared; the policy may have left out some."""
    keys: Sequence[Key]
    known: Sequence[bool] = ()
    """Whether each score is the candidate's own; False: derived from its peers'. Empty: all are."""
    parts: Sequence[DelayParts | None] = ()
    worths: Mapping[str, float | None] = {}
    """By instance: the expected number of requests that meet their targets thanks to the choice
    (`foretell.policy.slo.worth`), if the request has targets."""

    def choose(self, draw: float) -> str:
        """Return the `instance_id` with the least key; `draw` in [0, 1) chooses among ties."""
        least = min(self.keys)
        tied = [
            candidate.instance_id
            for candidate, key in zip(self.candidates, self.keys, strict=True)
            if key == least
        ]
        return tied[int(draw * len(tied))]


class JudgingPolicy(ABC):
    """A policy that compares candidates by one number each, so that every choice can be explained.

    A subclass that defines `name` and `needs` is a `Policy`.
    """

    late_binding: bool = False
    measure: ClassVar[str]
    """What it compares, worded as a part of a sentence."""
    memory: Memory = None

    @abstractmethod
    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """Compare the candidates, given what is remembered. Nothing is learned here."""

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """Return the best candidate's `instance_id`; `draw` chooses among ties."""
        judgement = self.judge(request, candidates, self.memory)
        chosen = judgement.choose(draw)
        self.memory = self.remembered(chosen, judgement)
        return chosen

    def remembered(self, chosen: str, judgement: Judgement) -> Memory:
        """Return what is remembered after this choice."""
        return self.memory
