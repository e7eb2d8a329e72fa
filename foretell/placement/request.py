"""One request on its way through the placement core."""

from dataclasses import dataclass, field
from enum import Enum
from math import inf

from foretell.length import clip
from foretell.model import Prediction, RequestSpec
from foretell.placement import events as on
from foretell.placement.decision import Decision
from foretell.placement.instances import Lease
from foretell.policy import Urgency


class Stage(Enum):
    """The stages of a request's life, each named after what it waits for."""

    PLACEMENT = "placement"
    RETRY = "retry"
    INSTANCE = "instance"
    """Nobody who serves it is up."""
    SHARE = "share"
    """Its tenant has more than its share, and no engine has room."""
    YIELD = "yield"
    """It will hardly be in time, and no engine has room."""
    ANSWER = "answer"
    """It is dispatched."""
    RECALL = "recall"
    """It is dispatched, and its engine is asked to give it back."""


@dataclass(slots=True, eq=False)
class Request:
    """A request between arrival and end."""

    arrived: on.Arrived
    arrived_s: float
    spec: RequestSpec
    """With its length, and its priority among the others to its model."""
    stage: Stage = Stage.PLACEMENT
    attempt: int = 0
    trial: RequestSpec = field(init=False)
    """`spec` for the attempt under way: its own id, perhaps its original priority."""
    avoid: set[str] = field(default_factory=set)
    unfit: set[str] = field(default_factory=set)
    """Instances that cannot serve it, as they or others like them say."""
    refusals: int = 0
    """How often one has said so."""
    single: bool = False
    """Each instance was predicted for by one rollout only."""
    lease: Lease | None = None
    ticket: int = 0
    failures: int = 0
    beyond_budget: bool = False
    """It waits although the retry budget does not allow it to be repeated."""
    work: float = 0.0
    """What it counts in its tenant's share while it is dispatched, in tokens."""
    instance_by_s: float = 0.0
    """Until when it waits for an instance; 0: it has not had to."""
    better: Decision | None = None
    """Where it goes when its engine has given it back."""

    key: str = field(init=False)
    """The id by which events and effects name it."""

    def __post_init__(self) -> None:
        self.trial, self.key = self.spec, self.arrived.spec.request_id

    @property
    def urgency(self) -> Urgency:
        """Its place among those that wait for their tenants' shares."""
        return Urgency(self.arrived.spec.priority, self.arrived_s)

    def next_attempt(self) -> None:
        """It is tried once more, by an id of its own."""
        self.attempt += 1
        self.trial = self.spec
        if self.attempt > 1:
            self.trial = self.spec._replace(request_id=f"{self.key}-{self.attempt}")

    def continue_after(self, output_tokens: int) -> None:
        """So many tokens of the answer are there, and the next attempt goes on after them."""
        spec, length = self.spec, clip(self.spec.length, 0, output_tokens + 1)
        prompt_tokens = self.arrived.spec.prompt_tokens + output_tokens
        self.spec = spec._replace(prompt_tokens=prompt_tokens, length=length)

    def predicted_s(self, prediction: Prediction | None) -> float | None:
        """When the first byte of the answer should come, in seconds from now; None: nobody knows.

        Of an answer that comes whole that is its end: where it is as long as it may be, since
        lengths are predicted badly. Infinite where no limit is known.
        """
        whole, spec = self.arrived.whole, self.trial
        if prediction is None:
            return inf if whole else None
        if not whole:
            return prediction.ttft_s
        if not spec.max_tokens:
            return inf
        longer = max(1.0, spec.max_tokens / max(1.0, spec.length.expected_tokens))
        return prediction.ttft_s + (prediction.e2e_s - prediction.ttft_s) * longer
