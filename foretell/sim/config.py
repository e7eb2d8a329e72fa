"""What is simulated."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import LengthRule
from foretell.model import EngineConfig, LengthEstimate
from foretell.placement import PlacementConfig
from foretell.workload import Arrival


def true_length(arrival: Arrival) -> LengthEstimate:
    """An oracle: the length the request will really have."""
    return LengthEstimate(float(arrival.output_tokens), source="hint")


class FaultKind(Enum):
    """What may befall an instance."""

    CRASH = "crash"
    """The engine dies with all it holds; it comes back empty."""
    SLOW = "slow"
    """Its steps take `factor` times as long, and its predictor does not know."""
    MUTE = "mute"
    """Its snapshots are lost."""
    DEAD_PREDICTOR = "dead-predictor"
    """Nobody answers for it, and what is reserved is forgotten."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong at `at_s`, for `for_s` seconds of the arrivals' clock."""

    kind: FaultKind
    instance: int
    at_s: float
    for_s: float = inf
    factor: float = 2.0
    """Of a slow instance's steps."""


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One engine."""

    engine: EngineConfig
    step_time: StepTimeModel
    """How long its steps really take."""
    believed_step_time: StepTimeModel | None = None
    """What its predictor takes them to be; None: the truth."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A cluster and what it knows of its requests. Delays are one way."""

    instances: tuple[InstanceConfig, ...]
    estimate: Callable[[Arrival], LengthEstimate] = true_length
    """Called once for each arrival, in their order."""
    length_rule: LengthRule = "survival"
    publish_interval_s: float = 0.0
    """Least time between two snapshots of an engine; 0 publishes every change."""
    tagger_delay_s: float = 0.0
    """From a request's arrival to its length estimate."""
    network_delay_s: float = 0.0
    """From a scheduler to a predictor, and back."""
    dispatch_delay_s: float = 0.002
    """From a scheduler's choice to the engine's queue."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """How every scheduler places, as the scheduler service takes it."""
    silent_ratio: float = 0.0
    """How often a predictor misses its deadline."""
    foretell_every: int = 1
    """Of every so many-th request the chosen instance is asked again, now reckoning with requests
    that will come later, and that is what `Served` keeps; the services do it for each. 0: what
    the instances were compared by is kept of all."""
    choose_by_announced: bool = True
    """Instances are compared as if nobody else came, as the services do it."""
    prefix_cache: bool = False
    """Engines find blocks of the prefixes that arrivals name (`Arrival.prefix`)."""
    predict_hits: bool = True
    """And predictors are told these names, to foretell what engines will find."""
    faults: tuple[Fault, ...] = ()
    sample_every_s: float = 0.0
    """Between two notes of every engine's free blocks; 0: none is made."""
    reject_late: bool = False
    """Requests that no instance can give a first token in time are not admitted."""

    def __post_init__(self) -> None:
        if not self.instances:
            raise ValueError("a cluster needs at least one engine")
        if self.foretell_every < 0:
            raise ValueError("foretell_every must be at least 0")
        for fault in self.faults:
            if not 0 <= fault.instance < len(self.instances):
                raise ValueError(f"there is no instance {fault.instance} to become {fault.kind}")
            if fault.for_s <= 0 or fault.factor <= 0:
                raise ValueError(f"{fault} needs a positive time and factor")
