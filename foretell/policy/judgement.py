"""How a policy compares its candidates: what decides a choice is what explains it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from foretell.model import RequestSpec
from foretell.policy.base import Candidate

Key = tuple[float, float]
"""A score, and what decides between equal ones: the least is chosen."""
Memory = float | str | None
"""What a policy remembers of its choices before; None: nothing."""


class Part(NamedTuple):
    """What a candidate's total delay is made of (`foretell.policy.total_delay`), in seconds."""

    wait_s: float
    """The request's own wait, time that it may be preempted for included."""
    weighed_wait_s: float
    """`wait_s`, weighing more the longer it is beside what requests usually wait."""
    decoding_s: float
    """What its decoding takes longer than where it is fastest, as far as there is room there."""
    room_s: float
    """What the room that it takes costs those who come later, by the kind of engine."""
    added_ttft_s: float | None
    """What the request adds to the times to first token of others; None: nobody asked."""
    added_e2e_s: float | None
    """What it adds to the end-to-end latencies of others."""


class Judgement(NamedTuple):
    """The comparison of some candidates: the least of `keys` is chosen."""

    candidates: Sequence[Candidate]
    """Those compared with each other; the policy may have left out some."""
    keys: Sequence[Key]
    known: Sequence[bool] = ()
    """Whether a score is the candidate's own, or taken from its peers'; empty: all are."""
    parts: Sequence[Part | None] = ()
    worths: Mapping[str, float | None] = {}
    """By instance: the expected number of requests that meet their targets thanks to the choice
    (`foretell.policy.slo.worth`), where the request has targets."""

    def choose(self, draw: float) -> str:
        """The `instance_id` with the least key; `draw` in [0, 1) chooses among exact ties."""
        least = min(self.keys)
        tied = [
            candidate.instance_id
            for candidate, key in zip(self.candidates, self.keys, strict=True)
            if key == least
        ]
        return tied[int(draw * len(tied))]


class JudgingPolicy(ABC):
    """A policy that compares candidates by one number each, so that every choice can be explained.

    A subclass is a `Policy` by its `name` and `needs`.
    """

    late_binding: bool = False
    measure: ClassVar[str]
    """What it compares, as a sentence calls it."""
    memory: Memory = None

    @abstractmethod
    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """The comparison, given what is remembered; nothing is learned from it."""

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate that is judged to be the best; `draw` chooses among equals."""
        judgement = self.judge(request, candidates, self.memory)
        chosen = judgement.choose(draw)
        self.memory = self.remembered(chosen, judgement)
        return chosen

    def remembered(self, chosen: str, judgement: Judgement) -> Memory:
        """What is remembered after this choice."""
        return self.memory
