"""What is known of a cluster when the number of its instances is decided."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from foretell.provision.batches import BatchDemand

if TYPE_CHECKING:  # importing it needs numpy, which users of bounds may lack
    from foretell.engine.published import Snapshot


class InstancePhase(Enum):
    """Where an instance stands between its start and its end."""

    WARMING = "warming"
    """Started, but its engine does not answer yet."""
    READY = "ready"
    DRAINING = "draining"
    """It finishes its requests and gets no new ones."""


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """One instance as it was last heard of."""

    instance_id: str
    phase: InstancePhase
    since_s: float
    """When it entered `phase`."""
    running: int = 0
    waiting: int = 0
    """Requests in its engine's queue, and those on their way to it."""
    max_num_seqs: int = 0
    """0: not known."""
    kv_used_ratio: float = 0.0
    published: "Callable[[], Snapshot | None]" = lambda: None
    """Return the snapshot that its predictor last published; None: there is none. Strategies that
    need it call this once."""

    @property
    def requests(self) -> int:
        """Requests in progress there."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class Facts:
    """A cluster at `now_s`. Counts and latencies are those since the previous facts."""

    now_s: float
    instances: Sequence[InstanceFacts]
    arrived: int = 0
    """Requests that came to the schedulers, counted at their arrival."""
    lengths: Sequence[tuple[int, float]] = ()
    """(prompt tokens, predicted output tokens) of a sample of them."""
    held: int = 0
    """Requests that wait in the schedulers, for an instance or for room."""
    worst_e2e_s: float = 0.0
    """The longest e2e latency of the requests that ended; 0: none did."""
    worst_predicted_e2e_s: float = 0.0
    """The longest e2e latency predicted for the requests that were placed; 0: none was."""
    batches: BatchDemand = field(default_factory=BatchDemand)
    age_s: float = 0.0
    """Age of the oldest of these numbers, but for those of batches."""
    asked_for: int | None = None
    """The number of instances that was last asked for, by anyone; None: unknown."""

    def in_phase(self, phase: InstancePhase) -> list[InstanceFacts]:
        """The instances in a phase, in their order."""
        return [instance for instance in self.instances if instance.phase is phase]

    @property
    def requests(self) -> int:
        """Requests in progress on instances that are not draining, and those that are held."""
        staying = (i.requests for i in self.instances if i.phase is not InstancePhase.DRAINING)
        return sum(staying) + self.held
