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
    """No instance that serves it is up."""
    SHARE = "share"
    """Its tenant is over its share, and no engine has room."""
    YIELD = "yield"
    """It will probably miss its TTFT target, and no engine has room."""
    ANSWER = "answer"
    """It is dispatched."""
    RECALL = "recall"
    """It is dispatched, and is being taken back from its engine's queue."""


@dataclass(slots=True, eq=False)
class Request:
    """A request between arrival and end."""

    arrived: on.Arrived
    arrived_s: float
    spec: RequestSpec
    """With its latest length estimate, and its priority among the requests to its model."""
    stage: Stage = Stage.PLACEMENT
    attempt: int = 0
    trial: RequestSpec = field(init=False)
    """`spec` for the current attempt: with an id of its own, and perhaps its original priority."""
    avoid: set[str] = field(default_factory=set)
    unfit: set[str] = field(default_factory=set)
    """Ids of instances that cannot serve it, as they or instances like them have said."""
    refusals: int = 0
    """How often an instance has said so."""
    single: bool = False
    """Its predictions were made with one rollout for each instance."""
    lease: Lease | None = None
    ticket: int = 0
    failures: int = 0
    beyond_budget: bool = False
    """It waits for a retry beyond the retry budget."""
    work: float = 0.0
    """Its work in tokens that counts towards its tenant's share while it is dispatched."""
    instance_by_s: float = 0.0
    """Until when it may wait for an instance; 0: it has not waited for one."""
    better: Decision | None = None
    """Where it goes once it is recalled."""

    key: str = field(init=False)
    """Its id in events and effects."""

    def __post_init__(self) -> None:
        self.trial, self.key = self.spec, self.arrived.spec.request_id

    @property
    def urgency(self) -> Urgency:
        """Its place in the order of those that wait for their tenants' shares."""
        return Urgency(self.arrived.spec.priority, self.arrived_s)

    def next_attempt(self) -> None:
        """Begin another attempt, with an id of its own."""
        self.attempt += 1
        self.trial = self.spec
        if self.attempt > 1:
            self.trial = self.spec._replace(request_id=f"{self.key}-{self.attempt}")

    def continue_after(self, output_tokens: int) -> None:
        """Let the next attempt continue after the first `output_tokens` of the answer."""
        spec, length = self.spec, clip(self.spec.length, 0, output_tokens + 1)
        prompt_tokens = self.arrived.spec.prompt_tokens + output_tokens
        self.spec = spec._replace(prompt_tokens=prompt_tokens, length=length)

    def predicted_s(self, prediction: Prediction | None) -> float | None:
        """Return in how many seconds the answer's first byte should come; None if unknown.

        For an answer in one piece that is its end, at the longest length that the request allows,
        since lengths are hard to predict; infinite if there is no prediction or no limit.
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
